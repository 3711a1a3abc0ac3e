"""score(d, q) = dense(d, q) + λ · sparse(d, q): two systems and one weight λ ≥ 0 between them.

Luan et al., "Sparse, Dense, and Attentional Representations for Text Retrieval", TACL 2021, §4.1: λ is tuned
on dev queries, and retrieval reranks the n best candidates of each system.

Both scores are what the systems give, with no change per query: rel of a paradigm (a dot product, or a cosine
where its vectors are normalised; with Z or without, as the paradigm has it), and BM25's sum of weights, which
grows with the query. λ therefore lives on the scale dense / sparse and belongs to these two systems on this
collection: where dense scores are cosines it is far below 1. A document that one system has not retrieved
has a score of that system nevertheless, from its `rerank`; it never counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np

from paradigms.data import Run, Split
from paradigms.evaluate import on_split

STEPS = range(-12, 13)  # λ = scale · 2^(step / 2): from 1/64 of the scale to 64 times it


class System(NamedTuple):
    """What a hybrid asks of a system: BM25's methods `search` and `rerank`, or an index's with its paradigm.

    search(queries, k) -> the k best documents of each query; rerank(queries, run) -> the run's documents with
    the system's scores, each of them.
    """

    search: Callable[[dict[str, str], int], Run]
    rerank: Callable[[dict[str, str], Run], Run]


@dataclass(frozen=True)
class Tuning:
    """λ and how it was chosen: the mean of `measure` on the dev queries for each λ that was tried."""

    weight: float
    measure: str
    curve: dict[float, float]


@dataclass(frozen=True)
class Hybrid:
    """dense + weight · sparse, over the union of the `depth` best documents of each."""

    dense: System
    sparse: System
    weight: float
    depth: int = 100

    @classmethod
    def tuned(
        cls,
        dense: System,
        sparse: System,
        dev: Split,
        *,
        measure: str = "nDCG@10",
        depth: int = 100,
        weights: Sequence[float] | None = None,
    ) -> tuple[Hybrid, Tuning]:
        """The hybrid with the λ of `tune` on these dev queries, over the candidates that it would rerank."""
        scores = candidate_scores(dense, sparse, dev.queries, depth)
        tuning = tune(*scores, dev, measure=measure, weights=weights)
        return cls(dense, sparse, tuning.weight, depth), tuning

    def search(self, queries: dict[str, str], k: int = 100) -> Run:
        """The k best of the candidates of each query, best first."""
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        run = combine(*candidate_scores(self.dense, self.sparse, queries, self.depth), self.weight)
        return {query: dict(list(ranked.items())[:k]) for query, ranked in run.items()}

    def rerank(self, queries: dict[str, str], run: Run) -> Run:
        """The run's queries and documents with the hybrid's scores, best first."""
        return combine(self.dense.rerank(queries, run), self.sparse.rerank(queries, run), self.weight)


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
    """Dense and sparse scores of the union of the `depth` best documents of each, by `rerank` throughout.

    A score of the search is not taken over where the system's search is approximate or imputes: it would
    stand on another scale than that of a document that only the other system has found.
    """
    candidates = union(dense.search(queries, depth), sparse.search(queries, depth))
    return dense.rerank(queries, candidates), sparse.rerank(queries, candidates)


def combine(dense: Run, sparse: Run, weight: float) -> Run:
    """dense + weight · sparse, by falling score and equal scores by id.

    ValueError for a document that only one of the runs has, and for a weight that is negative or not finite.
    """
    if not (isfinite(weight) and weight >= 0):
        raise ValueError(f"the weight of the sparse scores must be finite and at least 0, not {weight}")
    _check_same(dense, sparse)
    combined: Run = {}
    for query, scores in dense.items():
        summed = ((document, score + weight * sparse[query][document]) for document, score in scores.items())
        combined[query] = dict(sorted(summed, key=lambda item: (-item[1], item[0])))
    return combined


def scale(dense: Run, sparse: Run) -> float:
    """The λ at which both scores weigh the same: the ratio of their mean standard deviations within a query.

    ValueError where the scores of one of them differ within no query.
    """
    _check_same(dense, sparse)
    spread = [_spread(run) for run in (dense, sparse)]
    for name, value in zip(("dense", "sparse"), spread, strict=True):
        if not value > 0:
            raise ValueError(f"the {name} scores of the candidates differ within no query: λ has no scale")
    return spread[0] / spread[1]


def tune(
    dense: Run,
    sparse: Run,
    dev: Split,
    *,
    measure: str = "nDCG@10",
    weights: Sequence[float] | None = None,
) -> Tuning:
    """λ with the highest mean of `measure` on the dev queries; of several such the middle one.

    weights: those to try, by default 0 (dense alone) and the `scale` of these runs times 2^(n/2) for
    n = −12 … 12. The runs have scores of the same documents, as `candidate_scores` gives them.
    """
    if weights is None:
        middle = scale(dense, sparse)
        weights = [0.0, *(middle * 2 ** (step / 2) for step in STEPS)]
    curve = {
        float(weight): on_split(combine(dense, sparse, weight), dev, [measure]).mean(measure)
        for weight in sorted(weights)
    }
    if not curve:
        raise ValueError("there are no weights to try")
    best = [weight for weight, value in curve.items() if value == max(curve.values())]
    return Tuning(best[len(best) // 2], measure, curve)


def _check_same(dense: Run, sparse: Run) -> None:
    for query in dense.keys() | sparse.keys():
        only = dense.get(query, {}).keys() ^ sparse.get(query, {}).keys()
        if only or (query in dense) != (query in sparse):
            what = f"the document {min(only)!r} of the query {query!r}" if only else f"the query {query!r}"
            raise ValueError(
                f"only one of the two runs has {what}: rerank the `union` of both with each system"
            )


def _spread(run: Mapping[str, Mapping[str, float]]) -> float:
    found = [float(np.std(list(scores.values()))) for scores in run.values() if scores]
    return float(np.mean(found)) if found else 0.0
