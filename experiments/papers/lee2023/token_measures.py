"""Measure which tokens a model retrieves, and how documents score with them: one value per test query.

Lee et al. 2023 (arXiv:2304.01982), Figures 2 and 4 to 7, Tables 1 and 5. One exact token search with the
largest k' serves every smaller k': the results for a smaller k' are the first k' tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from timeit import repeat

import numpy as np
import torch
from jaxtyping import Float, Int
from studies.pages import Measured
from torch import Tensor

from paradigms import Paradigm
from paradigms.align import QueryToDocument
from paradigms.core import Tokens
from paradigms.data import Corpus, Run, Split
from paradigms.evaluate import per_query
from paradigms.find import Index
from paradigms.find.scan import Exact
from paradigms.impute import IMPUTATIONS, retrieved_rel
from paradigms.recipe import Recipe
from theory.token_retrieval import scoring_cost

RANKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # ranks at which to keep P(gold) and P(lexically equal)
TOP = 100  # number of first ranks over which these probabilities and the scores are averaged
MEASURES = ("RR@10", "nDCG@10", "R@100")
DEPTH = 100  # documents that a search returns
DEEP = 1000  # documents for R@1000, in collections with more documents
QUERIES = 32  # queries whose tokens are searched at once
DOCUMENTS = 1024  # documents tokenised at once
# A query of SciFact and the token of Table E.4: what share of the first TOP tokens is lexically equal to it?
EXAMPLE = "women with a higher birth weight are more likely to develop breast cancer later in life.", "later"
TIMED, REPEATS = 20, 3  # timed queries, and runs per query, of which the fastest counts


@dataclass(frozen=True)
class Retrieved:
    """The document tokens that each token of a query retrieved, best first."""

    query: str  # id of the query
    tokens: Tokens  # Q, axes [1, 1, j, h]
    ids: Int[np.ndarray, " j"]  # vocabulary ids of the query tokens
    scores: Float[Tensor, "j k"]
    rows: Int[np.ndarray, "j k"]  # positions of the retrieved tokens in the index
    owners: Int[np.ndarray, "j k"]  # positions of the tokens' documents
    whole: Float[np.ndarray, " n"]  # f_ColBERT of every document, if `gather` is set


def token_search(
    paradigm: Paradigm, index: Index, queries: Mapping[str, str], k: int, *, gather: bool = False
) -> Iterator[Retrieved]:
    """Retrieve, for each token of every query, the k best tokens of the corpus.

    gather: whether to also score every document with all of its tokens.
    """
    names, whole, recipe = list(queries), np.zeros(0, np.float32), gathering(paradigm)
    for start in range(0, len(names), QUERIES):
        part = names[start : start + QUERIES]
        encoded = paradigm.encode_queries([queries[name] for name in part])
        assert encoded.ids is not None
        mask = encoded.mask[:, 0]
        with torch.inference_mode():
            similarities, places = Exact().token_search(index.store, encoded.vectors[:, 0][mask], k)
            scores, order = similarities.cpu().sort(1, descending=True)
            rows = places.cpu().gather(1, order).numpy()
        everything = index.search_tokens(recipe, encoded, len(index)) if gather else [{} for _ in part]
        owners = index.store.owners(rows)
        stop = 0
        for n, (name, length) in enumerate(zip(part, mask.sum(1).tolist(), strict=True)):
            part, stop = slice(stop, stop + length), stop + length
            ids = encoded.ids[n, 0][mask[n]].cpu().numpy()
            if gather:
                whole = np.empty(len(index.store.ids), np.float32)
                whole[index.store.positions(everything[n])] = list(everything[n].values())
            yield Retrieved(name, encoded[n : n + 1], ids, scores[part], rows[part], owners[part], whole)


Scored = tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]  # positions and scores of documents


def imputed(retrieved: Retrieved, index: Index, k: int, imputation: str = "kth") -> Scored:
    """Compute f_XTR' with k' = k (Eq. 4) for the documents with a retrieved token."""
    if not len(retrieved.ids):
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    owners = torch.from_numpy(retrieved.owners[:, :k])
    places, rel = retrieved_rel(retrieved.scores[:, :k], owners, int(index.store.offsets[-1]), imputation)
    return places.numpy(), rel.numpy()


def gathered(retrieved: Retrieved, k: int) -> Scored:
    """Return f_ColBERT, computed from all document tokens, for the documents with a retrieved token."""
    places = np.unique(retrieved.owners[:, :k])
    return places, retrieved.whole[places]


def best_documents(
    index: Index, places: np.ndarray, scores: np.ndarray, depth: int = DEPTH
) -> dict[str, float]:
    """Return the `depth` best documents, best first; ties go to the smaller id."""
    some = np.arange(len(places))
    if len(places) > depth:  # sort only documents at least as good as the depth-th
        some = np.flatnonzero(scores >= np.partition(scores, -depth)[-depth])
    ranked = sorted((-float(scores[n]), index.store.ids[places[n]]) for n in some)[:depth]
    return {id: -score for score, id in ranked}


def gathering(paradigm: Paradigm) -> Recipe:
    """Return the recipe of f_ColBERT (Eq. 1), whatever alignment the paradigm was trained with."""
    return paradigm.with_alignment(QueryToDocument(), "query_tokens").recipe


def stored_ids(paradigm: Paradigm, index: Index, corpus: Corpus) -> Int[np.ndarray, " tokens"]:
    """Return the vocabulary id of every token in the index, in index order.

    Raises ValueError if the corpus's tokens do not match the index.
    """
    parts = [np.zeros(0, dtype=np.int32)]
    for start in range(0, len(index.store.ids), DOCUMENTS):
        texts = [corpus[corpus.position(id)] for id in index.store.ids[start : start + DOCUMENTS]]
        batch = paradigm.encoder.tokenize(texts, "document")
        parts.append(batch.input_ids[batch.counts].numpy().astype(np.int32))
    ids = np.concatenate(parts)
    if len(ids) != index.store.offsets[-1]:
        raise ValueError(f"the corpus has {len(ids)} tokens and {index.store} {index.store.offsets[-1]}")
    return ids


def measure(
    paradigm: Paradigm,
    index: Index,
    ids: Int[np.ndarray, " tokens"],
    test: Split,
    search_tokens: Sequence[int],
    table_tokens: int,
) -> Measured:
    """Measure a trained model: token retrieval, scores for each k', imputations and costs.

    ids: from `stored_ids`. search_tokens: values of k' for Figure 5. table_tokens: k' for Tables 1 and 5.
    """
    lengths = np.diff(index.store.offsets)
    relevant = {
        query: np.array([index.store.position(d) for d, grade in judged.items() if grade > 0], dtype=np.int64)
        for query, judged in test.judgements.items()
    }
    queries = {name: test.queries[name] for name, gold in relevant.items() if len(gold)}
    judgements = {name: test.judgements[name] for name in queries}
    runs: dict[tuple[str, object], Run] = {("impute", k): {} for k in search_tokens}
    runs |= {("gather", k): {} for k in search_tokens} | {("imputations", name): {} for name in IMPUTATIONS}
    tokens: dict[str, list[float]] = {"gold": [], "lexical": [], "gold recall": [], "gold − others": []}
    ranks = [rank for rank in RANKS if rank <= min(max(*search_tokens, TOP), len(ids))]
    by_rank = {name: {rank: [] for rank in ranks} for name in ("gold", "lexical")}
    deep: dict[str, list[float]] = {name: [] for name in (*IMPUTATIONS, "gathered") if len(index) > DEEP}
    costs, example = [], None
    word = paradigm.encoder.tokenizer(EXAMPLE[1], add_special_tokens=False)["input_ids"][0]
    searched = token_search(paradigm, index, queries, max(*search_tokens, TOP), gather=True)
    for n, retrieved in enumerate(searched):
        gold = np.isin(retrieved.owners, relevant[retrieved.query])
        equal = ids[retrieved.rows] == retrieved.ids[:, None]
        for name, hit in (("gold", gold), ("lexical", equal)):
            tokens[name].append(_mean(hit[:, :TOP]))
            if name == "lexical" and queries[retrieved.query].lower() == EXAMPLE[0]:
                example = _mean(hit[retrieved.ids == word, :TOP])
            for rank in ranks:
                by_rank[name][rank].append(_mean(hit[:, rank - 1]))
        from_gold = gold[:, :TOP]
        gold_tokens = max(1, lengths[relevant[retrieved.query]].sum())
        tokens["gold recall"].append(len(np.unique(retrieved.rows[:, :TOP][from_gold])) / gold_tokens)
        # f_ColBERT of a document is the mean, over query tokens, of its best token's cosine (Figure 2).
        others = retrieved.scores.numpy()[:, :TOP][~from_gold]
        best = _mean(retrieved.whole[relevant[retrieved.query]])
        tokens["gold − others"].append(best - _mean(others) if others.size else 0.0)
        for k in search_tokens:
            runs["gather", k][retrieved.query] = best_documents(index, *gathered(retrieved, k))
            runs["impute", k][retrieved.query] = best_documents(index, *imputed(retrieved, index, k))
        scored = {name: imputed(retrieved, index, table_tokens, name) for name in IMPUTATIONS}
        for name, scores in scored.items():
            runs["imputations", name][retrieved.query] = best_documents(index, *scores)
        for name in deep:
            scores = scored.get(name) or gathered(retrieved, table_tokens)
            best = index.store.positions(best_documents(index, *scores, DEEP))
            deep[name].append(float(np.isin(relevant[retrieved.query], best).mean()))
        if n < TIMED and len(retrieved.ids):
            costs.append(scoring_stage(paradigm, index, retrieved, queries[retrieved.query], table_tokens))
    measured: Measured = {
        "queries": list(queries),
        "tokens per document": float(lengths.mean()),
        "tokens": tokens,
        "R@1000": deep,
        "by rank": by_rank,
        "example": example,
        "costs": {name: [cost[name] for cost in costs] for name in costs[0]} if costs else {},
    }
    for (way, key), run in runs.items():
        values = per_query(run, judgements, MEASURES).values
        measured.setdefault(way, {})[key] = {name: value.tolist() for name, value in values.items()}
    return measured


def scoring_stage(
    paradigm: Paradigm, index: Index, retrieved: Retrieved, text: str, k: int
) -> dict[str, float]:
    """Measure how many milliseconds each stage takes for a query with k' = k, and count scoring FLOPs.

    Scoring runs on the CPU, begins with the retrieved tokens and ends with the ranking. Gathering is timed as
    reranking with the index. The FLOPs of both scoring methods follow appendix B, but are counted
    consistently (`theory.token_retrieval.scoring_cost`) and for the actual candidates.
    """
    wanted, recipe = min(k, int(index.store.offsets[-1])), gathering(paradigm)
    tokens = retrieved.tokens.to("cpu")
    vectors = retrieved.tokens.vectors[0, 0][retrieved.tokens.mask[0, 0]]
    candidates = np.unique(retrieved.owners[:, :k])
    names = index.store.names(candidates)
    counted = scoring_cost(
        query_tokens=len(retrieved.ids),
        retrieved_tokens=wanted,
        document_tokens=float(np.diff(index.store.offsets)[candidates].mean()),
        dimension=vectors.shape[1],
        tokens_per_candidate=len(retrieved.ids) * wanted / len(candidates),
    )

    def fastest(function: Callable[[], object]) -> float:
        return 1000 * min(repeat(function, number=1, repeat=REPEATS))

    with torch.inference_mode():
        return {
            "encode ms": fastest(lambda: paradigm.encode_queries([text]).to("cpu")),
            "search ms": fastest(lambda: Exact().token_search(index.store, vectors, wanted)[0].cpu()),
            "impute ms": fastest(lambda: best_documents(index, *imputed(retrieved, index, k))),
            "gather ms": fastest(lambda: index.rerank_tokens([recipe], tokens, [names])),
            "candidates": counted["candidates"],
            "impute FLOPs": counted["xtr"],
            "gather FLOPs": counted["colbert"],
            "gathered bytes": counted["gathered_bytes"],
        }


def _mean(values: np.ndarray) -> float:
    """Return the mean, or 0 if the array is empty, as for a query without tokens."""
    return float(values.mean()) if values.size else 0.0
