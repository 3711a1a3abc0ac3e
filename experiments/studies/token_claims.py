"""What Lee et al. 2023 (arXiv:2304.01982) say of XTR's token retrieval and scores, and our verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from paradigms.evaluate import Interval, holm, paired_test, seeds_interval

ALPHA = 0.05
MARGIN = 0.02  # of RR@10: "competitive"
# Of BM25's RR@10: a model whose f_ColBERT ranks below it has not learned to search, and what it retrieves
# says nothing of its objective.
LEARNED = 0.5

Values = Float[np.ndarray, "seeds queries"]


@dataclass(frozen=True)
class Model:
    """What was trained: ColBERT (no k_train), or XTR."""

    k_train: int | None
    batch_size: int

    @property
    def name(self) -> str:
        """Of its folder."""
        objective = "colbert" if self.k_train is None else f"xtr-k{self.k_train}"
        return f"{objective}-b{self.batch_size}"

    def __str__(self) -> str:
        batch = f"batch of {self.batch_size}"
        return f"ColBERT, {batch}" if self.k_train is None else f"XTR, k_train = {self.k_train}, {batch}"


@dataclass(frozen=True)
class Found:
    """What was measured of every model, once for each seed, on the same queries."""

    queries: list[str]
    models: dict[Model, list[dict[str, Any]]]
    search_tokens: list[int]  # the k', ascending
    table_tokens: int  # the k' of Tables 1 and 5, one of them
    documents: int  # of a training pool, for each query of a process's batch

    def values(self, model: Model, *path: object) -> Values:
        """One number for each seed and query: what stands at `path` in the measured files."""
        rows: list[Any] = self.models[model]
        for key in path:
            rows = [row[str(key)] for row in rows]
        return np.array(rows, dtype=float)

    @property
    def colbert(self) -> Model:
        return next(model for model in self.models if model.k_train is None)

    @property
    def xtrs(self) -> list[Model]:
        """The XTRs trained on ColBERT's batches."""
        size = self.colbert.batch_size
        return [model for model in self.models if model.k_train and model.batch_size == size]

    @property
    def xtr(self) -> Model:
        """The one of them that is best on the dev queries, over all seeds."""
        return max(self.xtrs, key=lambda model: self.values(model, "dev").mean())

    @property
    def pair(self) -> tuple[Model, Model]:
        return self.colbert, self.xtr


def gather(
    results: Sequence[dict[str, Any]],
    seeds: Sequence[int],
    search_tokens: list[int],
    table_tokens: int,
    documents: int,
) -> Found:
    """The measured files as one; SystemExit where they are not of the same queries."""
    if any(result["queries"] != results[0]["queries"] for result in results):
        raise SystemExit("the models were measured on different queries: choose another --output")
    models: dict[Model, list[dict[str, Any]]] = {}
    for result in sorted(results, key=lambda result: seeds.index(result["seed"])):
        models.setdefault(Model(result["k_train"], result["batch_size"]), []).append(result)
    return Found(results[0]["queries"], models, search_tokens, table_tokens, documents)


# --- claims -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """mean(difference) + margin > 0."""

    statement: str
    source: str
    quantity: str
    difference: Values
    margin: float = 0.0
    learned: bool = True  # whether it is about models that have learned to search


def claims(found: Found) -> list[Claim]:
    """Every claim for which there are models."""
    xtr, colbert = found.xtr, found.colbert
    few, many, table = found.search_tokens[0], found.search_tokens[-1], found.table_tokens

    def rr(model: Model, *path: object) -> Values:
        return found.values(model, *path, "RR@10")

    def recall(model: Model, *path: object) -> Values:
        return found.values(model, *path, "R@100")

    def top(model: Model, name: str) -> Values:
        return found.values(model, "retrieval", "top", name)

    stated = [
        Claim(
            "ColBERT gives tokens of other documents higher scores than XTR",
            "Fig. 2",
            "their mean score in the first 100",
            top(colbert, "score of others") - top(xtr, "score of others"),
        ),
        Claim(
            "more retrieved tokens, more recall",
            "Fig. 5",
            f"R@100 of XTR, k' = {many} − k' = {few}",
            recall(xtr, "impute", many) - recall(xtr, "impute", few),
        ),
        Claim(
            "imputing, XTR recalls more than ColBERT",
            "Fig. 5, Tab. 5",
            f"R@100, k' = {table}",
            recall(xtr, "impute", table) - recall(colbert, "impute", table),
        ),
        Claim(
            "imputing, XTR ranks better than ColBERT",
            "Tab. 5",
            f"RR@10, k' = {table}",
            rr(xtr, "impute", table) - rr(colbert, "impute", table),
        ),
        Claim(
            "imputing is much worse for ColBERT than its sum of maxima",
            "§5.2",
            f"RR@10 of ColBERT, gathered − imputed − {MARGIN}, k' = {table}",
            rr(colbert, "gather", table) - rr(colbert, "impute", table) - MARGIN,
        ),
        Claim(
            "XTR imputing is competitive with ColBERT gathering",
            "§4.1",
            f"RR@10, k' = {table}; margin {MARGIN}",
            rr(xtr, "impute", table) - rr(colbert, "gather", table),
            MARGIN,
        ),
        Claim(
            "XTR keeps its quality with a smaller k'",
            "App. D",
            f"RR@10 of XTR, k' = {table} − k' = {many}; margin {MARGIN}",
            rr(xtr, "impute", table) - rr(xtr, "impute", many),
            MARGIN,
        ),
        Claim(
            "XTR imputes better than it ranks without imputation",
            "Tab. 5",
            f"RR@10 of XTR, kth − none, k' = {table}",
            rr(xtr, "imputations", "kth") - rr(xtr, "imputations", "none"),
        ),
        Claim(
            "the k'-th score is competitive with regression",
            "§3.2",
            f"RR@10 of XTR, kth − power law, k' = {table}; margin {MARGIN}",
            rr(xtr, "imputations", "kth") - rr(xtr, "imputations", "power_law"),
            MARGIN,
        ),
    ]
    for model in found.xtrs:
        which = f"XTR with k_train = {model.k_train}"
        stated += [
            Claim(
                f"{which} retrieves gold tokens with a higher probability",
                "Fig. 4",
                "P(gold) in the first 100, XTR − ColBERT",
                top(model, "gold") - top(colbert, "gold"),
            ),
            Claim(
                f"{which} doubles it",
                "§1",
                "P(gold) in the first 100, XTR − 2 · ColBERT",
                top(model, "gold") - 2 * top(colbert, "gold"),
            ),
            Claim(
                f"{which} relies less on lexical matches",
                "Fig. 4",
                "P(equal) in the first 100, ColBERT − XTR",
                top(colbert, "lexical") - top(model, "lexical"),
            ),
            Claim(
                f"{which} prefers a larger k'",
                "Fig. 6",
                f"RR@10, k' = {many} − k' = {few}",
                rr(model, "impute", many) - rr(model, "impute", few),
            ),
        ]
    ordered = sorted(found.xtrs, key=lambda model: model.k_train or 0)
    if len(ordered) > 1:
        small, large = ordered[0], ordered[-1]
        stated += [
            Claim(
                "a small k_train is better at a small k'",
                "Fig. 6",
                f"RR@10 at k' = {few}, k_train = {small.k_train} − {large.k_train}",
                rr(small, "impute", few) - rr(large, "impute", few),
            ),
            Claim(
                "a large k_train is better at a large k'",
                "Fig. 6",
                f"RR@10 at k' = {many}, k_train = {large.k_train} − {small.k_train}",
                rr(large, "impute", many) - rr(small, "impute", many),
            ),
        ]
    sizes = sorted({model.batch_size for model in found.models if model.k_train})
    if len(sizes) > 1:
        ndcg = [
            np.mean([found.values(Model(m.k_train, size), "impute", many, "nDCG@10") for m in found.xtrs], 0)
            for size in (sizes[-1], sizes[0])
        ]
        stated.append(
            Claim(
                "XTR favours large batches",
                "Fig. 7",
                f"nDCG@10 at k' = {many}, batches of {sizes[-1]} − {sizes[0]}, mean over k_train",
                ndcg[0] - ndcg[1],
            )
        )
    if found.models[xtr][0]["costs"]:
        stated += [
            Claim(
                "scoring is two to three orders of magnitude cheaper",
                "§1, Tab. 1",
                f"log₁₀ of gathering's {unit} / imputing's − 2, k' = {table}",
                np.log10(
                    found.values(xtr, "costs", f"gather {unit}")
                    / found.values(xtr, "costs", f"impute {unit}")
                )
                - 2,
                learned=False,
            )
            for unit in ("FLOPs", "ms")
        ]
    return stated


def verdict(interval: Interval, p: float, margin: float, able: bool) -> str:
    """Reproduced: above −margin, by the interval and the corrected p. Not reproduced: below it."""
    if able and interval.low > -margin and p < ALPHA:
        return "reproduced"
    return "not reproduced" if able and interval.high < -margin else "out of reach at this scale"


def judged(stated: Sequence[Claim], able: bool) -> list[dict[str, str]]:
    """A row for each claim, one family for Holm's correction. able: whether the models learned to search."""
    p = holm([paired_test(c.difference.mean(0) + c.margin, np.zeros(c.difference.shape[1])) for c in stated])
    rows = []
    for claim, adjusted in zip(stated, p, strict=True):
        interval, (seeds, queries) = seeds_interval(claim.difference), claim.difference.shape
        rows.append(
            {
                "claim": claim.statement,
                "source": claim.source,
                "above 0 if so": claim.quantity,
                "measured": f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]",
                "p (Holm)": f"{adjusted:.4f}",
                "sample": f"{queries} queries, {seeds} seed{'s' * (seeds > 1)}",
                "verdict": verdict(interval, adjusted, claim.margin, able or not claim.learned),
            }
        )
    return rows
