"""Fused runs: by hand, raw scores of every document, and retrievers whose runs are fused."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from paradigms.baselines.bm25 import BM25
from paradigms.data import Run, best_first
from paradigms.retrieve import Fused, fuse

A = {"q": {"x": 3.0, "y": 2.0, "z": 1.0}, "r": {"x": 5.0}}
B = {"q": {"z": 0.9, "x": 0.4, "w": -0.1}}
DENSE: Run = {"q": {"g": 4.0, "r": 5.0, "s": 1.0}}
SPARSE: Run = {"q": {"g": 2.0, "r": 0.0, "s": 3.0}}


@dataclass
class Table:
    """A retriever that knows these scores, and gives others in a search where there are such."""

    scores: Run
    searched: Run = field(default_factory=dict)

    def size_in_bytes(self) -> int:
        return 8

    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        rows = self.searched or self.scores
        return {q: best_first(rows[q], k) for q in queries}

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        return {q: {d: self.scores[q][d] for d in row} for q, row in run.items()}

    def explain(self, query: str, document: str, others: object = ()) -> list:
        return []


def test_by_hand():
    expected = {"x": 1 / 61 + 1 / 62, "z": 1 / 63 + 1 / 61, "y": 1 / 62, "w": 1 / 63}
    assert fuse([A, B])["q"] == pytest.approx(expected)
    assert list(fuse([A, B], k=2)["q"]) == ["x", "z"]
    summed = fuse([A, B], [0.5, 2.0], "sum")
    assert summed["q"] == pytest.approx({"z": 2.0, "x": 1.5, "y": 0.25, "w": 0.0})
    assert summed["r"] == {"x": 0.5}
    assert fuse([{"q": {"a": float("-inf"), "b": 1.0}}], method="sum")["q"] == {"b": 1.0, "a": 0.0}


def test_raw_scores_are_added():
    run = fuse([DENSE, SPARSE], (1.0, 2.0), "raw")
    assert list(run["q"].items()) == [("g", 8.0), ("s", 7.0), ("r", 5.0)]
    assert list(fuse([DENSE, SPARSE], (1.0, 3.0), "raw")["q"]) == ["g", "s", "r"]  # equal scores rank by id
    empty = {"q": DENSE["q"] | {"e": -np.inf}}, {"q": SPARSE["q"] | {"e": 0.0}}
    assert list(fuse(empty, (1.0, 3.0), "raw")["q"])[-1] == "e"
    assert fuse(empty, (0.0, 1.0), "raw") == {"q": {"s": 3.0, "g": 2.0, "e": 0.0, "r": 0.0}}
    with pytest.raises(ValueError, match="'s' for query 'q' is NaN"):
        fuse([DENSE, {"q": SPARSE["q"] | {"s": float("nan")}}], method="raw")


def test_a_raw_score_that_is_missing_is_not_0():
    for dense, sparse in (({"q": {"g": 4.0}}, SPARSE), (DENSE, {"q": {"g": 1.0, "r": 0.0}})):
        with pytest.raises(ValueError, match=r"document '[rs]' for query 'q'.*rerank their `union`"):
            fuse([dense, sparse], method="raw")
    for dense, sparse in ((DENSE, {}), ({}, SPARSE), ({"p": {}, **DENSE}, SPARSE)):
        with pytest.raises(ValueError, match=r"only some of the runs have the (document|query)"):
            fuse([dense, sparse], method="raw")


@pytest.mark.parametrize("method", ["rrf", "sum", "raw"])
@pytest.mark.parametrize(("score", "word"), [(math.nan, "NaN"), (math.inf, "infinite")])
def test_a_score_without_a_rank_is_refused(method: str, score: float, word: str):
    """Sorting puts NaN anywhere, and scaling takes +∞ for −∞, a document without tokens."""
    wrong = {"q": {"x": 1.0, "y": score}}
    with pytest.raises(ValueError, match=f"document 'y' for query 'q' is {word}: it has no rank"):
        fuse([{"q": {"x": 1.0, "y": 0.5}}, wrong], method=method)
    assert fuse([{"q": {"x": 1.0, "y": 0.5}}, wrong], (1.0, 0.0), method)["q"].keys() == {"x", "y"}


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, float("nan")]])
def test_wrong_weights_are_refused(weights: list[float]):
    for use in (lambda: fuse([A, B], weights), lambda: Fused([Table(A), Table(B)], weights)):
        with pytest.raises(ValueError, match="2 runs need as many weights, finite and at least 0"):
            use()


def test_retrievers_are_fused_by_their_runs():
    queries, both = {"q": "?"}, Fused([Table(A), Table(B)])
    assert both.search(queries, 3) == {"q": fuse([A, B], k=3)["q"]}
    run = {"q": dict.fromkeys("xz", 0.0)}
    assert both.rerank(queries, run)["q"] == pytest.approx({"x": 1 / 61 + 1 / 62, "z": 1 / 62 + 1 / 61})
    assert both.size_in_bytes() == 16


def test_raw_candidates_are_what_any_retriever_finds():
    """With one candidate each, g is not found; with two it is. What one system missed is scored.

    The scores of an imputing search differ from those of its reranking, which alone are added.
    """
    imputing = Table(DENSE, searched={"q": {"r": 900.0, "g": 800.0}})
    for depth, expected in ((1, {"r": 5.0, "s": 4.0}), (2, {"g": 6.0, "r": 5.0, "s": 4.0})):
        hybrid = Fused([imputing, Table(SPARSE)], method="raw", depth=depth)
        assert list(hybrid.search({"q": "?"}, depth)["q"].items()) == list(expected.items())[:depth]
        assert fuse(hybrid.runs({"q": "?"}), method="raw") == {"q": expected}


def test_the_parts_of_a_fusion_are_explained():
    bm25 = BM25({"a": "a cat", "b": "the sea"})
    assert Fused([bm25, Table(A), bm25]).explain("cat", "a") == 2 * bm25.explain("cat", "a")
