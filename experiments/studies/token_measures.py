"""What a model's token retrieval finds, and what documents' scores keep of it: everything per query.

Lee et al. 2023 (arXiv:2304.01982), Figures 2, 4 and 5, Tables 1, 5 and 6. One exact token search with the
largest k' serves every smaller one: its first k' tokens are that search's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from paradigms import Paradigm
from paradigms.core import Tokens
from paradigms.data import Corpus, Run, Split
from paradigms.evaluate import per_query
from paradigms.impute import retrieved_rel
from paradigms.index import ExactIndex
from paradigms.recipe import Recipe
from paradigms.scoring.stored import score
from theory.token_retrieval import scoring_cost

RANKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # at which P(gold) and P(lexically equal) are kept
TOP = 100  # first ranks over which they are also averaged, and whose scores are counted
EDGES = np.linspace(-1, 1, 101)  # of the histogram of cosines
MEASURES = ("RR@10", "nDCG@10", "R@100")
DEPTH = 100  # documents that a search returns
QUERIES = 32  # whose tokens search at once
DOCUMENTS = 1024  # whose vectors are gathered at once
REPEATS = 3  # of everything timed; the fastest counts
CONTEXT = 6  # tokens on each side of a retrieved one that the examples show

Measured = dict[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Retrieved:
    """The document tokens that every token of a query retrieved, best first."""

    query: str  # its id
    tokens: Tokens  # Q, axes [1, 1, j, h]
    ids: np.ndarray  # [j] vocabulary ids
    scores: Float[Tensor, "j k"]
    rows: np.ndarray  # [j, k] places among the index's tokens
    owners: np.ndarray  # [j, k] places of their documents

    def candidates(self, k: int) -> np.ndarray:
        """The places of the documents that a search with k' = k finds (Eq. 3)."""
        return np.unique(self.owners[:, :k])


def token_search(
    paradigm: Paradigm, index: ExactIndex, queries: Mapping[str, str], k: int
) -> Iterator[Retrieved]:
    """Every query's retrieved tokens, the k best of the corpus for each of its own."""
    names = list(queries)
    for start in range(0, len(names), QUERIES):
        part = names[start : start + QUERIES]
        encoded = paradigm.encode_queries([queries[name] for name in part])
        assert encoded.ids is not None
        mask = encoded.mask[:, 0]
        found, places = index.token_search(encoded.vectors[:, 0][mask], k)
        scores, order = found.cpu().sort(1, descending=True)
        rows = places.cpu().gather(1, order).numpy()
        owners = np.searchsorted(index.offsets, rows, side="right") - 1
        stop = 0
        for n, (name, length) in enumerate(zip(part, mask.sum(1).tolist(), strict=True)):
            own, stop = slice(stop, stop + length), stop + length
            ids = encoded.ids[n, 0][mask[n]].cpu().numpy()
            yield Retrieved(name, encoded[n : n + 1], ids, scores[own], rows[own], owners[own])


def imputed_run(found: Retrieved, index: ExactIndex, k: int, imputation: str = "kth") -> dict[str, float]:
    """The `DEPTH` best documents by f_XTR' with k' = k (Eq. 4), best first."""
    if not len(found.ids):
        return {}
    candidates, rel = imputed_rel(found, index, k, imputation)
    return _best({index.ids[n]: score for n, score in zip(candidates.tolist(), rel.tolist(), strict=True)})


def imputed_rel(
    found: Retrieved, index: ExactIndex, k: int, imputation: str = "kth"
) -> tuple[Tensor, Tensor]:
    """The places of the candidates and f_XTR' of each with k' = k (Eq. 4)."""
    owners = torch.from_numpy(found.owners[:, :k])
    return retrieved_rel(found.scores[:, :k], owners, int(index.offsets[-1]), imputation)


def gathering(paradigm: Paradigm) -> Recipe:
    """f_ColBERT (Eq. 1), whatever the paradigm was trained with."""
    return paradigm.with_alignment("query_to_document", "query_tokens").recipe


def gathered_runs(
    found: Retrieved, index: ExactIndex, recipe: Recipe, search_tokens: Sequence[int]
) -> dict[int, dict[str, float]]:
    """k' -> the `DEPTH` best of the documents that a search with k' finds, by all of their tokens."""
    if not len(found.ids):
        return {k: {} for k in search_tokens}
    candidates = {k: [index.ids[n] for n in found.candidates(k)] for k in search_tokens}
    (scores,) = index.rerank_tokens(recipe, found.tokens, [candidates[max(search_tokens)]])
    return {k: _best({id: scores[id] for id in ids}) for k, ids in candidates.items()}


def stored_ids(paradigm: Paradigm, index: ExactIndex, corpus: Corpus) -> np.ndarray:
    """The vocabulary id of every token of the index, in its order.

    ValueError where the corpus does not give the tokens that the index has.
    """
    parts = [np.zeros(0, dtype=np.int32)]
    for start in range(0, len(index.ids), DOCUMENTS):
        texts = [corpus[corpus.position(id)] for id in index.ids[start : start + DOCUMENTS]]
        batch = paradigm.encoder.tokenize(texts, "document")
        parts.append(batch.input_ids[batch.counts].numpy().astype(np.int32))
    ids = np.concatenate(parts)
    if len(ids) != index.offsets[-1]:
        raise ValueError(f"the corpus has {len(ids)} tokens and {index.folder} {index.offsets[-1]}")
    return ids


def measure(
    paradigm: Paradigm,
    index: ExactIndex,
    corpus: Corpus,
    test: Split,
    search_tokens: Sequence[int],
    table_tokens: int,
    timed: int,
    examples: int,
) -> Measured:
    """Of a trained model, one value per test query: token retrieval, scores against k', imputations, costs.

    search_tokens: the k' of Figure 5; table_tokens: one of them, of Tables 1 and 5; timed: queries of
    Table 1; examples: queries of Table 6.
    """
    ids = stored_ids(paradigm, index, corpus)
    relevant = {
        query: np.array([index.position(d) for d, grade in judged.items() if grade > 0], dtype=np.int64)
        for query, judged in test.judgements.items()
    }
    queries = {name: test.queries[name] for name, gold in relevant.items() if len(gold)}
    judgements = {name: test.judgements[name] for name in queries}
    most = max(*search_tokens, TOP)
    found = _TokenMeasures()
    imputing: dict[int, Run] = {k: {} for k in search_tokens}
    by_imputation: dict[str, Run] = {name: {} for name in IMPUTATIONS}
    gathered: dict[int, Run] = {k: {} for k in search_tokens}
    candidates: dict[int, list[int]] = {k: [] for k in search_tokens}
    shown, costs = [], []
    for n, of in enumerate(token_search(paradigm, index, queries, most)):
        gold = np.isin(of.owners, relevant[of.query])
        equal = ids[of.rows] == of.ids[:, None]
        found.add(of.scores.numpy(), gold, equal)
        for k, run in gathered_runs(of, index, gathering(paradigm), search_tokens).items():
            gathered[k][of.query] = run
            imputing[k][of.query] = imputed_run(of, index, k)
            candidates[k].append(len(of.candidates(k)))
        for name in IMPUTATIONS:
            by_imputation[name][of.query] = imputed_run(of, index, table_tokens, name)
        if n < timed and len(of.ids):
            costs.append(scoring_stage(paradigm, index, of, queries[of.query], table_tokens))
        if n < examples:
            shown += _examples(paradigm, index, ids, of, queries[of.query], gold, equal)

    def values(run: Run) -> dict[str, list[float]]:
        return {name: of.tolist() for name, of in per_query(run, judgements, MEASURES).values.items()}

    return {
        "queries": list(queries),
        "tokens per document": len(ids) / max(1, len(index.ids)),
        "retrieval": found.result(),
        "impute": {k: values(run) for k, run in imputing.items()},
        "gather": {k: values(run) for k, run in gathered.items()},
        "candidates": candidates,
        "imputations": {name: values(run) for name, run in by_imputation.items()},
        "costs": {name: [cost[name] for cost in costs] for name in costs[0]} if costs else {},
        "examples": shown,
    }


class _TokenMeasures:
    """Figures 2 and 4 over queries: means over each query's tokens, and counts of scores."""

    def __init__(self) -> None:
        self.ranked: dict[str, list[list[float]]] = {"gold": [], "lexical": []}
        self.means: dict[str, list[float]] = {"gold": [], "lexical": [], "score of others": []}
        self.counts = {"gold": np.zeros(len(EDGES) - 1, int), "others": np.zeros(len(EDGES) - 1, int)}

    def add(self, scores: np.ndarray, gold: np.ndarray, equal: np.ndarray) -> None:
        """One query's retrieval, [j, k]."""
        ranks = [rank for rank in RANKS if rank <= scores.shape[1]]
        for name, hit in (("gold", gold), ("lexical", equal)):
            self.ranked[name].append([_mean(hit[:, rank - 1]) for rank in ranks])
            self.means[name].append(_mean(hit[:, :TOP]))
        top, own = scores[:, :TOP].clip(-1, 1), gold[:, :TOP]
        self.means["score of others"].append(_mean(top[~own]))
        for name, chosen in (("gold", top[own]), ("others", top[~own])):
            self.counts[name] += np.histogram(chosen, EDGES)[0]

    def result(self) -> Measured:
        ranks = RANKS[: len(self.ranked["gold"][0])] if self.ranked["gold"] else ()
        by_rank = {
            name: dict(zip(ranks, map(list, zip(*rows, strict=True)), strict=True))
            for name, rows in self.ranked.items()
        }
        return {
            "by rank": by_rank,
            "top": self.means,
            "histogram": {name: counts.tolist() for name, counts in self.counts.items()},
        }


# --- Table 1 ----------------------------------------------------------------------------------------


def scoring_stage(
    paradigm: Paradigm, index: ExactIndex, found: Retrieved, text: str, k: int
) -> dict[str, float]:
    """Milliseconds and FLOPs of one query's stages with k' = k: encoding, token search, and each scoring.

    FLOPs are those of appendix B, counted consistently (`theory.token_retrieval.scoring_cost`) for the
    candidates that there are; "paper" is the paper's own count at these sizes. Scoring begins with the
    retrieved tokens and ends with the best documents.
    """
    full, wanted = gathering(paradigm), min(k, int(index.offsets[-1]))
    vectors = found.tokens.vectors[0, 0][found.tokens.mask[0, 0]]

    def impute() -> Tensor:
        rel = imputed_rel(found, index, k)[1]
        return rel.topk(min(DEPTH, len(rel))).values

    def gather() -> Tensor:
        candidates = found.candidates(k)
        parts = [candidates[start : start + DOCUMENTS] for start in range(0, len(candidates), DOCUMENTS)]
        device = vectors.device
        rel = torch.cat([score(full, index.tokens(part.tolist(), device), found.tokens)[0] for part in parts])
        return rel.topk(min(DEPTH, len(rel))).values

    candidates = found.candidates(k)
    lengths = np.diff(index.offsets)[candidates]
    with torch.inference_mode():
        stages = {
            "encode ms": _fastest(lambda: paradigm.encode_queries([text])),
            "search ms": _fastest(lambda: index.token_search(vectors, wanted)),
            "impute ms": _fastest(impute),
            "gather ms": _fastest(gather),
        }
    sizes: dict[str, Any] = {
        "query_tokens": len(found.ids),
        "retrieved_tokens": wanted,
        "document_tokens": float(lengths.mean()),
        "dimension": vectors.shape[1],
    }
    per_candidate = len(found.ids) * wanted / len(candidates)
    counted = scoring_cost(**sizes, tokens_per_candidate=per_candidate)
    paper = scoring_cost(**sizes, consistent=False)
    return stages | {
        "query tokens": float(len(found.ids)),
        "candidates": counted["candidates"],
        "tokens per document": float(lengths.mean()),
        "impute FLOPs": counted["xtr"],
        "gather FLOPs": counted["colbert"],
        "gathered bytes": counted["gathered_bytes"],
        "paper impute FLOPs": paper["xtr"],
        "paper gather FLOPs": paper["colbert"],
    }


def _fastest(function: Callable[[], Result]) -> float:
    """Milliseconds of the fastest of `REPEATS` calls."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


# --- Table 6 ----------------------------------------------------------------------------------------


def _examples(
    paradigm: Paradigm,
    index: ExactIndex,
    ids: np.ndarray,
    found: Retrieved,
    text: str,
    gold: np.ndarray,
    equal: np.ndarray,
) -> list[Measured]:
    """For each token of a query its first five retrieved tokens in their documents, and its shares."""
    tokenizer = paradigm.encoder.tokenizer
    shown = []
    for j, token in enumerate(found.ids.tolist()):
        top = []
        for rank in range(min(5, found.rows.shape[1])):
            row, owner = int(found.rows[j, rank]), int(found.owners[j, rank])
            begin, end = (
                max(index.offsets[owner], row - CONTEXT),
                min(index.offsets[owner + 1], row + CONTEXT + 1),
            )
            before, after = (tokenizer.decode(ids[a:b].tolist()) for a, b in ((begin, row), (row + 1, end)))
            word = tokenizer.convert_ids_to_tokens([int(ids[row])])[0]
            top.append(
                {
                    "rank": rank + 1,
                    "score": float(found.scores[j, rank]),
                    "token": word,
                    "context": f"{before} ⟨{word}⟩ {after}".strip(),
                    "relevant": bool(gold[j, rank]),
                }
            )
        shown.append(
            {
                "query": text,
                "place": j,
                "token": tokenizer.convert_ids_to_tokens([token])[0],
                "lexical": _mean(equal[j, :TOP]),
                "gold": _mean(gold[j, :TOP]),
                "top": top,
            }
        )
    return shown


def _best(scores: Mapping[str, float]) -> dict[str, float]:
    order = sorted(scores, key=lambda id: (-scores[id], id))[:DEPTH]
    return {id: scores[id] for id in order}


def _mean(values: np.ndarray) -> float:
    """0 where there is nothing, as of a query without tokens."""
    return float(values.mean()) if values.size else 0.0
