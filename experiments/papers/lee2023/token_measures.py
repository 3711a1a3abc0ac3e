"""Measure which tokens a model retrieves, and how documents score with them: one value per test query.

Lee et al. 2023 (arXiv:2304.01982), Figures 2 and 4 to 7, Tables 1 and 5. One exact token search with the
largest k' serves every smaller k': the results for a smaller k' are the first k' tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from timeit import repeat

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
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
DEPTH = 100  # documents that a timed search returns
DEEP = 1000  # documents that a search returns, for R@1000 in collections with more documents
GOLD_AT = "P(gold)"
LEXICAL_AT = "P(lexically equal)"
GOLD = f"{GOLD_AT} in the first {TOP}"
LEXICAL = f"{LEXICAL_AT} in the first {TOP}"
GOLD_RECALL = f"share of gold tokens that are in the first {TOP} of a query token"
APART = f"cosine of a query token's best gold token over that of the first {TOP} tokens of other documents"
QUERIES = 32  # queries whose tokens are searched at once
DOCUMENTS = 1024  # documents tokenised at once
# A query of SciFact and the token of Table E.4: what share of the first TOP tokens is lexically equal to it?
EXAMPLE = "women with a higher birth weight are more likely to develop breast cancer later in life.", "later"
# timed queries, and runs per query, of which the fastest counts
TIMED = 20
REPEATS = 3
COST = "cost of a query"

Conditions = dict[tuple[str, str], float]  # (measure, condition) -> a query's value


@dataclass(frozen=True)
class Retrieved:
    """The document tokens that each token of a query retrieved, best first."""

    query: str  # id of the query
    tokens: Tokens  # Q, axes [1, 1, j, h]
    ids: Int[np.ndarray, " j"]  # vocabulary ids of the query tokens
    scores: Float[Tensor, "j k"]
    rows: Int[np.ndarray, "j k"]  # positions of the retrieved tokens in the index
    owners: Int[np.ndarray, "j k"]  # positions of the tokens' documents
    gathered: Float[np.ndarray, " n"]  # f_ColBERT of every document, if `gather` is set


def token_search(
    paradigm: Paradigm, index: Index, queries: Mapping[str, str], k: int, *, gather: bool = False
) -> Iterator[Retrieved]:
    """Retrieve each query token's k best tokens of the corpus. gather: also score all documents in full."""
    names = list(queries)
    gathered = np.zeros(0, np.float32)
    recipe = gathering(paradigm)
    for start in range(0, len(names), QUERIES):
        part = names[start : start + QUERIES]
        encoded = paradigm.encode_queries([queries[name] for name in part])
        mask = encoded.mask[:, 0]
        with torch.inference_mode():
            similarities, places = Exact().token_search(index.store, encoded.vectors[:, 0][mask], k)
            scores, order = similarities.cpu().sort(1, descending=True)
            rows = places.cpu().gather(1, order).numpy()
        everything = index.search_tokens(recipe, encoded, len(index)) if gather else [{} for _ in part]
        owners = index.store.owners(rows)
        stop = 0
        for n, (name, length) in enumerate(zip(part, mask.sum(1).tolist(), strict=True)):
            of = slice(stop, stop + length)
            stop += length
            assert encoded.ids is not None
            ids = encoded.ids[n, 0][mask[n]].cpu().numpy()
            if gather:
                gathered = np.empty(len(index.store.ids), np.float32)
                gathered[index.store.positions(everything[n])] = list(everything[n].values())
            yield Retrieved(name, encoded[n : n + 1], ids, scores[of], rows[of], owners[of], gathered)


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
    return places, retrieved.gathered[places]


def best_documents(
    index: Index, places: np.ndarray, scores: np.ndarray, depth: int = DEPTH
) -> dict[str, float]:
    """Return the `depth` best documents, best first; ties go to the smaller id."""
    order = np.arange(len(places))
    if len(places) > depth:  # sort only documents at least as good as the depth-th
        order = np.flatnonzero(scores >= np.partition(scores, -depth)[-depth])
    ranked = sorted((-float(scores[n]), index.store.ids[places[n]]) for n in order)[:depth]
    return {id: -score for score, id in ranked}


def gathering(paradigm: Paradigm) -> Recipe:
    """Return the recipe of f_ColBERT (Eq. 1), whatever alignment the paradigm was trained with."""
    return paradigm.with_alignment(QueryToDocument(), "query_tokens").recipe


def stored_ids(paradigm: Paradigm, index: Index, corpus: Corpus) -> Int[np.ndarray, " tokens"]:
    """Return each stored token's vocabulary id, in order. Raises ValueError if the corpus is another one."""
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

    The result's "values" map a measure and a condition to one value per query; costs are of the first
    queries. ids: from `stored_ids`. search_tokens: values of k' for Figure 5. table_tokens: k' for Tables 1
    and 5.
    """
    relevant = {
        query: np.array([index.store.position(d) for d, grade in judged.items() if grade > 0], dtype=np.int64)
        for query, judged in test.judgements.items()
    }
    queries = {name: test.queries[name] for name, gold in relevant.items() if len(gold)}
    word = paradigm.encoder.tokenizer(EXAMPLE[1], add_special_tokens=False)["input_ids"][0]
    example = None
    by_query: list[Conditions] = []
    costs: list[Conditions] = []
    runs: dict[str, Run] = {}
    for retrieved in token_search(paradigm, index, queries, max(*search_tokens, TOP), gather=True):
        query = retrieved.query
        gold = relevant[retrieved.query]
        equal = ids[retrieved.rows] == retrieved.ids[:, None]
        by_query.append(token_values(retrieved, index, gold, equal))
        if queries[query].lower() == EXAMPLE[0]:
            example = _mean(equal[retrieved.ids == word, :TOP])
        scorings: dict[str, Scored] = {}
        for k in search_tokens:
            scorings[f"gathering, k' = {k}"] = gathered(retrieved, k)
            scorings[f"imputing, k' = {k}"] = imputed(retrieved, index, k)
        for name in IMPUTATIONS:
            scorings[f"{name}, k' = {table_tokens}"] = imputed(retrieved, index, table_tokens, name)
        for condition, scores in scorings.items():
            runs.setdefault(condition, {})[query] = best_documents(index, *scores, DEEP)
        if len(by_query) <= TIMED and len(retrieved.ids):
            costs.append(scoring_stage(paradigm, index, retrieved, queries[query], table_tokens))
    judgements = {name: test.judgements[name] for name in queries}
    measures = MEASURES + (f"R@{DEEP}",) * (len(index) > DEEP)
    values: dict[str, dict[str, list[float]]] = {}
    for measure, condition in [*by_query[0], *(costs[0] if costs else ())]:
        rows = by_query if (measure, condition) in by_query[0] else costs
        values.setdefault(measure, {})[condition] = [row[measure, condition] for row in rows]
    for condition, run in runs.items():
        for measure, scored in per_query(run, judgements, measures).values.items():
            values.setdefault(measure, {})[condition] = scored.tolist()
    lengths = np.diff(index.store.offsets)
    facts = {"queries": list(queries), "tokens per document": float(lengths.mean())}
    return facts | {"example": example, "values": values}


def token_values(
    retrieved: Retrieved, index: Index, relevant: Int[np.ndarray, " n"], equal: Bool[np.ndarray, "j k"]
) -> Conditions:
    """Measure the tokens that a query retrieved. relevant: positions of documents. equal: lexically equal."""
    gold = np.isin(retrieved.owners, relevant)
    from_gold = gold[:, :TOP]
    gold_tokens = max(1, np.diff(index.store.offsets)[relevant].sum())
    # f_ColBERT of a document is the mean, over query tokens, of its best token's cosine (Figure 2).
    others = retrieved.scores.numpy()[:, :TOP][~from_gold]
    apart = _mean(retrieved.gathered[relevant]) - _mean(others) if others.size else 0.0
    values: Conditions = {
        (GOLD, ""): _mean(from_gold),
        (LEXICAL, ""): _mean(equal[:, :TOP]),
        (GOLD_RECALL, ""): len(np.unique(retrieved.rows[:, :TOP][from_gold])) / gold_tokens,
        (APART, ""): apart,
    }
    for rank in (rank for rank in RANKS if rank <= gold.shape[1]):
        values[f"{GOLD_AT} at rank r", f"r = {rank}"] = _mean(gold[:, rank - 1])
        values[f"{LEXICAL_AT} at rank r", f"r = {rank}"] = _mean(equal[:, rank - 1])
    return values


def scoring_stage(
    paradigm: Paradigm, index: Index, retrieved: Retrieved, text: str, k: int
) -> dict[tuple[str, str], float]:
    """Measure how many milliseconds each stage takes for a query with k' = k, and count scoring FLOPs.

    Scoring runs on the CPU, begins with the retrieved tokens and ends with the ranking. Gathering is timed as
    reranking with the index. The FLOPs of both scoring methods follow appendix B, but are counted
    consistently (`theory.token_retrieval.scoring_cost`) and for the actual candidates.
    """
    recipe = gathering(paradigm)
    count = min(k, int(index.store.offsets[-1]))
    tokens = retrieved.tokens.to("cpu")
    vectors = retrieved.tokens.vectors[0, 0][retrieved.tokens.mask[0, 0]]
    candidates = np.unique(retrieved.owners[:, :k])
    names = index.store.names(candidates)
    counted = scoring_cost(
        query_tokens=len(retrieved.ids),
        retrieved_tokens=count,
        document_tokens=float(np.diff(index.store.offsets)[candidates].mean()),
        dimension=vectors.shape[1],
        tokens_per_candidate=len(retrieved.ids) * count / len(candidates),
    )

    def fastest(function: Callable[[], object]) -> float:
        return 1000 * min(repeat(function, number=1, repeat=REPEATS))

    with torch.inference_mode():
        costs = {
            "encode ms": fastest(lambda: paradigm.encode_queries([text]).to("cpu")),
            "search ms": fastest(lambda: Exact().token_search(index.store, vectors, count)[0].cpu()),
            "impute ms": fastest(lambda: best_documents(index, *imputed(retrieved, index, k))),
            "gather ms": fastest(lambda: index.rerank_tokens([recipe], tokens, [names])),
            "candidates": counted["candidates"],
            "impute FLOPs": counted["xtr"],
            "gather FLOPs": counted["colbert"],
            "gathered bytes": counted["gathered_bytes"],
        }
    ratios = {
        (f"log₁₀ {unit} of scoring", condition): float(np.log10(costs[f"{way} {unit}"]))
        for unit in ("FLOPs", "ms")
        for way, condition in (("impute", "imputing"), ("gather", "gathering"))
    }
    return ratios | {(COST, name): cost for name, cost in costs.items()}


def _mean(values: np.ndarray) -> float:
    """Return the mean, or 0 if the array is empty, as for a query without tokens."""
    return float(values.mean()) if values.size else 0.0
