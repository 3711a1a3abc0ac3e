"""Describe capacity.py: the claims in Luan et al. 2021, §§1, 5 and 6, Figure 1 and Table A.1."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from papers.luan2021.capacity_tasks import RR, UNI
from studies import claims
from studies.claims import Study, Values
from studies.curves import Curves
from studies.gains import training_section
from studies.pages import Measured, Rows, Section, cell

from theory.collection import Dimension

STAGES = {"rerank": "reranking", "retrieve": "retrieval"}
FIRST = "Recall@1, retrieval"  # the measure of Figure 1
INIT = "BERT-INIT"
# Share of BM25-uni's measure at the same length. A system below this share, and below a random projection of
# the same size, has not learned the task and says nothing about capacity. The paper's smallest is 0.34.
LEARNED = 0.3
PAPER_LENGTHS = (50, 100, 200, 400)
TABLE_A1 = claims.printed("luan2021")["table a1"]


class CapacityStudy:
    """Measurements and theoretical predictions at all lengths, and the paper's statements.

    results: one for each system, length and seed. predictions: length -> result of capacity_tasks.predict.
    sizes: numbers per passage of the systems that encode passages.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        results: Sequence[Measured],
        predictions: Mapping[int, Any],
        sizes: Mapping[str, int],
    ) -> None:
        self.lengths = lengths
        self.predictions = predictions
        self.sizes = sizes
        self.measures = {stage: f"{RR}, {name}" for stage, name in STAGES.items()}
        self.trainings: dict[str, list[Measured]] = {}
        seeds: dict[str, dict[str, list[Any]]] = {}  # measure -> side -> values of each seed
        for result in results:
            if result.get("kept step") is not None:
                self.trainings.setdefault(at(result["system"], result["length"]), []).append(result)
            for system, stages in result["stages"].items():
                side = at(system, result["length"])
                for stage, row in stages.items():
                    seeds.setdefault(self.measures[stage], {}).setdefault(side, []).append(row)
                if "retrieve" in stages:  # of one relevant passage
                    first = [float(reciprocal == 1) for reciprocal in stages["retrieve"]]
                    seeds.setdefault(FIRST, {}).setdefault(side, []).append(first)
        self.values = {m: {side: np.array(rows) for side, rows in of_m.items()} for m, of_m in seeds.items()}
        self.systems: dict[str, list[str]] = {}  # measure -> systems
        for measure, sides in self.values.items():
            self.systems[measure] = list(dict.fromkeys(side.partition(", ")[0] for side in sides))
            for system in self.systems[measure]:
                sides[f"{system}, all lengths"] = np.mean(self.by_length(measure, system), axis=0)

    def by_length(self, measure: str, system: str) -> list[Values]:
        return [self.values[measure][at(system, length)] for length in self.lengths]

    def paper(self, stage: str) -> dict[str, list[float | None]]:
        """Return each system's measure in Table A.1, as fractions, at our lengths."""
        column = list(STAGES).index(stage)
        paper: dict[str, list[float | None]] = {}
        for system, row in TABLE_A1.items():
            if cells := row.split("|")[column].split():
                shares = dict(zip(PAPER_LENGTHS, (float(percent) / 100 for percent in cells), strict=True))
                paper[system] = [shares.get(length) for length in self.lengths]
        return paper

    def expected(self, system: str) -> list[float]:
        """Return the measure expected of BM25-uni's vectors after random projection to the system's width."""
        values = [self.predictions[length]["values"][str(self.sizes[system])] for length in self.lengths]
        return [float(np.mean(of_length)) for of_length in values]

    def learned(self, system: str) -> bool:
        """Return whether the system has learned enough, at every passage length, to be compared.

        Its score must reach `LEARNED` times BM25-uni's, or the score expected under a random projection to
        its dimension if that is lower. If the system can search, retrieval is scored instead of reranking,
        because even a poorly trained system ranks well among few candidates.
        """
        searches = system in self.systems[self.measures["retrieve"]]
        measure = self.measures["retrieve" if searches else "rerank"]
        least = [LEARNED * float(values.mean()) for values in self.by_length(measure, UNI)]
        if searches and system in self.sizes:
            least = np.minimum(least, self.expected(system)).tolist()
        scores = [float(values.mean()) for values in self.by_length(measure, system)]
        return all(score >= bar for score, bar in zip(scores, least, strict=True))

    def undecided(self, sides: Sequence[str]) -> dict[str, str]:
        systems = sorted({side.partition(", ")[0] for side in sides})
        return {"unlearned": ", ".join(system for system in systems if not self.learned(system))}

    def study(self) -> Study:
        """Return the values of every system at each length, and their means over lengths."""
        printed_values: dict[str, dict[str, list[float]]] = {}
        for stage, measure in self.measures.items():
            of_measure = printed_values.setdefault(measure, {})
            for system, shares in self.paper(stage).items():
                if None not in shares:
                    at_lengths = [float(share) for share in shares if share is not None]
                    sides = [at(system, length) for length in self.lengths]
                    of_measure |= {side: [share] for side, share in zip(sides, at_lengths, strict=True)}
                    of_measure[f"{system}, all lengths"] = [float(np.mean(at_lengths))]
        parts: dict[str, list[str]] = {}
        for system in dict.fromkeys(name for names in self.systems.values() for name in names):
            dense = parts_of(system)[0] if system.startswith("HYBRID-") else system
            parts[system] = [at(dense, length) for length in self.lengths]
        more: dict[str, Any] = {"undecided": self.undecided, "printed": printed_values, "parts": parts}
        return Study(self.values, self.groups(), self.trainings, **more)

    def groups(self) -> dict[str, list[str]]:
        order = sorted(self.sizes, key=lambda name: (self.sizes[name], not name[-1].isdigit()))
        paper = [name for name in order if "x" not in name]  # with other numbers of vectors: not in claims
        single, multiple = ([name for name in paper if name.startswith(kind)] for kind in ("DE-", "ME-"))
        searched = self.systems[self.measures["retrieve"]]
        hybrids = [name for name in searched if name.startswith("HYBRID-")]
        pairs = [(m, m.replace("ME-BERT-64", "DE-BERT-512").replace("ME-BERT", "DE-BERT")) for m in multiple]
        groups = {
            "single": single,
            "multiple": multiple,
            "sparse or single": [UNI, *single],
            "widest": single[-1:],
            "narrowest": single[:1] if len(single) > 1 else [],
            "eight": [name for name in multiple if not name[-1].isdigit()],
            "eight small": [name for name in multiple if name[-1].isdigit()],
            "best encoder": [*single[-1:], *multiple][-1:],
            "hybrid − part": [over(hybrid, part) for hybrid in hybrids for part in parts_of(hybrid)],
            "multiple − single": [over(*pair) for pair in pairs],
            "length": [f"{length} tokens" for length in self.lengths],
        }
        ends = (self.lengths[0], self.lengths[-1])
        several = len(self.lengths) > 1
        groups["shortest"], groups["longest"] = ([f"{length} tokens"] * several for length in ends)
        for name, both in (
            ("hybrid's", [(hybrid, parts_of(hybrid)[0]) for hybrid in hybrids]),
            ("multiple's", pairs),
        ):
            groups[f"{name} gain with length"] = [
                f"{at(a, ends[1])} − {at(b, ends[1])} − {at(a, ends[0])} + {at(b, ends[0])}"
                for a, b in both * several
            ]
        return groups

    def sections(self) -> dict[str, Section]:
        """Return the page's sections by file name; dotted: random projections to encoders' dimensions."""
        name = "tokens of a passage at most"
        sections = {
            "claims": self.study().section(
                "luan2021",
                "containing",
                f"A system has learned if at every length it retrieves with {LEARNED:.0%} of {UNI}'s "
                "measure, or as well as a random projection of its size.",
            )
        }
        if self.trainings:
            sections["training"] = training_section(self.trainings)
        for stage in STAGES:
            sections[f"table_{stage}"] = self.table(stage, name)
        if FIRST in self.systems:
            curves = [
                name for name in self.systems[FIRST] if name in (UNI, INIT) or name.startswith("DE-BERT")
            ]
            series = {system: self.by_length(FIRST, system) for system in curves}
            sections["figure1"] = Curves(name, self.lengths, {FIRST: series}).section(
                "Recall@1 by passage length (Figure 1)",
                "The passage with the query, first of all passages. BERT-INIT: the encoder as it comes.",
            )
        sections["theory"] = Section(
            "One random projection of BM25's vectors to k numbers, and the encoders that have as many",
            f"k*: dimensions of a random projection of {UNI}'s vectors that keep its first passage first "
            "for 95% of the queries, with the 95% interval over queries. In the other columns, the first "
            f"number is the expected {RR} of retrieval by such a projection to the "
            "encoder's number of dimensions (dotted in the figure), the second the encoder's. An encoder "
            "below the first is not limited by its size.",
            [self.theory_row(n) for n in range(len(self.lengths))],
        )
        return sections

    def table(self, stage: str, name: str) -> Section:
        """Make one stage's part of Table A.1. name: what the lengths are."""
        paper = self.paper(stage)
        measure = self.measures[stage]
        series = {system: self.by_length(measure, system) for system in self.systems[measure]}
        rows: Rows = []
        for system, by_length in series.items():
            row = {"system": system}
            for n, length in enumerate(self.lengths):
                share = paper[system][n] if system in paper else None
                row[str(length)] = cell(by_length[n]) + ("" if share is None else f" ({share:.3f})")
            rows.append(row)
        projected = {system: self.expected(system) for system in self.sizes}
        dotted = projected if stage == "retrieve" else None
        printed = {measure: {system: paper[system] for system in series if system in paper}}
        figure = Curves(name, self.lengths, {measure: series}, dotted=dotted, printed=printed)
        heading = f"{STAGES[stage].capitalize()} by passage length (Table A.1)"
        text = "In parentheses the paper's, with 768 numbers a vector where no k is named."
        return Section(heading, f"{RR}. {text}", rows, figure.draw())

    def theory_row(self, n: int) -> dict[str, Any]:
        length = self.lengths[n]
        row: dict[str, Any] = {"length": length, "k*": str(Dimension(*self.predictions[length]["k*"]))}
        for system, size in self.sizes.items():
            trained = self.by_length(self.measures["retrieve"], system)[n].mean()
            row[f"{system}: k = {size}"] = f"{self.expected(system)[n]:.3f}, {trained:.3f} measured"
        return row


def at(system: str, length: int) -> str:
    return f"{system}, {length} tokens"


def over(a: str, b: str) -> str:
    return f"{a}, all lengths − {b}, all lengths"


def parts_of(hybrid: str) -> tuple[str, str]:
    dense, sparse = hybrid.removeprefix("HYBRID-").rsplit("-", 1)
    return dense, f"BM25-{sparse}"
