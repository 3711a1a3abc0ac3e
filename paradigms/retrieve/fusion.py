"""score(d, q) = Σ_s w_s · part_s(d, q): a fusion of several retrievers s, which may find different documents.

- rrf: part_s = 1 / (60 + rank of d in run s) (Cormack et al., "Reciprocal Rank Fusion Outperforms Condorcet
  and Individual Rank Learning Methods", SIGIR 2009). This suits scores of any scale.
- sum: part_s = (score − min) / (max − min) over the run's documents for q.
- raw: part_s = the score itself, such as rel or BM25's sum of weights. This gives a dense + λ · sparse hybrid
  (Luan et al., "Sparse, Dense, and Attentional Representations for Text Retrieval", TACL 2021, §4.1).

With rrf and sum, part_s is 0 if run s does not contain d. With raw, each retriever scores every document that
any retriever finds.

    hybrid = Fused([index, BM25(corpus)], weights=(1.0, 0.5), method="raw")
    hybrid.search({"q": "a query"}, 10)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan

from paradigms.data import Corpus, Run
from paradigms.data.collection import best_first, ranked
from paradigms.data.results import any_queries
from paradigms.explanation import Explanation
from paradigms.retrieve.retriever import Retriever

RANK = 60  # constant of Cormack et al.


@dataclass(frozen=True, eq=False)
class Fused:
    """A retriever that fuses the rankings of several retrievers over the same documents.

    weights, method: see `fuse`. depth: number of documents to take from each retriever; at least k are taken.
    """

    retrievers: Sequence[Retriever]
    weights: Sequence[float] = ()
    method: str = "rrf"
    depth: int = 100

    def __post_init__(self) -> None:
        check_weights(self.weights, len(self.retrievers), self.method)

    @property
    def corpus(self) -> Corpus | None:
        corpora = (getattr(one, "corpus", None) for one in self.retrievers)
        return next((corpus for corpus in corpora if corpus is not None), None)

    def size_in_bytes(self) -> int:
        return sum(retriever.size_in_bytes() for retriever in self.retrievers)

    @any_queries
    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        return fuse(self.runs(queries, k, progress=progress), self.weights, self.method, k)

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        runs = [retriever.rerank(queries, run, progress=progress) for retriever in self.retrievers]
        return fuse(runs, self.weights, self.method)

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        return [part for retriever in self.retrievers for part in retriever.explain(query, document, others)]

    def runs(self, queries: Mapping[str, str], k: int = 1, *, progress: bool = False) -> list[Run]:
        """Return one run per retriever, for `fuse` or `evaluate.tuning`."""
        depth = max(k, self.depth) if k > 0 else k
        runs = [retriever.search(queries, depth, progress=progress) for retriever in self.retrievers]
        if self.method != "raw":
            return runs
        candidates = union(*runs)
        return [retriever.rerank(queries, candidates, progress=progress) for retriever in self.retrievers]


def fuse(
    runs: Sequence[Run], weights: Sequence[float] = (), method: str = "rrf", k: int | None = None
) -> Run:
    """Rank each query's documents by the weighted sum of their scores, with ties broken by id.

    weights: one finite weight ≥ 0 per run; all are 1 by default. A run with weight 0 adds 0, whatever its
    scores. method: rrf, sum or raw. k: number of documents to keep per query; None keeps all. Raises
    ValueError if a weight or the method is invalid, if a score is NaN or +∞, or if the method is raw and a
    run lacks a document. −∞ is the score of a document without tokens.

    >>> fuse([{"q": {"x": 9.0, "y": 7.0}}, {"q": {"y": 0.2, "z": 0.1}}], method="sum")
    {'q': {'x': 1.0, 'y': 1.0, 'z': 0.0}}
    """
    weights = check_weights(weights, len(runs), method)
    if method == "raw":
        check_same(runs)
    fused: Run = {query: {} for run in runs for query in run}
    for run, weight in zip(runs, weights, strict=True):
        for query, scores in run.items():
            wrong = next((d for d, score in scores.items() if weight and not score < inf), None)
            if wrong is not None:
                score = "NaN" if isnan(scores[wrong]) else "infinite"
                where = f"the score of document {wrong!r} for query {query!r}"
                raise ValueError(f"{where} is {score}: it has no rank")
            summed = fused[query]
            for document, value in METHODS[method](scores).items():
                summed[document] = summed.get(document, 0.0) + (weight * value if weight else 0.0)
    return {query: ranked(query, scores, k) for query, scores in fused.items()}


def check_weights(weights: Sequence[float], count: int, method: str) -> Sequence[float]:
    """Return the weights of `count` runs, all 1 by default.

    Raises ValueError if a weight, the number of weights or the method is invalid.
    """
    if method not in METHODS:
        raise ValueError(f"fusion must be one of {', '.join(METHODS)}, got {method!r}")
    weights = tuple(weights) or (1.0,) * count
    if len(weights) != count or not all(isfinite(w) and w >= 0 for w in weights):
        raise ValueError(f"{count} runs need as many weights, finite and at least 0, not {list(weights)}")
    return weights


def check_same(runs: Sequence[Run]) -> None:
    """Raise ValueError unless all runs contain the same queries and documents."""
    for query, documents in union(*runs).items():
        for run in runs:
            lacking = documents.keys() - run.get(query, {}).keys()
            if lacking or query not in run:
                what = f"document {min(lacking)!r} for query {query!r}" if lacking else f"query {query!r}"
                raise ValueError(f"only some of the runs have the {what}: rerank their `union` by all")


def union(*runs: Run) -> Run:
    """Map each query to every document that any run returns for it, with score 0, for reranking."""
    queries = dict.fromkeys(query for run in runs for query in run)
    return {
        query: dict.fromkeys((document for run in runs for document in run.get(query, {})), 0.0)
        for query in queries
    }


def _ranks(scores: Mapping[str, float]) -> dict[str, float]:
    return {document: 1 / (RANK + rank) for rank, document in enumerate(best_first(scores), 1)}


def _scaled(scores: Mapping[str, float]) -> dict[str, float]:
    """Scale scores to [0, 1], or to 1 if all are equal; −inf (a document without tokens) becomes 0."""
    finite = [score for score in scores.values() if isfinite(score)]
    low = min(finite, default=0.0)
    high = max(finite, default=0.0)
    span = high - low
    return {d: ((s - low) / span if span else 1.0) if isfinite(s) else 0.0 for d, s in scores.items()}


METHODS: dict[str, Callable[[Mapping[str, float]], Mapping[str, float]]]
METHODS = {"rrf": _ranks, "sum": _scaled, "raw": lambda scores: scores}
