"""Describe salience_pruning.py: the claims of Qian et al. 2022, §4.3, about pruning by salience."""

from collections.abc import Mapping, Sequence

import numpy as np
from papers.qian2022.adaptation_claims import SHARE
from studies.claims import Study, Values, printed
from studies.curves import Curves, at_path
from studies.gains import training_section, unlearned
from studies.pages import Measured, Rows, Section

from paradigms.evaluate import PerQuery
from paradigms.evaluate.adaptation import adapt
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED
from paradigms.evaluate.gate import FLAT, Gate

RR_PRINTED = {(q, d): value for q, d, value in printed("qian2022")["RR@10"]}  # (β^q, β^d) -> MS MARCO's
Pair = tuple[float, float]  # β^q, β^d
WHOLE: Pair = (1.0, 1.0)
COSTS = ("bytes/document", "search ms/query", "search multiply-adds/query")
MEASURES = ("RR@10", "nDCG@10")
STAGES = {"refined": "refined with all vectors", "pruned": "the pruned index alone"}
SALIENT_IN = ("documents", "queries")
L1 = "l1-"  # start of the name of an L1 method; its coefficient follows
ON_DEV = "RR@10 on dev queries"  # key in the results of a model: a value for each pair
JUDGED = 8  # judged queries for choosing an alignment after pruning
FIGURE_6: Pair = (0.3, 0.2)  # β^q, β^d of the savings
SAVED = {"bytes of the index": (0, 0.8), "multiply-adds": (2, 0.94)}  # index in COSTS, the paper's share
CLOSE = 0.02  # a share that is counted agrees with the paper's if it is not lower by more than this


def label(method: str) -> str:
    names = {"none": "without salience", "idf": "IDF"}
    return names.get(method, method.replace(L1, "L1, γ = "))


def at(pair: Pair) -> str:
    return "all tokens" if pair == WHOLE else f"β^q = {pair[0]:.0%}, β^d = {pair[1]:.0%}"


class PruningStudy:
    """Measurements of all models, and the pruning ratios used in training."""

    def __init__(self, results: Sequence[Measured], trained: Pair, bm25: PerQuery) -> None:
        self.results = results
        self.trained = trained
        self.bm25 = bm25
        self.models: dict[str, list[Measured]] = {}  # by label
        for result in results:
            self.models.setdefault(label(result["method"]), []).append(result)
        self.pairs = [(point["query_keep"], point["document_keep"]) for point in results[0]["points"]]
        costs = [[[point[name] for name in COSTS] for point in result["points"]] for result in results]
        self.costs = np.mean(costs, axis=0)  # [pairs, COSTS], means over models
        self.saved = 1 - self.costs / self.costs[self.pairs.index(WHOLE)]  # relative to no pruning

    def on_dev(self, model: Measured) -> float:
        """Return RR@10 on dev queries, averaged over the pairs that prune documents, with β^q as trained."""
        pruned = [self.pairs.index(pair) for pair in self.along(1) if pair[1] < 1]
        return float(np.mean(np.take(model[ON_DEV], pruned)))

    def values(self, name: str, pair: Pair, measure: str = "RR@10", stage: str = "refined") -> Values:
        return at_path(self.models[name], "points", self.pairs.index(pair), stage, measure)

    def along(self, side: int) -> list[Pair]:
        """Return the measured pairs in which only the ratio of `side` varies, in ascending order."""
        return sorted(pair for pair in self.pairs if pair[1 - side] == self.trained[1 - side])

    def study(self) -> Study:
        pruned = [pair for pair in self.along(1) if pair[1] < 1]
        means = {"mean over β^d below 100%": pruned}
        means["mean over β^d up to 20%"] = [pair for pair in pruned if pair[1] <= 0.2]
        values: dict[str, dict[str, Values]] = {}
        for measure in MEASURES:
            sides = values.setdefault(measure, {})
            for name in self.models:
                sides |= {f"{name}, {at(pair)}": self.values(name, pair, measure) for pair in self.pairs}
                for condition, pairs in means.items():
                    if pairs:
                        of_pairs = [self.values(name, pair, measure) for pair in pairs]
                        sides[f"{name}, {condition}"] = np.mean(of_pairs, axis=0)
        if gated := self.models.get("entropic"):
            salient = "rank by salience of content words over function words, as a share of the tokens"
            values[salient] = {
                f"entropic, in {kind}": at_path(gated, "content words", kind) for kind in SALIENT_IN
            }
            strategies = np.array([list(model["strategies"].values()) for model in gated])
            if strategies.shape[-1] >= SHARE * JUDGED:
                gains = np.stack([adapt(of_seed, JUDGED).gain for of_seed in strategies])
                side = f"entropic, gain by adapting with {JUDGED} examples"
                values["nDCG@10 at β^d = 20%"] = {side: gains}
        coefficients = [name for name in self.models if name.startswith("L1")]
        # The paper speaks of a “proper coefficient” without giving its value (§4.3).
        on_dev = {name: np.mean([self.on_dev(model) for model in self.models[name]]) for name in coefficients}
        groups = {"L1": [max(on_dev, key=lambda name: on_dev[name])] if on_dev else []}
        queries = self.bm25.queries
        return Study(values, groups, self.models, self.undecided, counts=self.counts(), queries=queries)

    def undecided(self, sides: Sequence[str]) -> dict[str, str]:
        """Return what leaves a claim undecided: no choice of a coefficient, a flat gate, a poor model."""
        names = [name for name in self.models if any(f"{side}, ".startswith(f"{name}, ") for side in sides)]
        coefficients = sum(name.startswith("L1") for name in self.models)
        if coefficients == 1 and any(name.startswith("L1") for name in names):
            return {"lacking": "one coefficient of L1 was tried, and the claim is about a proper one"}
        for name in names:
            gates = [Gate(**model["gate"]) for model in self.models[name] if model.get("gate")]
            if any(gate.flat for gate in gates):
                least = min(gate.relative for gate in gates)
                return {"unlearned": f"{name}, whose salience deviates by {least:.1%} within a document,"}
        means = {name: self.values(name, WHOLE).mean() for name in names}
        models = [model for name in names for model in self.models[name]]
        return {"unlearned": unlearned(means, self.bm25.mean("RR@10"), models)}

    def counts(self) -> Mapping[str, Mapping[str, str]]:
        """Return the savings by pruning, which need no significance test."""
        counts: dict[str, dict[str, str]] = {}
        for name, (place, share) in SAVED.items() if FIGURE_6 in self.pairs else ():
            saved = self.saved[self.pairs.index(FIGURE_6)][place]
            cells = {"quantity": f"{name} saved at {at(FIGURE_6)}", "printed": f"{100 * share:g}%"}
            cells |= {"measured": f"{saved:.1%}", "sample": "counted"}
            counts[name] = cells | {"verdict": REPRODUCED if saved > share - CLOSE else CONTRADICTED}
        return counts

    def curves(self, side: int, symbol: str, what: str) -> Section:
        """Plot RR@10 against β^q (side 0) or β^d (side 1)."""
        line = self.along(side)
        panels = {
            f"RR@10, {text}": {
                name: [self.values(name, pair, "RR@10", stage) for pair in line] for name in self.models
            }
            for stage, text in STAGES.items()
        }
        theirs = {next(iter(panels)): {"MS MARCO": [RR_PRINTED.get(pair) for pair in line]}}
        return Curves(symbol, [pair[side] for pair in line], panels, printed=theirs).section(
            f"RR@10 against the share of {what} (Figure 6)",
            "Without salience the first tokens are kept; IDF and random prune that model, too.",
        )

    def sections(self) -> dict[str, Section]:
        q, d = self.trained
        gates: Rows = [
            {"method": name, "seed": model["seed"]} | model["gate"] | {ON_DEV: self.on_dev(model)}
            for name, models in self.models.items()
            for model in models
            if model.get("gate")
        ]
        costs: Rows = [
            {"β^q": f"{q:g}", "β^d": f"{d:g}"}
            | dict(zip(COSTS, map(float, mean), strict=True))
            | {"bytes saved": f"{share[0]:.1%}", "multiply-adds saved": f"{share[2]:.1%}"}
            for (q, d), mean, share in zip(self.pairs, self.costs, self.saved, strict=True)
        ]
        return {
            "training": training_section(self.models),
            "claims": self.study().section(
                "qian2022",
                "pruning",
                "On candidates of the pruned index, refined with all vectors; bytes are the pruned index's. "
                "The paper measures MRR@10 on MS MARCO (Figure 6) and nDCG@10 on BEIR (Figure 7). Content "
                "words are those that are not in a list of function words.",
            ),
            "gates": Section(
                "Salience of document tokens",
                "mean: of all document tokens' saliences. deviation: their standard deviation within a "
                "document, averaged over documents. relative: the same divided by the document's mean; below "
                f"{FLAT:g} a gate is flat, and no verdict rests on it. sparsity: share of tokens below a "
                f"hundredth of their document's largest salience. {ON_DEV}: mean over β^d below 100%, "
                "refined. Claims about L1 are about the γ with the highest.",
                gates,
            ),
            "document_tokens": self.curves(1, "β^d", f"document tokens kept, β^q = {q:.0%}"),
            "query_tokens": self.curves(0, "β^q", f"query tokens kept, β^d = {d:.0%}"),
            "costs": Section(
                "Costs of each pair of ratios, means over models",
                "The search reads every stored token; its milliseconds are those after the query's encoding.",
                costs,
            ),
        }
