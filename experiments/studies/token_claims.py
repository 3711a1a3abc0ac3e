"""What Lee et al. 2023 (arXiv:2304.01982) say of XTR's token retrieval: claims, tables, figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from studies.curves import Curves, Values, at_path
from studies.model_runs import same_queries, unlearned
from studies.pages import Rows, Section, row_without_test, undecided, verdicts
from studies.token_measures import MEASURES, TOP

from paradigms.evaluate import PerQuery
from paradigms.evaluate.claims import UNDECIDED, Claim
from paradigms.impute import IMPUTATIONS

PAPER = "Lee et al. 2023"
MARGIN = 0.02  # of RR@10 and nDCG@10: "competitive", "maintains"; "much worse" is more
HIGH = (
    "Training with f_ColBERT (T5-ColBERT; §4) causes many document tokens to have extremely high scores "
    "regardless of their actual relevance"
)
WORSE = (
    "With T5-ColBERT, even if we use the top-k′ score for the imputation, the performance is much worse than "
    "the original sum-of-max scoring"
)
BETTER = "With XTR, the performance greatly improves as it has better token retrieval"
SMALL = "ones trained with smaller k_train show higher performances than others under small k′ settings"
LARGE = (
    "XTR with larger k_train exhibits better performances than ones with smaller k_train as k′ becomes larger"
)
ARGUMENTS = "scifact"  # whose queries are claims: of the collections here the most like ArguAna
EXAMPLE = (
    "72% of T5-ColBERT tokens are lexically identical as the query token later while only 33% of XTR tokens"
)


@dataclass(frozen=True)
class Model:
    """What was trained: ColBERT (no k_train), or XTR."""

    k_train: int | None
    batch_size: int
    seed: int = 0

    @property
    def name(self) -> str:
        """Of its folder."""
        objective = "colbert" if self.k_train is None else f"xtr-k{self.k_train}"
        return f"seed-{self.seed}/{objective}-b{self.batch_size}"

    def __str__(self) -> str:
        return f"{label((self.k_train, 0))}, batch of {self.batch_size}, seed {self.seed}"


Kind = tuple[int | None, int]  # k_train, batch size: a model of any seed


def label(kind: Kind) -> str:
    return "ColBERT" if kind[0] is None else f"XTR, k_train = {kind[0]}"


class Found:
    """What was measured of every kind of model of a collection, once for each seed, on the same queries.

    search_tokens: the k', ascending; table_tokens: the k' of Tables 1 and 5, one of them. SystemExit where
    the results are not of BM25's queries.
    """

    def __init__(
        self,
        name: str,
        results: Sequence[dict[str, Any]],
        search_tokens: list[int],
        table_tokens: int,
        bm25: PerQuery,
    ) -> None:
        same_queries([*results, {"queries": bm25.queries}])
        self.name, self.search_tokens, self.table_tokens, self.bm25 = name, search_tokens, table_tokens, bm25
        self.models: dict[Kind, list[dict[str, Any]]] = {}
        for result in results:
            self.models.setdefault((result["k_train"], result["batch_size"]), []).append(result)
        self.colbert = next(kind for kind in self.models if kind[0] is None)
        # The XTRs trained on ColBERT's batches, by k_train; of these the best on the dev queries, over all
        # seeds: as the paper chooses.
        self.xtrs = sorted(kind for kind in self.models if kind[0] and kind[1] == self.colbert[1])
        self.xtr = max(self.xtrs, key=lambda kind: self.values(kind, "dev").mean())
        self.pair = self.colbert, self.xtr
        self.sizes = sorted({size for k_train, size in self.models if k_train})  # of the XTRs' batches

    def values(self, kind: Kind, *path: object) -> Values:
        """One number for each seed and query: what stands at `path` in the measured files."""
        return at_path(self.models[kind], *map(str, path))


def claims(found: Found) -> list[Claim]:
    """Every claim for which there are models."""
    (colbert, xtr), made = found.pair, list[Claim]()
    few, many, k = found.search_tokens[0], found.search_tokens[-1], found.table_tokens
    lexical = found.bm25.mean("RR@10")

    def heard(*kinds: Kind) -> str:
        means = {label(kind): found.values(kind, "gather", many, "RR@10").mean() for kind in kinds}
        return unlearned(means, lexical, [model for kind in kinds for model in found.models[kind]])

    poor = heard(*found.pair)

    def claim(place: str, sentence: str, quantity: str, contrast: Values, **more: Any) -> None:
        made.append(Claim(f"{PAPER}, {place}", sentence, quantity, contrast, **{"unlearned": poor} | more))

    def imputed(kind: Kind, k: int, measure: str = "RR@10") -> Values:
        return found.values(kind, "impute", k, measure)

    def gathered(kind: Kind, measure: str = "RR@10", k: int = k) -> Values:
        return found.values(kind, "gather", k, measure)

    def tokens(place: str, sentence: str, name: str, what: str, sign: int = 1, times: int = 1) -> None:
        """Of a share of the tokens: XTR less so many times ColBERT, or the other way round."""
        contrast = found.values(xtr, "tokens", name) - times * found.values(colbert, "tokens", name)
        names = ["XTR", f"{times} · ColBERT" if times > 1 else "ColBERT"]
        claim(place, sentence, f"{what}, {' − '.join(names[::sign])}", sign * contrast)

    gold, equal = f"P(gold) in the first {TOP}", f"P(lexically equal) in the first {TOP}"
    others = f"mean cosine of the first {TOP} tokens from other documents"
    share = f"share of gold tokens that are in the first {TOP} of a query token"
    tokens("Figure 2", HIGH, "score of others", others, -1)
    tokens("§5.1, Figure 4", "XTR retrieves gold tokens with higher probability", "gold", gold)
    sentence = "doubling the chances of a gold token being retrieved in the top-k results"
    tokens("§1", sentence, "gold", gold, times=2)
    tokens("§5.1", "a similar trend for the recall of gold tokens", "gold recall", share)
    sentence = "XTR effectively lowers the reliance on the lexical matching"
    tokens("§5.1, Figure 4", sentence, "lexical", equal, -1)

    contrast = imputed(xtr, k, "nDCG@10") - gathered(colbert, "nDCG@10")
    quantity = f"nDCG@10, XTR imputing − ColBERT gathering, k' = {k}"
    claim("§4.1", "remains competitive with T5-ColBERT", quantity, contrast, margin=MARGIN)
    quantity = f"RR@10, ColBERT gathering − imputing, above {MARGIN}, k' = {k}"
    claim("§5.2, Table 5", WORSE, quantity, gathered(colbert) - imputed(colbert, k), margin=-MARGIN)
    quantity = f"RR@10 imputing, XTR − ColBERT, k' = {k}"
    claim("§5.2, Table 5", BETTER, quantity, imputed(xtr, k) - imputed(colbert, k))
    quantity = f"R@100 imputing, XTR − ColBERT, k' = {k}"
    sentence = "XTR demonstrates much better recall of the token retrieval stage compared to ColBERT"
    contrast = imputed(xtr, k, "R@100") - imputed(colbert, k, "R@100")
    claim("abstract, Figure 5", sentence, quantity, contrast)
    quantity = f"R@100, XTR imputing − ColBERT gathering, k' = {many}"
    contrast = imputed(xtr, many, "R@100") - gathered(colbert, "R@100", many)
    claim("Table D.1", "On the other hand, XTR greatly improves the recall", quantity, contrast)
    if found.models[xtr][0]["R@1000"]:
        quantity = f"R@1000 imputing, XTR − ColBERT, k' = {k}"
        contrast = found.values(xtr, "R@1000", "kth") - found.values(colbert, "R@1000", "kth")
        claim("§5.2, Table 5", BETTER, quantity, contrast)
    quantity = f"RR@10 imputing − gathering, of XTR less that of ColBERT, k' = {k}"
    contrast = imputed(xtr, k) - gathered(xtr) - imputed(colbert, k) + gathered(colbert)
    claim("§3.2", "works well especially when a model is trained with f_XTR", quantity, contrast)
    quantity = f"RR@10 of XTR, k'-th score − power law, k' = {k}"
    kth, law = (found.values(xtr, "imputations", name, "RR@10") for name in ("kth", "power_law"))
    sentence = "more complicated imputation methods based on regression, our method was competitive enough"
    claim("§3.2", sentence, quantity, kth - law, margin=MARGIN)

    quantity = f"R@100 of XTR imputing, k' = {many} − k' = {few}"
    contrast = imputed(xtr, many, "R@100") - imputed(xtr, few, "R@100")
    claim("§5.2, Figure 5", "Recall@100 improves with larger k′", quantity, contrast)
    quantity = f"nDCG@10 of XTR imputing, k' = {k} − k' = {many}"
    contrast = imputed(xtr, k, "nDCG@10") - imputed(xtr, many, "nDCG@10")
    sentence = "even if we use smaller k′, XTR still maintains high performances"
    claim("§5.2, Table D.2", sentence, quantity, contrast, margin=MARGIN)
    for kind in found.xtrs:
        quantity = f"RR@10 of {label(kind)}, k' = {many} − k' = {few}"
        contrast, own = imputed(kind, many) - imputed(kind, few), {"unlearned": heard(kind)}
        claim("§5.3, Figure 6", "all variants of XTR prefer larger k′", quantity, contrast, **own)
    small, large = found.xtrs[0], found.xtrs[-1]
    if small != large:
        both = {"unlearned": heard(small, large)}
        for sentence, at, better, worse in ((SMALL, few, small, large), (LARGE, many, large, small)):
            quantity = f"RR@10 at k' = {at}, k_train = {better[0]} − {worse[0]}"
            claim("§5.3, Figure 6", sentence, quantity, imputed(better, at) - imputed(worse, at), **both)
        if ARGUMENTS in found.name.lower():
            quantity = f"nDCG@10 on {found.name}, k' = {many}, k_train = {small[0]} − {large[0]}"
            contrast = imputed(small, many, "nDCG@10") - imputed(large, many, "nDCG@10")
            claim("§5.3, Figure 7", "ArguAna prefers smaller k_train", quantity, contrast, **both)
    if len(found.sizes) > 1:
        least, most = (
            np.mean([imputed((kind[0], size), many, "nDCG@10") for kind in found.xtrs], 0)
            for size in (found.sizes[0], found.sizes[-1])
        )
        quantity = f"nDCG@10, k' = {many}, batches of {found.sizes[-1]} − {found.sizes[0]}, mean over k_train"
        kinds = [(k_train, size) for k_train, _ in found.xtrs for size in found.sizes]
        sentence = "XTR mostly favors large training batch sizes"
        claim("§5.3, Figure 7", sentence, quantity, most - least, unlearned=heard(*kinds))
    if found.models[xtr][0]["costs"]:
        sentence = "making the scoring stage two-to-three orders of magnitude cheaper"
        for unit, printed in (("FLOPs", "log₁₀ 4000 = 3.6"), ("ms", "")):
            gather, impute = (found.values(xtr, "costs", f"{way} {unit}") for way in ("gather", "impute"))
            quantity = f"log₁₀ of gathering's {unit} / imputing's, above 2, k' = {k}"
            more = {"margin": -2.0, "printed": printed, "unlearned": ""}
            claim("§1, Table 1", sentence, quantity, np.log10(gather / impute), **more)
    return made


def describe(found: Found) -> dict[str, Section]:
    """Sections of the page, by the name of their files."""
    xs, many, every = found.search_tokens, found.search_tokens[-1], (found.colbert, *found.xtrs)
    ranks = [int(rank) for rank in found.models[found.colbert][0]["by rank"]["gold"]]
    by_rank = {
        f"P({text}) at rank r": {
            label(kind): [found.values(kind, "by rank", name, r) for r in ranks] for kind in every
        }
        for name, text in (("gold", "gold"), ("lexical", "lexically equal"))
    }
    recall = {
        f"{label(kind)}, {text}": [found.values(kind, way, k, "R@100") for k in xs]
        for way, text in (("impute", "imputed"), ("gather", "gathered"))
        for kind in found.pair
    }
    by_k = {label(kind): [found.values(kind, "impute", k, "RR@10") for k in xs] for kind in every}
    by_size = {
        label(kind): [found.values((kind[0], n), "impute", many, "nDCG@10") for n in found.sizes]
        for kind in found.xtrs
    }
    costs = found.models[found.xtr][0]["costs"]
    said = f"XTR is {label(found.xtr)}, chosen by RR@10 of the dev queries."
    figure_7 = f"Batch size and k_train, imputing with k' = {many} (Figure 7)"
    return {
        "claims": verdicts(claims(found), said, undecided("token retrieval"), _example(found)),
        "figure4": Curves("r", ranks, by_rank).section("Gold and lexical token retrieval (Figure 4)"),
        "figure5": Curves("k'", xs, {"R@100": recall}).section("f_XTR' and f_ColBERT against k' (Figure 5)"),
        "figure6": Curves("k'", xs, {"RR@10": by_k}).section("k_train and k', imputing (Figure 6)"),
        "figure7": Curves("queries of a batch", found.sizes, {"nDCG@10": by_size}).section(figure_7),
        "table5": Section(
            "Imputation and training objective (Table 5)",
            f"k' = {found.table_tokens}. Gathered: f_ColBERT of the same candidates.",
            _imputations(found),
        ),
        "table1": Section(
            "Cost of a query (Table 1)",
            f"{label(found.xtr)}, k' = {found.table_tokens}, both ways from the same retrieved tokens; means "
            "over the timed queries and the seeds, on the machine below, scoring on its CPU. Gathering is a "
            "rerank by the index; FLOPs as in appendix B, for the candidates that there are.",
            [{"of a query": n, "mean": found.values(found.xtr, "costs", n).mean()} for n in costs],
        ),
    }


def _example(found: Found) -> Rows:
    """Table E.4: one token of one query, in collections that have it."""
    shares = [[model.get("example") for model in found.models[kind]] for kind in found.pair]
    if None in shares[0]:
        return []
    colbert, xtr = np.array(shares, dtype=float).mean(1)
    quantity, printed = f"lexically equal in the first {TOP}, ColBERT and XTR", "72%, 33%"
    counted = (f"{UNDECIDED}: one token of one query", quantity, printed, f"{colbert:.0%}, {xtr:.0%}")
    return [row_without_test(f"{PAPER}, Table E.4", EXAMPLE, *counted, "counted")]


def _imputations(found: Found) -> Rows:
    paths = {name: ("imputations", name) for name in IMPUTATIONS}
    paths |= {"– (gathered)": ("gather", str(found.table_tokens))}
    rows: Rows = [{"model": "BM25", "imputation": "–"} | {m: f"{found.bm25.mean(m):.3f}" for m in MEASURES}]
    for kind in found.pair:
        for name, path in paths.items():
            row = {"model": label(kind), "imputation": name}
            rows.append(row | {m: found.values(kind, *path, m) for m in MEASURES})
    if found.models[found.xtr][0]["R@1000"]:
        rows[0]["R@1000"] = "–"
        for row, (kind, name) in zip(rows[1:], [(k, n) for k in found.pair for n in paths], strict=True):
            row["R@1000"] = found.values(kind, "R@1000", name if name in IMPUTATIONS else "gathered")
    return rows
