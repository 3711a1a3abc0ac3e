"""Rank documents by MaxSim with floors: imputed, estimated, weighted by IDF, and with a soft edge."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from papers.lee2023.token_measures import GOLD, TOP, best_documents
from scipy.stats import spearmanr

from paradigms import Paradigm
from paradigms.data import Run, Split
from paradigms.evaluate import per_query
from paradigms.find import Index
from paradigms.statistics import Statistics

NDCG = "nDCG@10"
SPEARMAN = "Spearman of IDF and −τ"
TOKENS = "tokens"  # condition of measures of a query's tokens
EDGES = (0.02, 0.05, 0.1)  # t of the soft edge t·softplus((M − τ)/t), in units of cosine
RIDGE = 1e-3  # of the regression from vectors to floors, per token
FITTED = 400  # texts whose tokens it is fitted to
TOGETHER = 4  # queries of one pass over the corpus
Estimate = Callable[[Int[torch.Tensor, " j"], Float[torch.Tensor, "j h"]], Float[np.ndarray, " j"]]


class Floor(NamedTuple):
    """A floor at the k'-th best similarity, with an edge of width t; 0 is a hard floor."""

    k: int
    edge: float = 0.0


@dataclass(frozen=True)
class Corpus:
    """The token vectors of an index in float32, and the ascending positions of their documents."""

    vectors: Float[torch.Tensor, "t h"]
    owners: Int[np.ndarray, " t"]

    @classmethod
    def of(cls, index: Index) -> "Corpus":
        lengths = np.diff(index.store.offsets)
        vectors = torch.from_numpy(index.store.columns["vectors"].astype(np.float32, copy=False))
        return cls(vectors, np.repeat(np.arange(len(lengths)), lengths))

    def only(self, rows: Int[np.ndarray, " n"]) -> "Corpus":
        """Return a corpus of the documents at `rows`."""
        mask = np.isin(self.owners, rows)
        return Corpus(self.vectors[torch.from_numpy(mask)], self.owners[mask])

    @cached_property
    def starts(self) -> Int[np.ndarray, " n"]:
        """Each document's first token."""
        return np.flatnonzero(np.diff(self.owners, prepend=-1))

    def similarities(self, vectors: Float[torch.Tensor, "j h"]) -> Float[np.ndarray, "j t"]:
        return (vectors @ self.vectors.T).numpy()


def floors_of(row: Float[np.ndarray, " t"], counts: Sequence[int]) -> Float[np.ndarray, " k"]:
    """Return the k'-th largest value for each k' in counts; the least if there are fewer values."""
    ranks = np.minimum(counts, len(row))
    most = int(ranks[-1])
    return np.sort(np.partition(row, len(row) - most)[-most:])[-ranks]


@dataclass(frozen=True)
class Ranker:
    """Rank a corpus's documents for queries, with floors at the k'-th similarity for each k' in `counts`."""

    paradigm: Paradigm
    index: Index
    corpus: Corpus
    counted: Statistics
    counts: Sequence[int]

    def run(
        self,
        split: Split,
        *,
        choices: bool = False,
        floors: Mapping[str, Floor] | None = None,
        estimates: Mapping[str, Estimate] | None = None,
    ) -> tuple[list[str], dict[str, dict[str, list[float]]]]:
        """Return the queries with a relevant document, and measure -> system -> one value per query.

        choices: also add IDF weights and soft edges for values of k'. floors: more systems; one whose name
        begins with IDF is weighted. estimates: systems whose floors are functions of the query tokens' ids
        and vectors. Measures of tokens use floors["imputed"].
        """
        named = dict(floors or {})
        for n, k in enumerate(self.counts):
            named[f"k' = {k}"] = Floor(k)
            if choices:
                named[f"IDF, k' = {k}"] = Floor(k)
                named |= {f"softplus, k' = {k}, edge = {t}": Floor(k, t) for t in EDGES if n % 2 == 0}
        counts = sorted({TOP, *(floor.k for floor in named.values())})
        runs: dict[str, Run] = {}
        of_tokens: dict[str, list[float]] = {GOLD: [], SPEARMAN: []}
        for query, ids, vectors, S in self.searched(split):
            grades = split.judgements[query]
            relevant = self.index.store.positions([id for id, grade in grades.items() if grade > 0])
            M = np.maximum.reduceat(S, self.corpus.starts, axis=1)
            at = dict(zip(counts, np.stack([floors_of(row, counts) for row in S], axis=1), strict=True))
            idf = self.counted.idf(ids).numpy()
            scores = {"MaxSim": M.mean(0), "IDF": weighted(idf, M)}
            for name, floor in named.items():
                maxima = floored(M, at[floor.k], floor.edge)
                scores[name] = weighted(idf, maxima) if name.startswith("IDF") else maxima.mean(0)
            for name, estimate in (estimates or {}).items():
                scores[name] = floored(M, estimate(ids, vectors)).mean(0)
            rows = self.corpus.owners[self.corpus.starts]
            for name, each in scores.items():
                runs.setdefault(name, {})[query] = best_documents(self.index, rows, each, 10)
            gold = S[:, np.isin(self.corpus.owners, relevant)] >= at[TOP][:, None]
            of_tokens[GOLD].append(float(gold.sum() / len(S) / TOP))
            if "imputed" in named:
                opposite = -at[named["imputed"].k]
                constant = min(len(np.unique(idf)), len(np.unique(opposite))) < 2  # too few tokens
                of_tokens[SPEARMAN].append(0.0 if constant else float(spearmanr(idf, opposite).statistic))
        queries = list(runs["MaxSim"])
        judgements = {query: split.judgements[query] for query in queries}
        values = {measure: {TOKENS: numbers} for measure, numbers in of_tokens.items()}
        values[NDCG] = {
            name: per_query(run, judgements, (NDCG,)).values[NDCG].tolist() for name, run in runs.items()
        }
        return queries, values

    def searched(self, split: Split) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, np.ndarray]]:
        """Yield each query with a relevant document, with its tokens' ids [j], vectors [j, h] and S [j, t].

        One pass over the corpus serves several queries, because reading it takes most of the time.
        """
        judged = [query for query, grades in split.judgements.items() if max(grades.values(), default=0) > 0]
        for start in range(0, len(judged), TOGETHER):
            names = judged[start : start + TOGETHER]
            tokens = self.paradigm.encode_queries([split.queries[name] for name in names]).to("cpu")
            masks = tokens.mask[:, 0]
            vectors = [row[mask].float() for row, mask in zip(tokens.vectors[:, 0], masks, strict=True)]
            S = np.split(self.corpus.similarities(torch.cat(vectors)), np.cumsum([*map(len, vectors)])[:-1])
            ids = [row[mask] for row, mask in zip(tokens.ids[:, 0], masks, strict=True)]
            yield from zip(names, ids, vectors, S, strict=True)


def floored(
    M: Float[np.ndarray, "j n"], floors: Float[np.ndarray, " j"], edge: float = 0.0
) -> Float[np.ndarray, "j n"]:
    """Return max(M, τ), or τ + t·softplus((M − τ)/t) with an edge t above 0."""
    floors = floors[:, None].astype(M.dtype)
    if not edge:
        return np.maximum(M, floors)
    t = M.dtype.type(edge)
    return floors + t * np.logaddexp(0, (M - floors) / t)


def weighted(weights: Float[np.ndarray, " j"], M: Float[np.ndarray, "j n"]) -> Float[np.ndarray, " n"]:
    return (weights / max(weights.sum(), 1e-9)).astype(np.float32) @ M


def estimates_of(
    paradigm: Paradigm, sample: Corpus, texts: Sequence[str], share: float
) -> dict[str, Estimate]:
    """Estimate floors from a sample: by vocabulary entry, linear in the vector, or by a search in it."""
    rank = max(1, round(share * len(sample.owners)))
    table = paradigm.count_floors(texts, share)

    def searched(ids: torch.Tensor, vectors: torch.Tensor) -> np.ndarray:
        return np.array([floors_of(row, [rank])[0] for row in sample.similarities(vectors)])

    encoded = [paradigm.encode_queries([text]).to("cpu") for text in texts[:FITTED]]
    queries = [tokens.vectors[0, 0][tokens.mask[0, 0]].float() for tokens in encoded]
    y = np.concatenate([searched(vectors, vectors) for vectors in queries])
    A = np.pad(torch.cat(queries).double().numpy(), ((0, 0), (0, 1)), constant_values=1)
    w = np.linalg.solve(A.T @ A + RIDGE * len(A) * np.eye(A.shape[1]), A.T @ y)
    return {
        "table": lambda ids, vectors: table.floors_of(ids).numpy(),
        "regression": lambda ids, vectors: vectors.numpy() @ w[:-1] + w[-1],
        "sample": searched,
    }


def chosen(dev: Mapping[str, Sequence[float]], start: str) -> Floor:
    """Return the floor of the best system on dev queries whose name begins with `start`."""
    names = [name for name in dev if name.startswith(start)]
    choice = max(names, key=lambda name: np.mean(dev[name]))
    parts = dict(part.split(" = ") for part in choice.split(", ") if " = " in part)
    return Floor(int(parts["k'"]), float(parts.get("edge", 0)))
