"""Rank documents by MaxSim with floors: imputed, from a table, weighted by IDF, and with a soft edge."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
FITTED = 200  # texts whose tokens it is fitted to
GROUP = 128  # query tokens compared at once
BLOCK = 1 << 16  # document tokens compared at once


Estimate = Callable[[Int[torch.Tensor, " j"], Float[torch.Tensor, "j h"]], Float[np.ndarray, " j"]]


class Floor(NamedTuple):
    """A floor at the k'-th best similarity, with an edge of width t; 0 is a hard floor."""

    k: int
    edge: float = 0.0


@dataclass(frozen=True)
class Corpus:
    """The token vectors of an index's documents that have tokens."""

    vectors: Float[np.ndarray, "t h"]
    starts: Int[np.ndarray, " n"]  # each document's first token
    rows: Int[np.ndarray, " n"]  # its position in the index

    @classmethod
    def of(cls, index: Index) -> "Corpus":
        rows = index.store.with_tokens()
        return cls(index.store.columns["vectors"], index.store.offsets[rows], rows)

    @property
    def tokens(self) -> int:
        return len(self.vectors)

    def only(self, rows: Int[np.ndarray, " n"]) -> "Corpus":
        """Return a corpus of the documents at `rows`, ascending."""
        ends = np.append(self.starts[1:], self.tokens)
        lengths = (ends - self.starts)[chosen := np.isin(self.rows, rows)]
        vectors = self.vectors[np.repeat(chosen, ends - self.starts)]
        return Corpus(vectors, np.cumsum(lengths) - lengths, self.rows[chosen])

    def similarities(self, vectors: Float[torch.Tensor, "j h"]) -> Float[np.ndarray, "j t"]:
        """Compute the similarities of query tokens with all document tokens."""
        S = np.empty((len(vectors), self.tokens), np.float32)
        for start in range(0, self.tokens, BLOCK):
            block = torch.tensor(self.vectors[start : start + BLOCK]).float()
            S[:, start : start + BLOCK] = (vectors @ block.T).numpy()
        return S


def floors_of(row: Float[np.ndarray, " t"], counts: Sequence[int]) -> Float[np.ndarray, " k"]:
    """Return the k'-th largest value for each k' in counts, ascending; the least if there are fewer values.

    A sample gives a threshold, so that only little more than the largest k' values are sorted.
    """
    ranks = np.minimum(counts, len(row))
    most = int(ranks[-1])
    top = row
    if 4 * most < len(row):
        sample = np.sort(row[::37])
        top = row[row >= sample[-min(len(sample), 10 + 4 * most // 3 // 37)]]
    if len(top) < most:
        top = row
    return np.sort(top)[-ranks]


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
        begins with IDF is weighted.
        estimates: systems whose floors are functions of the query tokens' ids and vectors. Measures of tokens
        use floors["imputed"].
        """
        judgements = {
            q: judged for q, judged in split.judgements.items() if any(g > 0 for g in judged.values())
        }
        named = dict(floors or {})
        for n, k in enumerate(self.counts):
            named[f"k' = {k}"] = Floor(k)
            if choices:
                named[f"IDF, k' = {k}"] = Floor(k)
                named |= {f"softplus, k' = {k}, edge = {t}": Floor(k, t) for t in EDGES if n % 2 == 0}
        counts = sorted({TOP, *(floor.k for floor in named.values())})
        runs: dict[str, Run] = {}
        values: dict[str, dict[str, list[float]]] = {GOLD: {TOKENS: []}, SPEARMAN: {TOKENS: []}}
        gold_of = self.gold(judgements)
        for query, ids, vectors, S in self.queries({name: split.queries[name] for name in judgements}):
            M = np.maximum.reduceat(S, self.corpus.starts, axis=1)
            at = dict(zip(counts, np.stack([floors_of(row, counts) for row in S], axis=1), strict=True))
            idf = self.counted.idf(ids).numpy()
            equal = np.ones(len(ids))
            weights = {name: idf if name.startswith("IDF") else equal for name in (*named, "IDF")}
            scores = {"MaxSim": M.mean(0), "IDF": weighted(idf, M)}
            scores |= {
                name: weighted(weights[name], floored(M, at[floor.k], floor.edge))
                for name, floor in named.items()
            }
            for name, estimate in (estimates or {}).items():
                scores[name] = floored(M, estimate(ids, vectors), 0.0).mean(0)
            for name, each in scores.items():
                best = best_documents(self.index, self.corpus.rows, each, 10)
                runs.setdefault(name, {})[query] = best
            values[GOLD][TOKENS].append(
                float((S[:, gold_of[query]] >= at[TOP][:, None]).sum() / len(S) / TOP)
            )
            if "imputed" in named:
                values[SPEARMAN][TOKENS].append(rank_correlation(idf, -at[named["imputed"].k]))
        values[NDCG] = {
            name: per_query(run, judgements, (NDCG,)).values[NDCG].tolist() for name, run in runs.items()
        }
        return list(judgements), values

    def gold(self, judgements: Mapping[str, Mapping[str, float]]) -> dict[str, Int[np.ndarray, " t"]]:
        """Return the tokens of each query's relevant documents."""
        ends = np.append(self.corpus.starts[1:], self.corpus.tokens)
        place = {row: n for n, row in enumerate(self.corpus.rows.tolist())}
        gold = {}
        for query, judged in judgements.items():
            rows = self.index.store.positions([id for id, grade in judged.items() if grade > 0])
            spans = [
                np.arange(self.corpus.starts[n], ends[n]) for row in rows if (n := place.get(row)) is not None
            ]
            gold[query] = np.concatenate([np.zeros(0, np.int64), *spans])
        return gold

    def queries(
        self, texts: Mapping[str, str]
    ) -> Iterator[tuple[str, Int[torch.Tensor, " j"], Float[torch.Tensor, "j h"], Float[np.ndarray, "j t"]]]:
        """Yield each query with its tokens' ids, vectors and similarities with all document tokens."""
        encoded: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        names = list(texts)
        for name in names:
            tokens = self.paradigm.encode_queries([texts[name]]).to("cpu")
            assert tokens.ids is not None
            mask = tokens.mask[0, 0]
            encoded.append((name, tokens.ids[0, 0][mask], tokens.vectors[0, 0][mask].float()))
            if sum(len(ids) for _, ids, _ in encoded) >= GROUP or name == names[-1]:
                S = self.corpus.similarities(torch.cat([vectors for _, _, vectors in encoded]))
                stop = 0
                for query, ids, vectors in encoded:
                    start, stop = stop, stop + len(ids)
                    yield query, ids, vectors, S[start:stop]
                encoded = []


def floored(
    M: Float[np.ndarray, "j n"], floors: Float[np.ndarray, " j"], edge: float
) -> Float[np.ndarray, "j n"]:
    """Return max(M, τ), or τ + t·softplus((M − τ)/t) with an edge t above 0."""
    floors = floors[:, None].astype(M.dtype)
    if not edge:
        return np.maximum(M, floors)
    t = M.dtype.type(edge)
    steps = (M - floors) / t
    return floors + t * (np.maximum(steps, 0) + np.log1p(np.exp(-np.abs(steps))))


def weighted(weights: Float[np.ndarray, " j"], M: Float[np.ndarray, "j n"]) -> Float[np.ndarray, " n"]:
    return (weights / max(weights.sum(), 1e-9)).astype(np.float32) @ M


def rank_correlation(x: Float[np.ndarray, " j"], y: Float[np.ndarray, " j"]) -> float:
    """Return Spearman's correlation; 0 if a query has too few tokens to have one."""
    if len(np.unique(x)) < 2 or len(np.unique(y)) < 2:
        return 0.0
    return float(spearmanr(x, y).statistic)


def estimates_of(
    paradigm: Paradigm, sample: Corpus, texts: Sequence[str], share: float
) -> dict[str, Estimate]:
    """Estimate floors from a sample of the corpus, at the similarity that `share` of its tokens reach.

    table: by vocabulary entry. regression: linear in the query token's vector, fitted to the sample's texts
    as queries. sample: the quantile of the sample, by a token search in it.
    """
    rank = max(1, round(share * sample.tokens))
    table = paradigm.count_floors(texts, share)

    def searched(ids: torch.Tensor, vectors: torch.Tensor) -> np.ndarray:
        return np.array([floors_of(row, [rank])[0] for row in sample.similarities(vectors)])

    rows = [paradigm.encode_queries([text]).to("cpu") for text in texts[:FITTED]]
    X = torch.cat([row.vectors[0, 0][row.mask[0, 0]].float() for row in rows])
    y = np.concatenate([searched(part, part) for part in X.split(GROUP)])
    A = np.column_stack([X.numpy(), np.ones(len(X))]).astype(np.float64)
    w = np.linalg.solve(A.T @ A + RIDGE * len(A) * np.eye(A.shape[1]), A.T @ y)
    return {
        "table": lambda ids, vectors: table.floors_of(ids).numpy(),
        "regression": lambda ids, vectors: vectors.numpy() @ w[:-1] + w[-1],
        "sample": searched,
    }


def chosen(dev: Mapping[str, Sequence[float]], start: str) -> Floor:
    """Return the floor of the best system on dev queries whose name begins with `start`."""
    names = [name for name in dev if name.startswith(start)]
    best = max(names, key=lambda name: np.mean(dev[name]))
    parts = dict(part.split(" = ") for part in best.split(", ") if " = " in part)
    return Floor(int(parts["k'"]), float(parts.get("edge", 0)))
