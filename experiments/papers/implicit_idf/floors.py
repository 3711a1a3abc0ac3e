"""Rank documents by MaxSim with floors: imputed, estimated, or weighted by IDF.

Commit cfb7fa20 also has floors with a soft edge, and floors by regression.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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
TOGETHER = 4  # queries of one pass over the corpus
Estimate = Callable[[Int[torch.Tensor, " j"], Float[torch.Tensor, "j h"]], Float[np.ndarray, " j"]]


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
        floors: Mapping[str, int] | None = None,
        estimates: Mapping[str, Estimate] | None = None,
    ) -> tuple[list[str], dict[str, dict[str, list[float]]]]:
        """Return the queries with a relevant document, and measure -> system -> one value per query.

        choices: also add IDF weights for values of k'. floors: k' of more systems; one whose name begins with
        IDF is weighted. estimates: systems whose floors are functions of the query tokens' ids and vectors.
        Measures of tokens use floors["imputed"].
        """
        named = {f"k' = {k}": k for k in self.counts} | dict(floors or {})
        if choices:
            named |= {f"IDF, k' = {k}": k for k in self.counts}
        counts = sorted({TOP, *named.values()})
        runs: dict[str, Run] = {}
        of_tokens: dict[str, list[float]] = {GOLD: [], SPEARMAN: []}
        for query, ids, vectors, S in self.searched(split):
            grades = split.judgements[query]
            relevant = self.index.store.positions([id for id, grade in grades.items() if grade > 0])
            M = np.maximum.reduceat(S, self.corpus.starts, axis=1)
            at = dict(zip(counts, np.stack([floors_of(row, counts) for row in S], axis=1), strict=True))
            idf = self.counted.idf(ids).numpy()
            scores = {"MaxSim": M.mean(0), "IDF": weighted(idf, M)}
            for name, k in named.items():
                maxima = floored(M, at[k])
                scores[name] = weighted(idf, maxima) if name.startswith("IDF") else maxima.mean(0)
            for name, estimate in (estimates or {}).items():
                scores[name] = floored(M, estimate(ids, vectors)).mean(0)
            rows = self.corpus.owners[self.corpus.starts]
            for name, each in scores.items():
                runs.setdefault(name, {})[query] = best_documents(self.index, rows, each, 10)
            gold = S[:, np.isin(self.corpus.owners, relevant)] >= at[TOP][:, None]
            of_tokens[GOLD].append(float(gold.sum() / len(S) / TOP))
            if "imputed" in named:
                opposite = -at[named["imputed"]]
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
            assert tokens.ids is not None
            ids = [row[mask] for row, mask in zip(tokens.ids[:, 0], masks, strict=True)]
            yield from zip(names, ids, vectors, S, strict=True)


def floored(M: Float[np.ndarray, "j n"], floors: Float[np.ndarray, " j"]) -> Float[np.ndarray, "j n"]:
    return np.maximum(M, floors[:, None].astype(M.dtype))


def weighted(weights: Float[np.ndarray, " j"], M: Float[np.ndarray, "j n"]) -> Float[np.ndarray, " n"]:
    return (weights / max(weights.sum(), 1e-9)).astype(np.float32) @ M


def estimates_of(
    paradigm: Paradigm, sample: Corpus, texts: Sequence[str], share: float
) -> dict[str, Estimate]:
    """Estimate floors from a sample: by vocabulary entry, or by a search in it."""
    rank = max(1, round(share * len(sample.owners)))
    table = paradigm.count_floors(texts, share)

    def searched(ids: torch.Tensor, vectors: torch.Tensor) -> np.ndarray:
        return np.array([floors_of(row, [rank])[0] for row in sample.similarities(vectors)])

    return {"table": lambda ids, vectors: table.floors_of(ids).numpy(), "sample": searched}


def chosen(dev: Mapping[str, Sequence[float]], start: str) -> int:
    """Return k' of the best system on dev queries whose name begins with `start`."""
    names = [name for name in dev if name.startswith(start)]
    return int(max(names, key=lambda name: np.mean(dev[name])).rpartition(" ")[2])
