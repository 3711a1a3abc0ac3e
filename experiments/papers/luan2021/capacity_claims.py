"""Test the claims in Luan et al. 2021, §§1, 5 and 6, and make Figure 1 and Table A.1 for capacity.py."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from papers.luan2021.capacity_tasks import BI, UNI
from studies.curves import Curves
from studies.model_runs import training_section, unmoved
from studies.pages import Rows, Section, cell, printed, verdicts

from paradigms.evaluate.claims import TRAINING, Claim
from theory.collection import Dimension

STAGES = {"rerank": "reranking", "retrieve": "retrieval"}
FIRST = "Recall@1, retrieval"  # the measure of Figure 1, a key beside the stages
MEASURES = {"containing": "RR@10", "answers": "recall at a fixed number of tokens"}
CROSS, INIT = "CROSS-ATTENTION", "BERT-INIT"
MARGIN = 0.02  # smaller differences of the measure count as "does not degrade"
# Share of BM25-uni's measure at the same length. A system below this share, and below a random projection of
# the same size, has not learned the task and says nothing about capacity. The paper's smallest is 0.34.
LEARNED = 0.3
PAPER_LENGTHS = (50, 100, 200, 400)
PRINTED = printed("luan2021")
TABLE_A1, SAID = PRINTED["table a1"], PRINTED["capacity"]

Terms = list[tuple[float, str, int]]  # weight, system, length


@dataclass
class CapacityResults:
    """Measurements and theoretical predictions at all lengths, and the paper's statements."""

    task: str
    lengths: list[int]
    results: Sequence[Any]
    predictions: Any  # length -> result of capacity_tasks.predict
    sizes: Mapping[str, int]  # system -> numbers per passage, for systems that encode passages

    def __post_init__(self) -> None:
        # (system, length) -> results by seed, with what training changed on dev queries
        self.trainings: dict[tuple[str, int], list[Any]] = {}
        for result in self.results:
            if result.get("kept step") is not None:
                self.trainings.setdefault((result["system"], result["length"]), []).append(result)
        # stage -> system -> length -> [seeds, queries]; all seeds have the same queries
        self.values: dict[str, dict[str, dict[int, Any]]] = {stage: {} for stage in STAGES}
        for result in self.results:
            for system, stages in result["stages"].items():
                for stage, row in stages.items():
                    by_length = self.values[stage].setdefault(system, {})
                    by_length[result["length"]] = np.vstack([*by_length.get(result["length"], ()), row])
        if self.task == "containing":  # only one passage is relevant; it ranks first if RR@10 = 1
            self.values[FIRST] = {
                system: {length: np.where(values == 1, 1.0, 0.0) for length, values in by_length.items()}
                for system, by_length in self.values["retrieve"].items()
            }

    def paper(self, stage: str) -> dict[str, dict[int, float]]:
        """Return {system: {length: measure}} from Table A.1, as fractions; empty for Figure 1."""
        if stage == FIRST:
            return {}
        column = list(STAGES).index(stage)
        cells = {system: row.split("|")[column].split() for system, row in TABLE_A1[self.task].items()}
        shares = {system: [float(cell) / 100 for cell in row] for system, row in cells.items() if row}
        return {system: dict(zip(PAPER_LENGTHS, row, strict=True)) for system, row in shares.items()}

    def expected(self, system: str, length: int) -> float:
        """Return the measure expected of BM25-uni's vectors after random projection to the system's width."""
        return float(np.mean(self.predictions[length]["values"][str(self.sizes[system])]))

    def learned(self, system: str) -> bool:
        """Return whether the system has learned enough, at every passage length, to be compared.

        Its score must reach `LEARNED` times BM25-uni's, or the score expected under a random projection to
        its dimension if that is lower. If the system can search, retrieval is scored instead of reranking,
        because even a poorly trained system ranks well among few candidates.
        """
        stage = "retrieve" if system in self.values["retrieve"] else "rerank"
        for length in self.lengths:
            least = LEARNED * float(self.values[stage][UNI][length].mean())
            if stage == "retrieve" and system in self.sizes:
                least = min(least, self.expected(system, length))
            if self.values[stage][system][length].mean() < least:
                return False
        return True

    def trained(self, systems: Iterable[str]) -> dict[str, list[Any]]:
        """Return the training results of the named systems and of hybrids' dense parts, at each length."""
        names = {parts(name)[0] if name.startswith("HYBRID-") else name for name in systems}
        return {f"{s}, {n} tokens": seeds for (s, n), seeds in self.trainings.items() if s in names}

    def claims(self) -> list[Claim]:
        """Return the paper's claims about the measured systems.

        Claims that compare lengths need at least two lengths.
        """
        made, section = [], {"containing": "§5", "answers": "§6"}[self.task]
        for name, contrasts in self._contrasts().items():
            [(stage, statement)] = SAID[self.task][name].items()
            values, paper = self.values[stage], self.paper(stage)
            place = f"Luan et al. 2021, {'§1, Figure 1' if stage == FIRST else section}"
            measure = FIRST if stage == FIRST else f"{MEASURES[self.task]}, {STAGES[stage]}"
            for quantity, terms, margin in contrasts:
                systems = {system for _, system, _ in terms}
                if systems - values.keys() or ("length" in quantity and len(self.lengths) < 2):
                    continue
                known = systems <= paper.keys() and set(self.lengths) <= set(PAPER_LENGTHS)
                printed = f"{sum(w * paper[s][n] for w, s, n in terms):+.3f}" if known else ""
                unlearned = ", ".join(s for s in sorted(systems) if not self.learned(s))
                contrast = sum(w * values[s][n] for w, s, n in terms)
                still = unmoved(self.trained(systems))
                more = {"unlearned": unlearned, "about": TRAINING, "unmoved": still}
                measured = f"{measure}: {quantity}"
                made.append(Claim(place, statement, measured, contrast, margin, printed=printed, **more))
        return made

    def _contrasts(self) -> dict[str, list[tuple[str, Terms, float]]]:
        """Return {name in SAID: [(quantity, terms of Σ weight · measure(system, length), margin)]}."""
        order = sorted(self.sizes, key=lambda name: (self.sizes[name], not name[-1].isdigit()))
        single, multiple = ([name for name in order if name.startswith(kind)] for kind in ("DE-", "ME-"))
        wide, lengths, longest = single[-1:], self.lengths, self.lengths[-1:]
        numbered = [m for m in multiple if m[-1].isdigit()]
        hybrids = [name for name in self.values["retrieve"] if name.startswith("HYBRID-")]
        pairs = [(m, m.replace("ME-BERT-64", "DE-BERT-512").replace("ME-BERT", "DE-BERT")) for m in multiple]

        def over(a: str, b: str, at: list[int] = lengths) -> tuple[str, Terms, float]:
            where = "" if at == lengths else f", {at[0]} tokens"
            return f"{a} − {b}{where}", [(w / len(at), s, n) for w, s in ((1, a), (-1, b)) for n in at], 0.0

        def fall(name: str) -> Terms:
            return [(1, name, lengths[0]), (-1, name, lengths[-1])]

        def gain(a: str, b: str) -> tuple[str, Terms, float]:
            return f"{a} − {b}: gain with length", [*fall(b), *((-w, s, n) for w, s, n in fall(a))], 0.0

        of_hybrids = [over(h, part) for h in hybrids for part in parts(h)]
        gains = [gain(h, parts(h)[0]) for h in hybrids]
        if self.task == "answers":
            return {
                "more dimensions": [over(w, n) for w in wide for n in single[:1] if w != n],
                "more vectors": [over(*pair) for pair in pairs],
                "more vectors for longer documents": [gain(*pair) for pair in pairs],
                "cross-attention": [over(CROSS, n) for n in [*wide, *multiple][-1:]],
                "BM25": [over(w, UNI, longest) for w in wide],
                "hybrids": of_hybrids,
                "hybrids for longer documents": gains,
            }
        rise = [(-w, s, n) for w, s, n in fall(CROSS)]
        return {
            "BM25 first": [contrast(UNI, w) for w in wide for contrast in (over, gain)],
            "length": [(f"{name}: loss with length", fall(name), 0.0) for name in (UNI, *single)],
            "the gap to BM25": [gain(UNI, name) for name in single],
            "cross-attention": [(f"{CROSS}: gain with length", rise, MARGIN)],
            "eight vectors": [over(m, w) for m in multiple if m not in numbered for w in wide],
            "eight small vectors": [over(m, w) for m in numbered for w in wide],
            "several vectors": [over(m, UNI, [n]) for m in multiple for n in lengths],
            "one vector": [over(UNI, name) for name in single],
            "hybrids": of_hybrids,
            "hybrids for longer documents": gains,
            "BM25-bi": [(f"{BI}, {n} tokens", [(1.0, BI, n)], -0.95) for n in longest],
        }


def parts(hybrid: str) -> tuple[str, str]:
    """Return the names of a hybrid's dense system and BM25 variant."""
    dense, sparse = hybrid.removeprefix("HYBRID-").rsplit("-", 1)
    return dense, f"BM25-{sparse}"


def describe(results: CapacityResults) -> dict[str, Section]:
    """Return the page's sections, keyed by file name.

    In the figures, dotted lines show random projections to the encoders' dimensions.
    """
    measure, lengths = MEASURES[results.task], results.lengths
    sections = {
        "claims": verdicts(
            results.claims(),
            f"A system has learned if at every length it retrieves with {LEARNED:.0%} of {UNI}'s measure, or "
            f"as well as a random projection of its size. Not to degrade is to lose less than {MARGIN}.",
        )
    }
    if results.trainings:
        sections["training"] = training_section(results.trained(system for system, _ in results.trainings))
    for stage, name in STAGES.items():
        paper, rows = results.paper(stage), []
        for system, by_length in results.values[stage].items():
            said = {n: f" ({share:.3f})" for n, share in paper.get(system, {}).items()}
            cells = {str(n): cell(by_length[n]) + said.get(n, "") for n in lengths}
            rows.append({"system": system} | cells)
        text = f"{measure}; in parentheses the paper's, with 768 numbers a vector where no k is named."
        heading = f"{name.capitalize()} by passage length (Table A.1)"
        series = {system: [values[n] for n in lengths] for system, values in results.values[stage].items()}
        expected = {s: [results.expected(s, n) for n in lengths] for s in results.sizes}
        dotted, label = expected if stage == "retrieve" else None, f"{name}: {measure}"
        theirs = {s: [paper[s].get(n) for n in lengths] for s in series if s in paper}
        how: dict[str, Any] = {"dotted": dotted, "printed": {label: theirs}}
        figure = Curves("tokens of a passage at most", lengths, {label: series}, **how).draw()
        sections[f"table_{stage}"] = Section(heading, text, rows, figure)
    if FIRST in results.values:
        drawn = {
            s: by_length
            for s, by_length in results.values[FIRST].items()
            if s in (UNI, INIT) or s.startswith("DE-BERT")
        }
        first = {system: [by_length[n] for n in lengths] for system, by_length in drawn.items()}
        curves = Curves("tokens of a passage at most", lengths, {FIRST: first})
        text = "The passage with the query, first of all passages. BERT-INIT: the encoder as it comes."
        heading = "Recall@1 by passage length (Figure 1)"
        sections["figure1"] = Section(heading, text, curves.rows, curves.draw())
    theory: Rows = []
    for length in lengths:
        theory.append({"length": length, "k*": str(Dimension(*results.predictions[length]["k*"]))})
        for system, size in results.sizes.items():
            trained = results.values["retrieve"][system][length].mean()
            pair = f"{results.expected(system, length):.3f}, {trained:.3f} measured"
            theory[-1][f"{system}: k = {size}"] = pair
    sections["theory"] = Section(
        "One random projection of BM25's vectors to k numbers, and the encoders that have as many",
        f"k*: dimensions of a random projection of {UNI}'s vectors that keep its first passage first for 95% "
        "of the queries, with the 95% interval over queries. In the other columns, the first number is the "
        f"expected {measure} of retrieval by such a projection to the encoder's number of dimensions (dotted "
        "in the figure), the second the encoder's. An encoder below the first is not limited by its size.",
        theory,
    )
    return sections
