"""The dev measure: nDCG@10 of reranking a few candidates of a few dev queries, cheap enough to repeat."""

from __future__ import annotations

from collections.abc import Callable

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import Corpus, Run, Split
from paradigms.evaluate import per_query
from paradigms.evaluate.reranking import rerank
from paradigms.generative.model import Generative
from paradigms.model import Paradigm


def dev_measure(
    corpus: Corpus, split: Split, run: Run, queries: int, depth: int, precision: str
) -> Callable[[Paradigm | Generative | CrossAttention], float]:
    """paradigm → mean nDCG@10 over the first `queries` dev queries (by id), each with the first `depth`
    documents of `run` and its relevant ones as candidates."""
    chosen = sorted(split.queries)[:queries]
    judgements = {q: split.judgements[q] for q in chosen}
    pool = candidates({q: run.get(q, {}) for q in chosen}, judgements, depth)

    def measure(paradigm: Paradigm | Generative | CrossAttention) -> float:
        reranked = rerank(paradigm, split.queries, corpus, pool, precision=precision)
        return per_query(reranked, judgements, ("nDCG@10",)).mean("nDCG@10")

    return measure


def candidates(run: Run, judgements: dict[str, dict[str, int]], depth: int) -> Run:
    """Rerank mode: per query of `run` its first `depth` documents, and every relevant one (at the end)."""
    result: Run = {}
    for query, scores in run.items():
        top = sorted(scores, key=lambda d: (-scores[d], d))[:depth]
        worst = min((scores[d] for d in top), default=0.0)
        gold = [d for d, grade in sorted(judgements.get(query, {}).items()) if grade > 0 and d not in top]
        result[query] = {d: scores[d] for d in top} | {d: worst - 1 - n for n, d in enumerate(gold)}
    return result
