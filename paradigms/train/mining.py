"""Where hard negatives come from: what a model ranks high and no judgement calls relevant.

    run = mine(trained, corpus, split, depth=100)
    examples = build_examples(corpus, split, run, negatives=7, depth=100, seed=0)

A relevant document that nobody judged becomes a negative too, more often the better the model is:
`teacher.FalseNegatives` leaves out those that a better model scores high.
"""

import random
import tempfile

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import Corpus, Run, Split
from paradigms.generative.model import Generative
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.index import ExactIndex
from paradigms.model import Paradigm


def mine(
    model: Paradigm | Generative | CrossAttention,
    corpus: Corpus,
    split: Split,
    depth: int = 100,
    *,
    precision: str = "no",
    progress: bool = False,
) -> Run:
    """The model's first `depth` documents of every query of the split with a relevant one, by exact search.

    precision: of encoding, "no", "bf16" or "fp16". ValueError for a model that searches no corpus.
    """
    if isinstance(model, CrossAttention):
        raise ValueError(
            f"{model.name} scores given pairs and searches no corpus: rerank a run of the training queries "
            "with it, and mine from that"
        )
    relevant = (query for query, judged in split.judgements.items() if any(g > 0 for g in judged.values()))
    queries = {query: split.queries[query] for query in relevant}
    if isinstance(model, Generative):
        return GenerativeRetriever(model).search(queries, depth, progress=progress)
    with tempfile.TemporaryDirectory() as folder:
        index = ExactIndex.build(
            model, corpus.ids, corpus, f"{folder}/index", precision=precision, progress=progress
        )
        return index.search(model, queries, depth, progress=progress)


def with_random(run: Run, corpus: Corpus, count: int, seed: int = 0) -> Run:
    """The run with `count` other documents of the corpus, drawn at random, after each query's own.

    100 of BM25 and 100 of these are the candidates of Luan et al. 2021, §4.2 and §5.
    """
    joined: Run = {}
    for query, scores in run.items():
        drawn = random.Random(f"{seed} {query}").sample(corpus.ids, min(len(corpus), count + len(scores)))
        others = [id for id in drawn if id not in scores][:count]
        last = min(scores.values(), default=0.0)
        joined[query] = scores | {id: last - 1 - n for n, id in enumerate(others)}
    return joined
