"""Test the claims that a paper's printed.yaml lists: one machine for the claims of all studies.

A row of claims has the keys

- place and claim: the passage, and what it says in our words; or control, a question that no paper asks;
- contrast: sides with + and −, such as "{XTR}, imputing − 2 · ColBERT, gathering", or a list of contrasts;
- measure: what is measured of each side, or a list of measures; without it, a group in the contrast has
  members such as "measure: a − b";
- least, above which the claim puts the mean (default 0), or within, for a claim of equality;
- limits, between which a query's contrast lies. By default, each side lies between 0 and 1, so that these are
  the sums of the negative and of the positive factors. Differences, correlations and logarithms need limits,
  which seen values beyond them extend;
- changed: measure, if training counts as having changed a model, too, when this measure of it differs
  from that of the untrained model, which a study names as in `gains.UNTRAINED`;
- apart: "measure: a − b", two trained systems that must differ significantly in a measure: else they may be
  much the same model, and the claim is open;
- about: readout, for ways to score with one model; anything, for a control of all models, trained or not.
  By default, a claim is about what training does;
- only: words in the names of the collections that the claim is about. By default, it is about all;
- printed: the paper's value of the contrast;
- counted: name of a count that the study supplies, for a claim without a test;
- takes: what a study needs, if none here can test the claim; or verdict and by, if a proof decides it.

Words in braces are groups, which a study fills in, such as {XTR}: the claim is tested for each member.

A study writes the values behind its verdicts (`Study.judged_values`), and `judge.py` judges them again.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from studies.curves import Values, at_path
from studies.gains import ALPHA, DEV, UNTRAINED, same_queries, unmoved
from studies.model_runs import StudyData
from studies.pages import Measured, Rows, Section

from paradigms.evaluate import paired_test
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
ABOUT = "study"  # name of the JSON beside the kept values
JOIN = "; "  # between sides, in the keys of that JSON
UNTESTED = "not tested"  # instead of a verdict, for claims that no run here measured
HEADING = "What the paper says, and what we measured"
COLUMNS = ("quantity", "printed", "measured", "p (Holm)", "sample", "verdict")  # of `Verdict.row`
GROUP = re.compile(r"{([^}]*)}")
SIGN = re.compile(r"(?:^| )([+−]) ")
FACTOR = re.compile(r"(\d+(?:/\d+)?) · (.*)")
NO_SIDE = re.compile(r"[·*{}]|[+−]| [-–—] |^$")  # in a side: a sign, a factor or a group that was not read
Row = Mapping[str, Any]
Terms = list[tuple[float, str]]  # Σ weight · side
Printed = Mapping[str, Mapping[str, Sequence[float]]]  # measure -> side -> values in the paper's tables


@dataclass
class Study:
    """What a study measured, on which claims are tested.

    groups: what the groups in claims stand for. trainings: the trainings of each model. A side is about the
    model that it names first, or about the models in `parts` of the system that it names first. undecided:
    the fields of `Claim` that leave a claim about these sides undecided. printed: the paper's values, whose
    differences stand beside ours. clusters: as in `judge`. queries: ids.
    """

    values: Mapping[str, Mapping[str, Values]]  # measure -> side -> values; a side: "system[, condition]"
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    trainings: Mapping[str, Sequence[Measured]] = field(default_factory=dict)
    undecided: Callable[[Sequence[str]], Mapping[str, str]] = lambda sides: {}
    printed: Printed = field(default_factory=dict)
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)  # system -> models
    counts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # name -> cells and the verdict
    collection: str = ""
    clusters: Sequence[str] | None = None
    queries: Sequence[str] = ()

    @classmethod
    def of(cls, systems: Mapping[str, Sequence[Measured]], **more: Any) -> "Study":
        """Stack the seeds' "values" of each system: measure -> condition ("" = none) -> one value per query.

        Raises SystemExit if the results are of different queries.
        """
        queries = same_queries([seed for seeds in systems.values() for seed in seeds])
        values: dict[str, dict[str, Values]] = {}
        for system, seeds in systems.items():
            for measure, conditions in seeds[0]["values"].items():
                for condition in conditions:
                    side = f"{system}, {condition}" if condition else system
                    values.setdefault(measure, {})[side] = at_path(seeds, "values", measure, condition)
        return cls(values, **{"trainings": systems, "queries": queries} | more)

    def with_queries(self, queries: Sequence[str], data: StudyData) -> "Study":
        """Return the study with its queries' ids, and the articles that they ask about as clusters."""
        return replace(self, queries=queries, clusters=data.clusters(queries))

    def claims(self, paper: str, rows: Sequence[Row]) -> list[tuple[Row, list[Claim]]]:
        """Return each row's claims, none without its sides. Raises ValueError, naming an unreadable row."""
        return [(row, list(self._claims(PAPERS[paper], row))) for row in rows]

    def _claims(self, paper: str, row: Row) -> Iterator[Claim]:
        about = row.get("about", TRAINING if self.trainings else "")
        control = "control" in row
        for quantity, terms in self.contrasts(row):
            measure = quantity.partition(": ")[0]
            values = self.values.get(measure, {})
            sides = [side for _, side in terms]
            if not all(side in values for side in sides):
                continue
            weights = np.array([weight for weight, _ in terms])
            extremes = (float(weights.clip(max=0).sum()), float(weights.clip(min=0).sum()))
            changed = "changed" in row
            obstacles = {} if about == ANYTHING else {**self.undecided(sides)}
            apart = [(of, sides_of(of)) for of in self.apart(row)]
            if unmeasured := [of for of, (m, both) in apart if not {*both} <= {*self.values.get(m, {})}]:
                obstacles["lacking"] = f"the run did not measure {unmeasured[0]}"
            judged = [s for s in sides if not (changed and self.differ(measure, (s, self.before(s))))]
            # Seeds of one side against one untrained model.
            parts = (weight * single(values[side]).astype(float) for weight, side in terms)
            yield Claim(
                place="" if control else f"{paper}, {row['place']}",
                statement=row["control" if control else "claim"],
                quantity=quantity,
                contrast=reduce(np.add, parts),
                least=row.get("least", 0.0),
                within=row.get("within", 0.0),
                limits=tuple(row.get("limits", extremes)),
                printed=row.get("printed") or self.difference(measure, terms),
                about=about * (about != ANYTHING),
                unmoved=unmoved(self.models(judged)) if about == TRAINING else "",
                by_measure=changed,
                alike=JOIN.join(of for of, both in apart if not self.differ(*both)),
                **obstacles,
            )

    def contrasts(self, row: Row) -> Iterator[tuple[str, Terms]]:
        """Yield each contrast of a row, for every member of its groups, as "measure: contrast" and terms."""
        if not any(word in self.collection.lower() for word in row.get("only", [""])):
            return
        measures = [f"{measure}: " for measure in listed(row.get("measure", []))] or [""]
        for pair in product(measures, listed(row.get("contrast", []))):
            yield from self._read(row, "".join(pair))

    def _read(self, row: Row, text: str) -> Iterator[tuple[str, Terms]]:
        try:
            for quantity in self.filled(text):
                yield quantity, terms_of(quantity.partition(": ")[2])
        except ValueError as error:
            name = f"{row.get('place', 'control')}, {row.get('claim', row.get('control'))!r}"
            raise ValueError(f"printed.yaml, {name}: {error}") from None

    def filled(self, text: str) -> Iterator[str]:
        """Yield the text for every choice of members of its groups. Raises ValueError if one is unknown."""
        names = list(dict.fromkeys(GROUP.findall(text)))
        if unknown := [name for name in names if name not in self.groups]:
            raise ValueError(f"no group {{{unknown[0]}}}; there are: {', '.join(self.groups)}")

        def with_members(members: Sequence[str]) -> str:
            chosen = dict(zip(names, members, strict=True))
            return GROUP.sub(lambda match: chosen[match[1]], text)

        yield from map(with_members, product(*(self.groups[name] for name in names)))

    def judged_values(
        self, paper: str, family: str, claims: Sequence[Claim], apart: Sequence[str], controls: bool
    ) -> dict[str, np.ndarray]:
        """Return what `again` judges: "measure: side" -> values [seeds, queries], and the rest as JSON."""
        arrays: dict[str, np.ndarray] = {}
        undecided: dict[str, dict[str, str]] = {}
        printed_values: dict[str, dict[str, list[float]]] = {}
        for claim in claims:
            measure, sides = sides_of(claim.quantity)
            stored = self.values[measure]
            both = [*sides, *filter(stored.__contains__, map(self.before, sides))]
            arrays |= {f"{measure}: {side}": single(stored[side]) for side in both}
            undecided[JOIN.join(sides)] = {"unlearned": claim.unlearned, "lacking": claim.lacking}
            of_measure = self.printed.get(measure, {})
            printed_values.setdefault(measure, {}).update(
                {s: [*of_measure[s]] for s in sides if s in of_measure}
            )
        for measure, sides in map(sides_of, apart):
            stored = self.values.get(measure, {})
            arrays |= {f"{measure}: {side}": single(stored[side]) for side in sides if side in stored}
        trainings = {
            name: [{"kept step": seed.get("kept step"), DEV: seed.get(DEV, {})} for seed in seeds]
            for name, seeds in self.trainings.items()
        }
        about = {"paper": paper, "family": family, "controls": controls, "queries": [*self.queries]}
        about |= {"trainings": trainings, "undecided": undecided, "printed": printed_values}
        names = ("groups", "parts", "counts", "collection", "clusters")
        about |= {name: getattr(self, name) for name in names}
        return arrays | {ABOUT: np.array(json.dumps(about, ensure_ascii=False))}

    def models(self, sides: Sequence[str]) -> dict[str, Sequence[Measured]]:
        """Return the trainings of the models that the sides are about."""
        parts: dict[str, Sequence[str]] = {**{name: [name] for name in self.trainings}, **self.parts}
        named = [[system for system in parts if f"{side}, ".startswith(f"{system}, ")] for side in sides]
        systems = [max(matching, key=len) for matching in named if matching]
        models = [name for system in systems for name in parts[system]]
        return {name: self.trainings[name] for name in models if name in self.trainings}

    def before(self, side: str) -> str:
        """Return the side of the untrained model that corresponds to a side, or "" if no model names it."""
        names = [name for name in self.trainings if f"{side}, ".startswith(f"{name}, ")]
        return UNTRAINED + side.removeprefix(max(names, key=len)) if names else ""

    def differ(self, measure: str, sides: Sequence[str]) -> bool:
        """Return whether a measure was taken of both sides, and differs significantly between them."""
        stored = self.values.get(measure, {})
        means = [single(stored[side]).mean(0) for side in sides if side in stored]
        if len(means) < 2:
            return False
        clusters = None if self.clusters is None else self.clusters[: means[0].size]
        return paired_test(means[0], means[1], clusters) < ALPHA

    def apart(self, row: Row) -> list[str]:
        """Return the contrasts, as "measure: a − b", that must be significant for the row's claims."""
        return [quantity for quantity, _ in self._read(row, row["apart"])] if "apart" in row else []

    def difference(self, measure: str, terms: Terms) -> str:
        """Format the contrast of the paper's values, one for each of its collections, if it prints them."""
        values = self.printed.get(measure, {})
        if not all(side in values for _, side in terms):
            return ""
        weights = np.array([weight for weight, _ in terms])
        columns = zip(*(values[side] for _, side in terms), strict=False)
        return "/".join(f"{weights @ column:+.3f}" for column in columns)

    def section(
        self, paper: str, family: str, text: str = "", heading: str = HEADING, *, controls: bool = False
    ) -> Section:
        """Judge the claims of a family, one family of tests, and list those that the study cannot test.

        controls: whether this study's systems are not the paper's, so that all claims are controls.
        """
        rows = printed(paper)["claims"][family]
        rows = [row | ({"control": row["claim"]} if controls and "claim" in row else {}) for row in rows]
        tested = self.claims(paper, rows)
        claims = [claim for _, of_row in tested for claim in of_row]
        others = [self.other(paper, row) for row, of_row in tested if not of_row and "control" not in row]
        judged = [verdict.row for verdict in judge(claims, self.clusters)]
        apart = [quantity for row, of_row in tested if of_row for quantity in self.apart(row)]
        values = self.judged_values(paper, family, claims, apart, controls) if claims else {}
        return Section(heading, text, [*judged, *others], values=values)

    def other(self, paper: str, row: Row) -> dict[str, str]:
        """Make the row of a claim that a count or a proof decides, or that the study has not tested."""
        reason = f"it takes {row['takes']}" if "takes" in row else "this run has not measured it"
        cells: Mapping[str, str] = {"verdict": f"{UNTESTED}: {reason}"}
        if "verdict" in row:
            cells = {"verdict": row["verdict"], "quantity": row["by"], "measured": "proof"}
        cells = self.counts.get(row.get("counted", ""), cells)
        place = f"{PAPERS[paper]}, {row['place']}"
        return {"claim": row["claim"], "place": place} | dict.fromkeys(COLUMNS, "–") | {**cells}


def again(values: Mapping[str, np.ndarray], omitted: Collection[str] = ()) -> Rows:
    """Judge what `Study.judged_values` returned by the rows of printed.yaml now; return the table's rows.

    A contrast that the run did not judge remains open, unless each of its sides was in one whose systems had
    learned enough and that lacked nothing. omitted: ids of queries that are left out; claims
    about values that do not have one number for each query are then not tested.
    """
    about = json.loads(str(values[ABOUT]))
    if omitted:
        left = [n for n, query in enumerate(about["queries"]) if query not in omitted]
        all_queries = len(about["queries"])
        values = {name: array[:, left] for name, array in values.items() if array.shape[1:] == (all_queries,)}
        about["queries"] = [about["queries"][n] for n in left]
        about["clusters"] = about["clusters"] and [about["clusters"][n] for n in left]
    paper = about.pop("paper")
    family = about.pop("family")
    controls = about.pop("controls")
    of_sides = about.pop("undecided")
    by_measure: dict[str, dict[str, Values]] = {}
    for name, array in values.items():
        measure, _, side = name.partition(": ")
        if name != ABOUT:
            by_measure.setdefault(measure, {})[side] = array

    def undecided(sides: Sequence[str]) -> Mapping[str, str]:
        if JOIN.join(sides) in of_sides:
            return of_sides[JOIN.join(sides)]
        decidable = [of.split(JOIN) for of, obstacles in of_sides.items() if not any(obstacles.values())]
        known = all(any(side in of for of in decidable) for side in sides)
        return {} if known else {"lacking": "the run did not judge this contrast"}

    study = Study(by_measure, undecided=undecided, **about)
    return [dict(row) for row in study.section(paper, family, controls=controls).rows]


def single(values: Values) -> Values:
    """Round to float32, in which values are kept, so that they are judged again to the same verdict."""
    return np.asarray(values, dtype=np.float32)


def printed(paper: str) -> dict[str, Any]:
    """Read a paper's printed values and its claims. paper: name of a folder in experiments/papers."""
    path = Path(__file__).parents[1] / "papers" / paper / "printed.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def sides_of(quantity: str) -> tuple[str, list[str]]:
    """Split "measure: contrast" into the measure and the contrast's sides."""
    measure, _, contrast = quantity.partition(": ")
    return measure, [side for _, side in terms_of(contrast)]


def terms_of(contrast: str) -> Terms:
    """Read a contrast: sides with signs between white space and with factors: "a − 2 · b" or "1/2 · a".

    Raises ValueError if a side contains a sign or a factor that is not written like these.
    """
    first, *rest = SIGN.split(contrast)
    signed = [("+", first)] * bool(first) + list(zip(rest[::2], rest[1::2], strict=True))
    terms = []
    for sign, side in signed:
        factor = FACTOR.fullmatch(side)
        weight, name = (float(Fraction(factor[1])), factor[2]) if factor else (1.0, side)
        if NO_SIDE.search(name):
            raise ValueError(
                f"{contrast!r}: {name!r} is no side; signs are + and − between blanks, factors 2 · or 1/2 ·"
            )
        terms.append((weight if sign == "+" else -weight, name))
    return terms
