"""Test the claims that a paper's printed.yaml lists: one machine for the claims of all studies.

A row of claims has the keys

- place and claim: the passage, and what it says in our words; or control, a question that no paper asks;
- contrast: sides with + and −, such as "{XTR}, imputing − 2 · ColBERT, gathering", or a list of contrasts;
- measure: what is measured of each side, or a list of measures; without it, a group in the contrast has
  members such as "measure: a − b";
- least, above which the claim puts the mean (default 0), or within, for a claim of equality;
- limits, between which a query's value lies (default −1 and 1, as differences of measures do);
- about: readout, for ways to score with one model; anything, for a control of all models, trained or not.
  By default, a claim is about what training does;
- only: words in the names of the collections that the claim is about. By default, it is about all;
- printed: the paper's value of the contrast;
- counted: name of a count that the study supplies, for a claim without a test;
- takes: what a study needs, if none here can test the claim; or verdict and by, if a proof decides it.

Words in braces are groups, which a study fills in, such as {XTR}: the claim is tested for each member.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from studies.curves import Values, at_path
from studies.model_runs import same_queries, unmoved
from studies.pages import Measured, Section

from paradigms.evaluate.claims import TRAINING, Claim, judge

PAPERS = {
    "implicit_idf": "Our own",
    "lee2023": "Lee et al. 2023",
    "luan2021": "Luan et al. 2021",
    "qian2022": "Qian et al. 2022",
    "weller2025": "Weller et al. 2025",
    "wu2024": "Wu et al. 2024",
}
ANYTHING = "anything"
UNTESTED = "not tested"  # instead of a verdict, for claims that no run here measured
HEADING = "What the paper says, and what we measured"
COLUMNS = ("quantity", "printed", "measured", "p (Holm)", "sample", "verdict")  # of `Verdict.row`
GROUP = re.compile(r"{([^}]*)}")
SIGN = re.compile(r"(?:^| )([+−]) ")
FACTOR = re.compile(r"(\d+(?:/\d+)?) · (.*)")
Row = Mapping[str, Any]
Terms = list[tuple[float, str]]  # Σ weight · side
Printed = Mapping[str, Mapping[str, Sequence[float]]]  # measure -> side -> values in the paper's tables


def decided(sides: Sequence[str]) -> dict[str, str]:
    """Leave no claim undecided."""
    return {}


@dataclass
class Study:
    """What a study measured, on which claims are tested.

    groups: what the groups in claims stand for. trainings: the trainings of each model. A side is about the
    model that it names first, or about the models in `parts` of the system that it names first. undecided:
    the fields of `Claim` that leave a claim about these sides undecided. printed: the paper's values, whose
    differences stand beside ours. clusters: as in `judge`.
    """

    values: Mapping[str, Mapping[str, Values]]  # measure -> side -> values; a side: "system[, condition]"
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    trainings: Mapping[str, Sequence[Measured]] = field(default_factory=dict)
    undecided: Callable[[Sequence[str]], Mapping[str, str]] = decided
    printed: Printed = field(default_factory=dict)
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)  # system -> models
    counts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # name -> cells and the verdict
    collection: str = ""
    clusters: Sequence[str] | None = None

    @classmethod
    def of(cls, systems: Mapping[str, Sequence[Measured]], **more: Any) -> "Study":
        """Stack the seeds' "values" of each system: measure -> condition ("" = none) -> one value per query.

        Raises SystemExit if the results are of different queries.
        """
        same_queries([seed for seeds in systems.values() for seed in seeds])
        values: dict[str, dict[str, Values]] = {}
        for system, seeds in systems.items():
            for measure, conditions in seeds[0]["values"].items():
                for condition in conditions:
                    side = f"{system}, {condition}" if condition else system
                    values.setdefault(measure, {})[side] = at_path(seeds, "values", measure, condition)
        return cls(values, **{"trainings": systems} | more)

    def claims(self, paper: str, rows: Sequence[Row]) -> list[tuple[Row, list[Claim]]]:
        """Return each row's claims; a row whose sides or groups the study lacks has none."""
        return [(row, list(self._claims(PAPERS[paper], row))) for row in rows]

    def _claims(self, paper: str, row: Row) -> Iterator[Claim]:
        measures = [f"{measure}: " for measure in listed(row.get("measure", []))] or [""]
        contrasts = listed(row.get("contrast", []))
        if not any(word in self.collection.lower() for word in row.get("only", [""])):
            return
        for text in (
            filled for pair in product(measures, contrasts) for filled in self.filled("".join(pair))
        ):
            measure, _, contrast = text.partition(": ")
            terms = terms_of(contrast)
            values = self.values.get(measure, {})
            if all(side in values for _, side in terms):
                yield self._claim(paper, row, text, terms, values)

    def filled(self, text: str) -> Iterator[str]:
        """Yield the text for every choice of members of its groups."""
        names = list(dict.fromkeys(GROUP.findall(text)))
        for members in product(*(self.groups.get(name, ()) for name in names)):
            chosen = dict(zip(names, members, strict=True))
            yield GROUP.sub(lambda match, chosen=chosen: chosen[match[1]], text)

    def _claim(
        self, paper: str, row: Row, quantity: str, terms: Terms, values: Mapping[str, Values]
    ) -> Claim:
        sides = [side for _, side in terms]
        about = row.get("about", TRAINING if self.trainings else "")
        control = "control" in row
        return Claim(
            place="" if control else f"{paper}, {row['place']}",
            statement=row["control" if control else "claim"],
            quantity=quantity,
            contrast=np.sum([weight * values[side] for weight, side in terms], axis=0),
            least=row.get("least", 0.0),
            within=row.get("within", 0.0),
            limits=tuple(row.get("limits", (-1.0, 1.0))),
            printed=row.get("printed") or self.difference(quantity.partition(": ")[0], terms),
            about=about * (about != ANYTHING),
            unmoved=unmoved(self.models(sides)) if about == TRAINING else "",
            **({} if about == ANYTHING else self.undecided(sides)),
        )

    def models(self, sides: Sequence[str]) -> dict[str, Sequence[Measured]]:
        """Return the trainings of the models that the sides are about."""
        parts = {name: [name] for name in self.trainings} | self.parts
        named = [[system for system in parts if f"{side}, ".startswith(f"{system}, ")] for side in sides]
        systems = [max(matching, key=len) for matching in named if matching]
        models = [name for system in systems for name in parts[system]]
        return {name: self.trainings[name] for name in models if name in self.trainings}

    def difference(self, measure: str, terms: Terms) -> str:
        """Format the contrast of the paper's values, one for each of its collections, if it prints them."""
        values = self.printed.get(measure, {})
        if not all(side in values for _, side in terms):
            return ""
        columns = zip(*(values[side] for _, side in terms), strict=False)
        sums = [
            sum(weight * value for (weight, _), value in zip(terms, column, strict=True))
            for column in columns
        ]
        return "/".join(f"{value:+.3f}" for value in sums)

    def section(
        self,
        paper: str,
        family: str,
        text: str = "",
        heading: str = HEADING,
        *,
        controls: bool = False,
    ) -> Section:
        """Judge the claims of a family, one family of tests, and list those that the study cannot test.

        controls: whether this study's systems are not the paper's, so that all claims are controls.
        """
        rows = printed(paper)["claims"][family]
        rows = [row | ({"control": row["claim"]} if controls and "claim" in row else {}) for row in rows]
        tested = self.claims(paper, rows)
        verdicts = judge([claim for _, claims in tested for claim in claims], self.clusters)
        others = [self.other(paper, row) for row, claims in tested if not claims and "control" not in row]
        return Section(heading, text, [*(verdict.row for verdict in verdicts), *others])

    def other(self, paper: str, row: Row) -> dict[str, str]:
        """Make the row of a claim that a count or a proof decides, or that the study has not tested."""
        cells = self.counts.get(row.get("counted", ""))
        reason = "this run has not measured it"
        if cells is None and "verdict" in row:
            cells = {"verdict": row["verdict"], "quantity": row["by"], "measured": "proof"}
        if cells is None:
            reason = f"it takes {row['takes']}" if "takes" in row else reason
            cells = {"verdict": f"{UNTESTED}: {reason}"}
        place = f"{PAPERS[paper]}, {row['place']}"
        return {"claim": row["claim"], "place": place} | dict.fromkeys(COLUMNS, "–") | cells


def printed(paper: str) -> dict[str, Any]:
    """Read a paper's printed values and its claims. paper: name of a folder in experiments/papers."""
    path = Path(__file__).parents[1] / "papers" / paper / "printed.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def terms_of(contrast: str) -> Terms:
    """Read a contrast: sides with signs between white space, and with factors, as in "a − 2 · b"."""
    first, *rest = SIGN.split(contrast)
    signed = [("+", first)] * bool(first) + list(zip(rest[::2], rest[1::2], strict=True))
    terms = []
    for sign, side in signed:
        factor = FACTOR.fullmatch(side)
        weight, name = (float(Fraction(factor[1])), factor[2]) if factor else (1.0, side)
        terms.append((weight if sign == "+" else -weight, name))
    return terms
