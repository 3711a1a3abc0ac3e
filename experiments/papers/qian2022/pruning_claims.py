"""Test the claims of Qian et al. 2022, §4.3, about pruning by salience; make the tables and figures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from papers.qian2022.adaptation_claims import SHARE
from studies.curves import Curves, Values, at_path
from studies.model_runs import training_section, unlearned, unmoved
from studies.pages import Measured, Rows, Section, printed, row_without_test, verdicts

from paradigms.evaluate import PerQuery
from paradigms.evaluate.adaptation import adapt
from paradigms.evaluate.claims import CONTRADICTED, READOUT, REPRODUCED, TRAINING, Claim
from paradigms.evaluate.gate import FLAT, Gate

PRINTED = printed("qian2022")
PAPER, SAID = "Qian et al. 2022", PRINTED["pruning"]  # name -> place, claim
RR_PRINTED = {(q, d): value for q, d, value in PRINTED["RR@10"]}  # (β^q, β^d) -> MS MARCO's
MARGIN = 0.02  # smaller differences of a measure count as "similarly", "accurate", "comparably"
Pair = tuple[float, float]  # β^q, β^d
Side = tuple[str, list[Pair]]  # a method, and the pairs to average over
WHOLE: Pair = (1.0, 1.0)
COSTS = ("bytes/document", "search ms/query", "search multiply-adds/query")
STAGES = {"refined": "refined with all vectors", "pruned": "the pruned index alone"}
SALIENT_IN = ("documents", "queries")
ONE_COEFFICIENT = "one coefficient of L1 was tried, and the claim is about a proper one"
L1 = "l1-"  # start of the name of an L1 method; its coefficient follows
ON_DEV = "RR@10 on dev queries"  # key in the results of a model: a value for each pair
JUDGED = 8  # judged queries for choosing an alignment after pruning


class PruningResults:
    """Measurements of all models, and the pruning ratios used in training."""

    def __init__(self, results: Sequence[Measured], trained: Pair, bm25: PerQuery) -> None:
        self.results, self.trained, self.bm25 = results, trained, bm25
        self.models: dict[str, list[Measured]] = {}  # by method
        for result in results:
            self.models.setdefault(result["method"], []).append(result)
        self.pairs = [(point["query_keep"], point["document_keep"]) for point in results[0]["points"]]
        costs = [[[point[name] for name in COSTS] for point in result["points"]] for result in results]
        self.costs = np.mean(costs, axis=0)  # [pairs, COSTS], means over models
        self.saved = 1 - self.costs / self.costs[self.pairs.index(WHOLE)]  # relative to no pruning

    def proper(self) -> str:
        """Return the L1 method with the highest RR@10 on dev queries, or "" if L1 was not trained.

        The paper speaks of a “proper coefficient” without giving its value (§4.3).
        """
        scores = {
            method: np.mean([self.on_dev(model) for model in models])
            for method, models in self.models.items()
            if method.startswith(L1)
        }
        return max(scores, key=scores.__getitem__, default="")

    def on_dev(self, model: Measured) -> float:
        """Return RR@10 on dev queries, averaged over the pairs that prune documents, with β^q as trained."""
        pruned = [self.pairs.index(pair) for pair in self.along(1) if pair[1] < 1]
        return float(np.mean(np.take(model[ON_DEV], pruned)))

    def values(self, method: str, pair: Pair, measure: str = "RR@10", stage: str = "refined") -> Values:
        return at_path(self.models[method], "points", self.pairs.index(pair), stage, measure)

    def along(self, side: int) -> list[Pair]:
        """Return the measured pairs in which only the ratio of `side` varies, in ascending order."""
        return sorted(pair for pair in self.pairs if pair[1 - side] == self.trained[1 - side])

    def limits(self, said: str, *methods: str) -> dict[str, str]:
        """Return the fields that can leave a `Claim` about these methods undecided."""
        means = {label(method): self.values(method, WHOLE).mean() for method in methods}
        models = [model for method in methods for model in self.models[method]]
        return {
            "unlearned": self._flat(methods) or unlearned(means, self.bm25.mean("RR@10"), models),
            "unmoved": unmoved({label(method): self.models[method] for method in methods}),
            "about": READOUT if said in PRINTED["readouts"] else TRAINING,
        }

    def _flat(self, methods: Sequence[str]) -> str:
        """Describe the first flat gate (`Gate.flat`), if any, for `Claim.unlearned`; "" if no gate is flat.

        A claim about a method with a flat gate has no verdict.
        """
        for method in methods:
            gates = [Gate(**model["gate"]) for model in self.models[method] if model.get("gate")]
            if any(gate.flat for gate in gates):
                relative = min(gate.relative for gate in gates)
                return f"{label(method)}, whose salience deviates by {relative:.1%} within a document,"
        return ""


def claims(pruning: PruningResults) -> list[Claim]:
    """Return every claim of §4.3 whose models and ratios were measured. The full model has no salience."""
    (q, d), none, made = pruning.trained, ("none", [WHOLE]), list[Claim]()
    pruned = [pair for pair in pruning.along(1) if pair[1] < 1]
    few = [pair for pair in pruned if pair[1] <= 0.2]

    def at(document: float, query: float = q, method: str = "entropic") -> tuple[str, list[Pair]]:
        return method, [(query, document)]

    def claim(said: str, more: Side, less: Side, measure: str = "RR@10", **how: Any) -> None:
        """Add a claim about the difference between two methods' means, each taken over pairs of ratios."""
        chosen, methods = {*more[1], *less[1]}, (more[0], less[0])
        if not set(methods) <= pruning.models.keys() or not more[1] or not chosen <= set(pruning.pairs):
            return
        a, b = (np.mean([pruning.values(m, p, measure) for p in pairs], 0) for m, pairs in (more, less))
        quantity = f"{measure}, " + " − ".join(f"{label(m)} at {_shares(pairs)}" for m, pairs in (more, less))
        limits, (place, statement) = pruning.limits(said, *dict.fromkeys(methods)), SAID[said]
        made.append(Claim(f"{PAPER}, {place}", statement, quantity, a - b, **limits, **how))

    near: dict[str, Any] = {"margin": MARGIN}
    claim("same ratio", at(d), none, **near, printed="−0.007")
    claim("a tenth", at(0.1), none, **near, printed="−0.015")
    claim("a fifth", at(0.2, 0.5), none, "nDCG@10", margin=0.01)
    claim("both", at(0.2, 0.3), none, "nDCG@10", **near)
    claim("30% of queries", at(d, 0.3), at(d), **near)
    claim("10% of queries", at(d), at(d, 0.1))
    claim("ReLU", at(0.4, q, "relu"), none, **near)
    claim("ReLU degrades", at(0.4, q, "relu"), at(0.1, q, "relu"))
    claim("hard", ("entropic", pruned), ("hard", pruned))
    l1 = pruning.proper()
    lacking = ONE_COEFFICIENT if sum(method.startswith(L1) for method in pruning.models) == 1 else ""
    claim("L1", (l1, pruned), ("entropic", pruned), **near, equal=True, lacking=lacking)
    claim("L1 better", at(0.05, q, l1), at(0.05), lacking=lacking)
    claim("important", ("entropic", few), ("none", few))
    return [*made, *_of_tokens(pruning)]


def _of_tokens(pruning: PruningResults) -> list[Claim]:
    """Return the claims about salient tokens and about adapting the alignment after pruning."""
    gated, made = pruning.models.get("entropic", []), list[Claim]()
    if gated:
        limits = pruning.limits("content words", "entropic")
        place, statement = SAID["content words"]
        for side in SALIENT_IN:
            quantity = f"rank by salience in {side}, content words − function words, as a share of the tokens"
            contrast = at_path(gated, "content words", side)
            made.append(Claim(f"{PAPER}, {place}", statement, quantity, contrast, **limits))
        values = np.array([list(model["strategies"].values()) for model in gated])
        if values.shape[-1] >= SHARE * JUDGED:
            place, statement = SAID["adaptation"]
            how = f"alignment adapted with {JUDGED} examples − k = 1, above {-MARGIN:g}"
            quantity = f"nDCG@10 at β^d = 20%, {how}"
            contrast = np.stack([adapt(of_seed, JUDGED).gain for of_seed in values])
            where = f"{PAPER}, {place}"
            limits = pruning.limits("adaptation", "entropic")
            made.append(Claim(where, statement, quantity, contrast, margin=MARGIN, **limits))
    return made


def _counted(pruning: PruningResults) -> Rows:
    """Make the rows that need no significance test: savings by pruning, and the share of retrieved tokens."""
    rows: Rows = []

    def tell(said: str, quantity: str, printed: float, share: float, verdict: str) -> None:
        place, statement = SAID[said]
        cells = {"quantity": quantity, "printed": f"{100 * printed:g}%", "measured": f"{share:.1%}"}
        rows.append(row_without_test(f"{PAPER}, {place}", statement, verdict, **cells, sample="counted"))

    if (0.3, 0.2) in pruning.pairs:
        saved = pruning.saved[pruning.pairs.index((0.3, 0.2))]
        for what, least, share in (("bytes of the index", 0.8, saved[0]), ("multiply-adds", 0.94, saved[2])):
            verdict = REPRODUCED if share > least - 0.02 else CONTRADICTED
            tell(what, f"{what} saved at β^q = 30%, β^d = 20%", least, share, verdict)
    if retrieved := [result["retrieved"] for result in pruning.results if "retrieved" in result]:
        quantity = (
            f"tokens that {len(pruning.bm25.queries)} queries retrieve, of the most retrieved documents"
        )
        verdict = "not decided here: depends on the number of queries and documents"
        tell("retrieved", quantity, 0.128, float(np.mean(retrieved)), verdict)
    return rows


def label(method: str) -> str:
    return "without salience" if method == "none" else method.replace(L1, "L1, γ = ")


def _shares(pairs: list[Pair]) -> str:
    if pairs == [WHOLE]:
        return "all tokens"
    shares = ", ".join(f"{d:.0%}" for _, d in pairs)
    return f"β^q = {pairs[0][0]:.0%}, β^d = {shares}"


def describe(pruning: PruningResults) -> dict[str, Section]:
    """Return the page's sections, keyed by file name."""

    def curves(side: int, symbol: str, kept: str) -> Section:
        line = pruning.along(side)
        panels = {
            f"RR@10, {text}": {
                label(method): [pruning.values(method, pair, "RR@10", stage) for pair in line]
                for method in pruning.models
            }
            for stage, text in STAGES.items()
        }
        theirs = [RR_PRINTED.get(pair) for pair in line]
        printed = {next(iter(panels)): {"MS MARCO": theirs}}
        figure = Curves(symbol, [pair[side] for pair in line], panels, printed=printed)
        control = "Without salience the first tokens are kept: the control."
        return figure.section(f"RR@10 against the share of {kept} (Figure 6)", control)

    q, d = pruning.trained
    gates: Rows = [
        {"method": label(method), "seed": model["seed"]} | model["gate"] | {ON_DEV: pruning.on_dev(model)}
        for method, models in pruning.models.items()
        for model in models
        if model.get("gate")
    ]
    costs: Rows = [
        {"β^q": f"{q:g}", "β^d": f"{d:g}"}
        | dict(zip(COSTS, map(float, mean), strict=True))
        | {"bytes saved": f"{share[0]:.1%}", "multiply-adds saved": f"{share[2]:.1%}"}
        for (q, d), mean, share in zip(pruning.pairs, pruning.costs, pruning.saved, strict=True)
    ]
    return {
        "training": training_section({label(method): models for method, models in pruning.models.items()}),
        "claims": verdicts(
            claims(pruning),
            "On candidates of the pruned index, refined with all vectors; bytes are the pruned index's. "
            "The paper measures MRR@10 on MS MARCO (Figure 6) and nDCG@10 on BEIR (Figure 7). Content words "
            "are those that are not in a list of function words.",
            PRINTED["undecided pruning"],
            _counted(pruning),
        ),
        "gates": Section(
            "Salience of document tokens",
            "mean: of all document tokens' saliences. deviation: their standard deviation within a document, "
            "averaged over documents. relative: the same divided by the document's mean; below "
            f"{FLAT:g} a gate is flat, and no verdict rests on it. sparsity: share of tokens below a "
            f"hundredth of their document's largest salience. {ON_DEV}: mean over β^d below 100%, refined. "
            "Claims about L1 are about the γ with the highest.",
            gates,
        ),
        "document_tokens": curves(1, "β^d", f"document tokens kept, β^q = {q:.0%}"),
        "query_tokens": curves(0, "β^q", f"query tokens kept, β^d = {d:.0%}"),
        "costs": Section(
            "Costs of each pair of ratios, means over models",
            "The search reads every stored token; its milliseconds are those after the query's encoding.",
            costs,
        ),
    }
