"""Describe the study of token retrieval in Lee et al. 2023 (arXiv:2304.01982): claims, tables, figures."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from papers.lee2023.token_measures import COST, GOLD_AT, LEXICAL, LEXICAL_AT, MEASURES
from studies.claims import Study, Values
from studies.curves import Curves
from studies.gains import UNTRAINED, same_queries, training_section, unlearned
from studies.pages import Measured, Rows, Section

from paradigms.evaluate import PerQuery
from paradigms.evaluate.claims import UNDECIDED
from paradigms.impute import IMPUTATIONS


@dataclass(frozen=True)
class Model:
    """A model: ColBERT (k_train is None), XTR, or the encoder of both before training.

    The main batch size is ColBERT's.
    """

    k_train: float | None
    batch_size: int
    seed: int = 0
    trained: bool = True

    @property
    def name(self) -> str:
        if not self.trained:
            return f"seed-{self.seed}/{UNTRAINED}"
        objective = "colbert" if self.k_train is None else f"xtr-k{self.k_train}"
        return f"seed-{self.seed}/{objective}-b{self.batch_size}"

    def __str__(self) -> str:
        if not self.trained:
            return f"{UNTRAINED}, seed {self.seed}"
        kind = "ColBERT" if self.k_train is None else label(self.k_train)
        return f"{kind}, batch of {self.batch_size}, seed {self.seed}"


def label(k_train: float, batch_size: int = 0) -> str:
    return f"XTR (k_train = {k_train}{f', batches of {batch_size}' if batch_size else ''})"


class TokenStudy:
    """Measurements of ColBERT and of XTRs on one collection's queries.

    Raises SystemExit if the results are of different queries.
    """

    def __init__(
        self,
        collection: str,
        results: Sequence[Measured],
        search_tokens: Sequence[int],
        table_tokens: int,
        bm25: PerQuery,
    ) -> None:
        same_queries([*results, {"queries": bm25.queries}])
        self.search_tokens = search_tokens
        self.table_tokens = table_tokens
        self.bm25 = bm25
        self.size = next(result["batch_size"] for result in results if result["k_train"] is None)
        self.models: dict[str, list[Measured]] = {}
        self.sizes = sorted({result["batch_size"] for result in results if result["k_train"]})
        self.k_train = sorted({result["k_train"] for result in results if result["k_train"]})
        for result in results:
            k_train = result["k_train"]
            plain = "ColBERT" if result.get("trained", True) else UNTRAINED
            name = self.of_size(k_train, result["batch_size"]) if k_train else plain
            self.models.setdefault(name, []).append(result)
        # XTRs trained on ColBERT's batches. As in the paper, the best is chosen on dev queries, over seeds.
        self.xtrs = [label(k) for k in self.k_train]
        self.dev = {x: np.mean([model["dev"] for model in self.models[x]]) for x in self.xtrs}
        self.xtr = max(self.xtrs, key=self.dev.__getitem__)
        few, table, many = (f"k' = {k}" for k in (search_tokens[0], table_tokens, search_tokens[-1]))
        groups = {"XTR": [self.xtr], "any XTR": self.xtrs, "few": [few], "table": [table], "many": [many]}
        several = len(self.xtrs) > 1
        groups |= {"small": self.xtrs[:1] * several, "large": self.xtrs[-1:] * several}
        groups |= {"large − small batches": []}
        if len(self.sizes) > 1:
            large, small = (
                [f"1/{len(self.xtrs)} · {self.of_size(k, n)}, imputing, {many}" for k in self.k_train]
                for n in (self.sizes[-1], self.sizes[0])
            )
            groups |= {"large − small batches": [f"{' + '.join(large)} − {' − '.join(small)}"]}
        more = {"groups": groups, "counts": self.example(), "collection": collection}
        self.study = Study.of(self.models, undecided=self.undecided, **more)

    def of_size(self, k_train: float, batch_size: int) -> str:
        return label(k_train, batch_size * (batch_size != self.size))

    def undecided(self, sides: Sequence[str]) -> dict[str, str]:
        """Return the first system that has not learned enough, gathering with the largest k'."""
        names = [name for name in self.models if any(side.startswith(f"{name},") for side in sides)]
        names = names or [name for name in self.models if name in sides]
        means = {name: self.scores("RR@10", name, "gathering")[-1].mean() for name in names}
        models = [model for name in names for model in self.models[name]]
        return {"unlearned": unlearned(means, self.bm25.mean("RR@10"), models)}

    def example(self) -> dict[str, dict[str, str]]:
        """Count Table E.4, about one token of one query, if the collection contains the query."""
        shares = [[model.get("example") for model in self.models[name]] for name in ("ColBERT", self.xtr)]
        if None in shares[0]:
            return {}
        colbert, xtr = np.array(shares, dtype=float).mean(1)
        cells = {"quantity": f"{LEXICAL}, ColBERT and XTR", "printed": "72%, 33%", "sample": "counted"}
        cells |= {"measured": f"{colbert:.0%}, {xtr:.0%}"}
        return {"example": cells | {"verdict": f"{UNDECIDED}: one token of one query"}}

    def scores(self, measure: str, system: str, way: str) -> list[Values]:
        """Return a measure for each k'. way: imputing or gathering."""
        return [self.study.values[measure][f"{system}, {way}, k' = {k}"] for k in self.search_tokens]

    def sections(self) -> dict[str, Section]:
        values = self.study.values
        names = ["ColBERT", *self.xtrs, UNTRAINED]
        ranks = [int(side.rpartition(" ")[2]) for side in values[f"{GOLD_AT} at rank r"] if "ColBERT" in side]
        by_rank = {
            measure: {name: [values[measure][f"{name}, r = {r}"] for r in ranks] for name in names}
            for measure in (f"{GOLD_AT} at rank r", f"{LEXICAL_AT} at rank r")
        }
        pairs = [(name, way) for way in ("imputing", "gathering") for name in ("ColBERT", self.xtr)]
        recall = {f"{name}, {way}": self.scores("R@100", name, way) for name, way in pairs}
        by_k = {name: self.scores("RR@10", name, "imputing") for name in names}
        by_size = {
            label(k): [self.scores("nDCG@10", self.of_size(k, n), "imputing")[-1] for n in self.sizes]
            for k in self.k_train
        }
        sides = [side for side in values.get(COST, {}) if side.startswith(f"{self.xtr}, ")]
        costs = {side.rpartition(", ")[2]: values[COST][side] for side in sides}
        timed = max((cost.shape[1] for cost in costs.values()), default=0)
        dev = ", ".join(f"{name} {mean:.3f}" for name, mean in self.dev.items())
        several = len(self.dev) > 1
        chosen = f"RR@10 of the dev queries (k' = {self.table_tokens}) chooses {self.xtr}: {dev}." * several
        return {
            "training": training_section(self.models),
            "claims": self.study.section("lee2023", "token retrieval", chosen),
            "figure4": Curves("r", ranks, by_rank).section(
                "Gold and lexical token retrieval (Figure 4)",
                "Is the r-th token that a query token retrieves part of a relevant document (gold)? Is it "
                "the query token itself (lexically equal)?",
            ),
            "figure5": Curves("k'", self.search_tokens, {"R@100": recall}).section(
                "f_XTR' and f_ColBERT against k' (Figure 5)",
                "Recall by the tokens that each query token retrieves, k'.",
            ),
            "figure6": Curves("k'", self.search_tokens, {"RR@10": by_k}).section(
                "k_train and k', imputing (Figure 6)",
                f"Scores with imputation, by k' and the k_train of the training. {chosen}",
            ),
            "figure7": Curves("queries of a batch", self.sizes, {"nDCG@10": by_size}).section(
                f"Batch size and k_train, imputing with k' = {self.search_tokens[-1]} (Figure 7)"
            ),
            "table5": Section(
                "Imputation and training objective (Table 5)",
                f"k' = {self.table_tokens}. Gathered: f_ColBERT of the same candidates.",
                self.imputation_rows(),
            ),
            "table1": Section(
                "Cost of a query (Table 1)",
                f"{self.xtr}, k' = {self.table_tokens}, both ways from the same retrieved tokens; means over "
                f"{timed} timed queries and the seeds, on the machine below, scoring on its CPU. Gathering "
                "is a rerank by the index; FLOPs as in appendix B, for the candidates that there are.",
                [{"of a query": name, "mean": cost.mean()} for name, cost in costs.items()],
            ),
        }

    def imputation_rows(self) -> Rows:
        """Make a row for BM25, and one for each imputation of each model."""
        values = self.study.values
        measures = [*MEASURES, *(measure for measure in values if measure == "R@1000")]
        rows: Rows = [{"model": "BM25", "imputation": "–"} | dict.fromkeys(measures, "–")]
        rows[0] |= {measure: f"{self.bm25.mean(measure):.3f}" for measure in MEASURES}
        for system in ("ColBERT", self.xtr, UNTRAINED):
            for name in (*IMPUTATIONS, "gathering"):
                row = {"model": system, "imputation": "– (gathered)" if name == "gathering" else name}
                side = f"{system}, {name}, k' = {self.table_tokens}"
                rows.append(row | {measure: values[measure][side] for measure in measures})
        return rows
