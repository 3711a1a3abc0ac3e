"""rel of given candidates by any model, from their texts: no index is needed."""

import tempfile

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import Corpus, Run, best_first
from paradigms.generative.model import Generative
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.index import ExactIndex
from paradigms.model import Paradigm


def rerank(
    model: Paradigm | Generative | CrossAttention,
    queries: dict[str, str],
    corpus: Corpus,
    run: Run,
    *,
    precision: str = "no",
    progress: bool = False,
) -> Run:
    """New scores for the run's queries and documents, best first.

    precision: "no", "bf16", or "fp16" on a GPU, for encoding. A generative model computes as the caller's
    autocast says, without one in float32. KeyError names a query without a text or a
    document outside the corpus.
    """
    if isinstance(model, Generative):
        return GenerativeRetriever(model).rerank(queries, run, progress=progress)
    if isinstance(model, CrossAttention):
        return model.rerank(queries, corpus, run, precision=precision, progress=progress)
    ids = sorted({d for scores in run.values() for d in scores}, key=corpus.position)
    texts = [corpus[corpus.position(d)] for d in ids]
    with tempfile.TemporaryDirectory() as folder:
        index = ExactIndex.build(model, ids, texts, f"{folder}/index", precision=precision, progress=progress)
        return index.rerank(model, queries, run, progress=progress)


def candidates(run: Run, judgements: dict[str, dict[str, int]], depth: int) -> Run:
    """Rerank mode: per query of `run` its first `depth` documents, and every relevant one (at the end)."""
    result: Run = {}
    for query, scores in run.items():
        top = best_first(scores, depth)
        worst = min(top.values(), default=0.0)
        gold = [d for d, grade in sorted(judgements.get(query, {}).items()) if grade > 0 and d not in top]
        result[query] = top | {d: worst - 1 - n for n, d in enumerate(gold)}
    return result
