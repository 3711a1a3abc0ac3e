"""Test the claims about token retrieval in Lee et al. 2023 (arXiv:2304.01982); make tables and figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from papers.lee2023.token_measures import MEASURES, TOP
from studies.curves import Curves, Values, at_path
from studies.model_runs import same_queries, training_section, unlearned, unmoved
from studies.pages import Rows, Section, printed, row_without_test, verdicts

from paradigms.evaluate import PerQuery
from paradigms.evaluate.claims import READOUT, TRAINING, UNDECIDED, Claim
from paradigms.impute import IMPUTATIONS

PAPER = "Lee et al. 2023"
# Differences of RR@10 and nDCG@10: up to this "competitive" and "maintains", above it "much worse".
MARGIN = 0.02
WAYS = {"impute": "imputing", "gather": "gathering"}
PRINTED = printed("lee2023")
SAID = PRINTED["token retrieval"]  # name -> place, claim
FIGURES = {  # captions
    4: "Is the r-th token that a query token retrieves part of a relevant document (gold)? Is it the query "
    "token itself (lexically equal)?",
    5: "Recall by the tokens that each query token retrieves, k'.",
    6: "Scores with imputation, by k' and the k_train of the training.",
}
ARGUMENTS = "scifact"  # queries are claims: of the collections here, it is most like ArguAna


@dataclass(frozen=True)
class Model:
    """A trained model: ColBERT (k_train is None) or XTR."""

    k_train: float | None
    batch_size: int
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of the model's folder."""
        objective = "colbert" if self.k_train is None else f"xtr-k{self.k_train}"
        return f"seed-{self.seed}/{objective}-b{self.batch_size}"

    def __str__(self) -> str:
        return f"{label((self.k_train, 0))}, batch of {self.batch_size}, seed {self.seed}"


Kind = tuple[float | None, int]  # (k_train, batch size), which models of all seeds share


def label(kind: Kind) -> str:
    return "ColBERT" if kind[0] is None else f"XTR, k_train = {kind[0]}"


@dataclass
class TokenResults:
    """Measurements of every kind of model on one collection's queries, for each seed.

    Raises SystemExit if the results and BM25's measurements cover different queries.
    """

    name: str
    results: Sequence[dict[str, Any]]
    search_tokens: list[int]  # values of k', ascending
    table_tokens: int  # the k' of Tables 1 and 5, one of `search_tokens`
    bm25: PerQuery

    def __post_init__(self) -> None:
        same_queries([*self.results, {"queries": self.bm25.queries}])
        self.models: dict[Kind, list[dict[str, Any]]] = {}
        for result in self.results:
            self.models.setdefault((result["k_train"], result["batch_size"]), []).append(result)
        self.colbert = next(kind for kind in self.models if kind[0] is None)
        # XTRs trained on ColBERT's batches, sorted by k_train. As in the paper, the best one is chosen on the
        # dev queries, over all seeds.
        self.xtrs = sorted(kind for kind in self.models if kind[0] and kind[1] == self.colbert[1])
        self.xtr = max(self.xtrs, key=lambda kind: self.values(kind, "dev").mean())
        self.pair = self.colbert, self.xtr
        self.sizes = sorted({size for k_train, size in self.models if k_train})  # batch sizes of the XTRs

    def values(self, kind: Kind, *path: object) -> Values:
        """Return the measurements at `path`: one number per seed and query."""
        return at_path(self.models[kind], *map(str, path))


Side = tuple[Kind, str, int]  # model, way of scoring (WAYS), k'


def claims(results: TokenResults) -> list[Claim]:
    """Return every claim whose models were measured."""
    (colbert, xtr), made = results.pair, list[Claim]()
    few, many, k = results.search_tokens[0], results.search_tokens[-1], results.table_tokens

    def limits(*kinds: Kind) -> dict[str, str]:
        means = {label(kind): results.values(kind, "gather", many, "RR@10").mean() for kind in kinds}
        models = [model for kind in kinds for model in results.models[kind]]
        poor = unlearned(means, results.bm25.mean("RR@10"), models)
        return {"unlearned": poor, "unmoved": unmoved({label(kind): results.models[kind] for kind in kinds})}

    def claim(said: str, quantity: str, contrast: Values, **more: Any) -> None:
        about = READOUT if said in PRINTED["readouts"] else TRAINING
        options, (place, statement) = limits(*results.pair) | {"about": about} | more, SAID[said]
        made.append(Claim(f"{PAPER}, {place}", statement, quantity, contrast, **options))

    def tokens(said: str, name: str, what: str, sign: int = 1, times: int = 1) -> None:
        """Add a claim about a difference in shares, XTR − `times` · ColBERT; sign = −1 reverses it."""
        contrast = results.values(xtr, "tokens", name) - times * results.values(colbert, "tokens", name)
        names = ["XTR", f"{times} · ColBERT" if times > 1 else "ColBERT"]
        claim(said, f"{what}, {' − '.join(names[::sign])}", sign * contrast)

    def ranked(said: str, measure: str, more: Side, less: Side, **how: Any) -> None:
        """Add the claim that `more` ranks documents better than `less` does, according to `measure`."""
        one, other = (results.values(kind, way, k, measure) for kind, way, k in (more, less))
        sides = [f"{label(kind)}, {WAYS[way]} with k' = {k}" for kind, way, k in (more, less)]
        bar = f", above {-how['margin']:g}" if how.get("margin", 0) < 0 else ""
        claim(said, f"{measure}: {' − '.join(sides)}{bar}", one - other, **how)

    gold, equal = f"P(gold) in the first {TOP}", f"P(lexically equal) in the first {TOP}"
    above = f"cosine of a query token's best gold token − of the first {TOP} tokens of other documents"
    share = f"share of gold tokens that are in the first {TOP} of a query token"
    tokens("high", "gold − others", above)
    tokens("gold", "gold", gold)
    tokens("doubling", "gold", gold, times=2)
    tokens("recall of gold", "gold recall", share)
    tokens("lexical", "lexical", equal, -1)

    imputing, gathering = (xtr, "impute", k), (colbert, "gather", k)
    of_colbert, all_tokens = (colbert, "impute", k), (xtr, "impute", many)
    ranked("competitive", "nDCG@10", imputing, gathering, margin=MARGIN)
    ranked("worse", "RR@10", gathering, of_colbert, margin=-MARGIN)
    ranked("better", "RR@10", imputing, of_colbert)
    ranked("recall", "R@100", imputing, of_colbert)
    ranked("greatly", "R@100", all_tokens, (colbert, "gather", many))
    if results.models[xtr][0]["R@1000"]:
        quantity = f"R@1000 imputing, XTR − ColBERT, k' = {k}"
        one, other = (results.values(kind, "R@1000", "kth") for kind in (xtr, colbert))
        claim("better", quantity, one - other)
    quantity = f"RR@10 imputing − gathering, of XTR less that of ColBERT, k' = {k}"
    ways = [[results.values(kind, way, k, "RR@10") for way in WAYS] for kind in results.pair]
    theirs, ours = (impute - gather for impute, gather in ways)
    claim("well", quantity, ours - theirs)
    quantity = f"RR@10 of XTR, k'-th score − power law, k' = {k}"
    kth, law = (results.values(xtr, "imputations", name, "RR@10") for name in ("kth", "power_law"))
    claim("regression", quantity, kth - law, margin=MARGIN)

    ranked("larger", "R@100", all_tokens, (xtr, "impute", few))
    ranked("maintains", "nDCG@10", imputing, all_tokens, margin=MARGIN)
    for kind in results.xtrs:
        ranked("all variants", "RR@10", (kind, "impute", many), (kind, "impute", few), **limits(kind))
    small, large = results.xtrs[0], results.xtrs[-1]
    if small != large:
        both = limits(small, large)
        few_small, few_large = (small, "impute", few), (large, "impute", few)
        many_small, many_large = (small, "impute", many), (large, "impute", many)
        ranked("small", "RR@10", few_small, few_large, **both)
        ranked("large", "RR@10", many_large, many_small, **both)
        if ARGUMENTS in results.name.lower():
            one, other = (results.values(*side, "nDCG@10") for side in (many_small, many_large))
            quantity = f"nDCG@10 on {results.name}, k' = {many}: {label(small)} − {label(large)}"
            claim("ArguAna", quantity, one - other, **both)
    if len(results.sizes) > 1:
        least, most = (
            np.mean([results.values((kind[0], size), "impute", many, "nDCG@10") for kind in results.xtrs], 0)
            for size in (results.sizes[0], results.sizes[-1])
        )
        sizes = f"{results.sizes[-1]} − {results.sizes[0]}"
        quantity = f"nDCG@10, k' = {many}, batches of {sizes}, mean over k_train"
        poor = limits(*((k_train, size) for k_train, _ in results.xtrs for size in results.sizes))
        claim("batches", quantity, most - least, **poor)
    if results.models[xtr][0]["costs"]:
        where, statement = SAID["cheaper"]
        for unit, place, said, printed in (
            ("FLOPs", f"{PAPER}, {where}", statement, "log₁₀ 4000 = 3.6"),
            ("ms", "", "is it two orders of magnitude cheaper in milliseconds, too?", ""),
        ):
            gather, impute = (results.values(xtr, "costs", f"{way} {unit}") for way in ("gather", "impute"))
            quantity = f"log₁₀ of gathering's {unit} / imputing's, above 2, k' = {k}"
            more = {"margin": -2.0, "printed": printed, "about": READOUT}
            made.append(Claim(place, said, quantity, np.log10(gather / impute), **more))
    return made


def describe(results: TokenResults) -> dict[str, Section]:
    """Return the page's sections, keyed by file name."""
    xs, many, every = results.search_tokens, results.search_tokens[-1], (results.colbert, *results.xtrs)
    ranks = [int(rank) for rank in results.models[results.colbert][0]["by rank"]["gold"]]
    by_rank = {
        f"P({text}) at rank r": {
            label(kind): [results.values(kind, "by rank", name, r) for r in ranks] for kind in every
        }
        for name, text in (("gold", "gold"), ("lexical", "lexically equal"))
    }
    recall = {
        f"{label(kind)}, {text}": [results.values(kind, way, k, "R@100") for k in xs]
        for way, text in (("impute", "imputed"), ("gather", "gathered"))
        for kind in results.pair
    }
    by_k = {label(kind): [results.values(kind, "impute", k, "RR@10") for k in xs] for kind in every}
    by_size = {
        label(kind): [results.values((kind[0], n), "impute", many, "nDCG@10") for n in results.sizes]
        for kind in results.xtrs
    }
    costs = results.models[results.xtr][0]["costs"]
    timed = results.values(results.xtr, "costs", "gather ms").shape[1] if costs else 0
    said = f"XTR is {label(results.xtr)}, chosen by RR@10 of the dev queries."
    figure_7 = f"Batch size and k_train, imputing with k' = {many} (Figure 7)"
    return {
        "training": training_section({label(kind): models for kind, models in results.models.items()}),
        "claims": verdicts(claims(results), said, PRINTED["undecided token retrieval"], _example(results)),
        "figure4": Curves("r", ranks, by_rank).section(
            "Gold and lexical token retrieval (Figure 4)", FIGURES[4]
        ),
        "figure5": Curves("k'", xs, {"R@100": recall}).section(
            "f_XTR' and f_ColBERT against k' (Figure 5)", FIGURES[5]
        ),
        "figure6": Curves("k'", xs, {"RR@10": by_k}).section(
            "k_train and k', imputing (Figure 6)", FIGURES[6]
        ),
        "figure7": Curves("queries of a batch", results.sizes, {"nDCG@10": by_size}).section(figure_7),
        "table5": Section(
            "Imputation and training objective (Table 5)",
            f"k' = {results.table_tokens}. Gathered: f_ColBERT of the same candidates.",
            _imputations(results),
        ),
        "table1": Section(
            "Cost of a query (Table 1)",
            f"{label(results.xtr)}, k' = {results.table_tokens}, both ways from the same retrieved tokens; "
            f"means over {timed} timed queries and the seeds, on the machine below, scoring on its CPU. "
            "Gathering is a rerank by the index; FLOPs as in appendix B, for the candidates that there are.",
            [{"of a query": n, "mean": results.values(results.xtr, "costs", n).mean()} for n in costs],
        ),
    }


def _example(results: TokenResults) -> Rows:
    """Make Table E.4, about one token of one query, if the collection contains the query."""
    shares = [[model.get("example") for model in results.models[kind]] for kind in results.pair]
    if None in shares[0]:
        return []
    colbert, xtr = np.array(shares, dtype=float).mean(1)
    cells = {"quantity": f"lexically equal in the first {TOP}, ColBERT and XTR", "printed": "72%, 33%"}
    cells |= {"measured": f"{colbert:.0%}, {xtr:.0%}", "sample": "counted"}
    place, statement = SAID["example"]
    return [row_without_test(f"{PAPER}, {place}", statement, f"{UNDECIDED}: one token of one query", **cells)]


def _imputations(results: TokenResults) -> Rows:
    paths = {name: ("imputations", name) for name in IMPUTATIONS}
    paths |= {"– (gathered)": ("gather", str(results.table_tokens))}
    rows: Rows = [{"model": "BM25", "imputation": "–"} | {m: f"{results.bm25.mean(m):.3f}" for m in MEASURES}]
    for kind in results.pair:
        for name, path in paths.items():
            row = {"model": label(kind), "imputation": name}
            rows.append(row | {m: results.values(kind, *path, m) for m in MEASURES})
    if results.models[results.xtr][0]["R@1000"]:
        rows[0]["R@1000"] = "–"
        for row, (kind, name) in zip(rows[1:], [(k, n) for k in results.pair for n in paths], strict=True):
            row["R@1000"] = results.values(kind, "R@1000", name if name in IMPUTATIONS else "gathered")
    return rows
