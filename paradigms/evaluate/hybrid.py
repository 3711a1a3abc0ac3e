"""score(d, q) = dense(d, q) + λ · sparse(d, q): two systems and one weight λ ≥ 0 between them.

Luan et al., "Sparse, Dense, and Attentional Representations for Text Retrieval", TACL 2021, §4.1: λ is tuned
on dev queries, and retrieval reranks the n best candidates of each system. Both scores are raw (rel; BM25's
sum of weights), so λ belongs to these two systems on this collection. A document that one system did not
retrieve gets that system's score from its `rerank`, never 0.

    weight = tune(*candidate_scores(dense, sparse, dev.queries), dev)
    run = combine(*candidate_scores(dense, sparse, queries), weight)
"""

from collections.abc import Callable
from math import isfinite
from typing import NamedTuple

import numpy as np

from paradigms.data import Run, Split
from paradigms.evaluate import on_split
from paradigms.evaluate.measures import ranked

STEPS = range(-12, 13)  # λ = scale · 2^(step / 2): from 1/64 of the scale to 64 times it


class System(NamedTuple):
    """What a hybrid asks of a system: BM25's methods `search` and `rerank`, or an index's with its model."""

    search: Callable[[dict[str, str], int], Run]
    rerank: Callable[[dict[str, str], Run], Run]


def union(*runs: Run) -> Run:
    """query -> every document that one of the runs has for it, without scores (all 0): what to rerank."""
    queries = dict.fromkeys(query for run in runs for query in run)
    return {
        query: dict.fromkeys((document for run in runs for document in run.get(query, {})), 0.0)
        for query in queries
    }


def candidate_scores(
    dense: System, sparse: System, queries: dict[str, str], depth: int = 100
) -> tuple[Run, Run]:
    """Dense and sparse scores of the union of the `depth` best documents of each, all from `rerank`."""
    candidates = union(dense.search(queries, depth), sparse.search(queries, depth))
    return dense.rerank(queries, candidates), sparse.rerank(queries, candidates)


def combine(dense: Run, sparse: Run, weight: float) -> Run:
    """dense + weight · sparse, best first; weight 0 is dense alone.

    ValueError for a document that only one run has, a sum that is NaN, or a weight that is negative or
    infinite.
    """
    if not (isfinite(weight) and weight >= 0):
        raise ValueError(f"the weight of the sparse scores must be finite and at least 0, not {weight}")
    _check_same(dense, sparse)
    combined: Run = {}
    for query, scores in dense.items():
        other = sparse[query] if weight else dict.fromkeys(scores, 0.0)  # 0 · −inf would be NaN
        summed = {document: score + weight * other[document] for document, score in scores.items()}
        combined[query] = ranked(query, summed)
    return combined


def scale(dense: Run, sparse: Run) -> float:
    """The λ at which both scores weigh the same: the ratio of their mean standard deviations within a query.

    Scores of −inf do not count. ValueError where the scores of one run differ within no query.
    """
    _check_same(dense, sparse)
    spread = {}
    for name, run in (("dense", dense), ("sparse", sparse)):
        finite = [[score for score in scores.values() if isfinite(score)] for scores in run.values()]
        found = [np.std(scores) for scores in finite if scores]
        spread[name] = float(np.mean(found)) if found else 0.0
        if not spread[name] > 0:
            raise ValueError(f"the {name} scores of the candidates differ within no query: λ has no scale")
    return spread["dense"] / spread["sparse"]


def tune(dense: Run, sparse: Run, dev: Split, *, measure: str = "nDCG@10") -> float:
    """λ with the highest mean of `measure` on the dev queries (`curve`); of several such the middle one."""
    means = curve(dense, sparse, dev, measure)
    best = [weight for weight, value in means.items() if value == max(means.values())]
    return best[len(best) // 2]


def curve(dense: Run, sparse: Run, dev: Split, measure: str = "nDCG@10") -> dict[float, float]:
    """λ -> mean of `measure`, for 0 (dense alone) and the runs' `scale` times 2^(n/2), n = −12 … 12."""
    middle = scale(dense, sparse)
    return {
        weight: on_split(combine(dense, sparse, weight), dev, [measure]).mean(measure)
        for weight in (0.0, *(middle * 2 ** (step / 2) for step in STEPS))
    }


def _check_same(dense: Run, sparse: Run) -> None:
    for query in dense.keys() | sparse.keys():
        only = dense.get(query, {}).keys() ^ sparse.get(query, {}).keys()
        if only or (query in dense) != (query in sparse):
            what = f"the document {min(only)!r} of the query {query!r}" if only else f"the query {query!r}"
            raise ValueError(f"only one of the two runs has {what}: rerank their `union` with each system")
