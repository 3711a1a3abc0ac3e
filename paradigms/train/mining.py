"""Mine hard negatives: documents that a model ranks highly but that are not judged relevant.

    run = mine(trained, corpus, split, depth=100)
    examples = build_examples(corpus, split, run, negatives=7, depth=100, seed=0)

Relevant documents without a judgement become negatives, too, and a better model finds more of them.
`teacher.FalseNegatives` therefore leaves out documents that another model scores highly.
"""

import random

from paradigms.data import Corpus, Run, Split
from paradigms.encoder.precision import AUTO
from paradigms.retrieve import Model, retriever_of


def mine(
    model: Model,
    corpus: Corpus,
    split: Split,
    depth: int = 100,
    *,
    precision: str = AUTO,
    progress: bool = False,
) -> Run:
    """For each query with a relevant document, find the top `depth` documents by exact search.

    precision: precision of encoding, as in `encoder.precision`. Raises ValueError if the model cannot search.
    """
    relevant = (query for query, judged in split.judgements.items() if any(g > 0 for g in judged.values()))
    queries = {query: split.queries[query] for query in relevant}
    retriever = retriever_of(model, corpus, precision=precision, progress=progress)
    return retriever.search(queries, depth, progress=progress)


def with_random(run: Run, corpus: Corpus, count: int, seed: int = 0) -> Run:
    """Append `count` random documents from the corpus to each query's ranking.

    Luan et al. 2021 (§4.2, §5) use 100 documents from BM25 and 100 random documents as candidates.
    """
    joined: Run = {}
    for query, scores in run.items():
        drawn = random.Random(f"{seed} {query}").sample(corpus.ids, min(len(corpus), count + len(scores)))
        additions = [id for id in drawn if id not in scores][:count]
        last = min(scores.values(), default=0.0)
        joined[query] = scores | {id: last - 1 - n for n, id in enumerate(additions)}
    return joined
