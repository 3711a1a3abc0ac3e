"""The claims of Luan et al. 2021 (TACL), §§5 and 6, beside what capacity.py measured and theory predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from studies.capacity_tasks import BI, UNI
from studies.trained_pairs import Rows, shown

from paradigms.evaluate import Interval, holm, paired_test, seeds_interval

STAGES = {"rerank": "reranking", "retrieve": "retrieval"}
ALPHA = 0.05
MARGIN = 0.02  # of the measure: "does not degrade"
# Of BM25-uni's measure at the same length: a system below it, and below what a random projection of its size
# does, has not learned the task and says nothing of its capacity. The smallest share in the paper is 0.34.
LEARNED = 0.3
CROSS = "CROSS-ATTENTION"
PAPER_LENGTHS = (50, 100, 200, 400)
# Table A.1 in percent, by passage length; the paper's -768 have no suffix here. task -> stage -> system
TABLE_A1: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {
    "containing": {
        "rerank": {
            CROSS: (99.9, 99.9, 99.8, 99.6),
            "ME-BERT": (98.0, 96.7, 92.4, 89.8),
            "ME-BERT-64": (96.3, 94.2, 89.0, 83.7),
            "DE-BERT": (91.7, 87.8, 79.7, 74.1),
            "DE-BERT-512": (91.4, 87.2, 78.9, 73.1),
            "DE-BERT-128": (90.5, 85.0, 75.0, 68.1),
            "DE-BERT-64": (88.8, 82.0, 70.7, 63.8),
            "DE-BERT-32": (83.6, 74.9, 62.6, 55.9),
            UNI: (92.1, 88.6, 84.6, 81.8),
            BI: (98.0, 97.1, 95.9, 94.5),
        },
        "retrieve": {
            "HYBRID-ME-BERT-uni": (98.2, 97.0, 94.4, 91.9),
            "HYBRID-ME-BERT-bi": (99.3, 99.0, 97.3, 96.1),
            "ME-BERT": (96.8, 96.1, 91.1, 85.2),
            "ME-BERT-64": (92.9, 91.7, 84.6, 72.8),
            "DE-BERT": (90.2, 85.6, 72.9, 63.0),
            "DE-BERT-512": (89.4, 81.5, 66.8, 55.8),
            "DE-BERT-128": (85.7, 75.4, 58.0, 47.3),
            "DE-BERT-64": (82.8, 68.9, 48.5, 38.3),
            "DE-BERT-32": (70.1, 53.2, 34.0, 27.6),
            UNI: (92.1, 88.6, 84.6, 81.8),
            BI: (98.0, 97.1, 95.9, 94.5),
        },
    },
    "answers": {
        "rerank": {
            CROSS: (48.9, 55.5, 54.2, 47.6),
            "ME-BERT": (43.6, 49.6, 46.5, 38.7),
            "ME-BERT-64": (44.4, 48.7, 44.5, 38.2),
            "DE-BERT": (42.9, 47.7, 44.4, 36.6),
            "DE-BERT-512": (43.8, 48.5, 44.1, 36.5),
            "DE-BERT-128": (42.8, 45.7, 41.2, 35.7),
            "DE-BERT-64": (42.6, 45.7, 42.5, 35.4),
            "DE-BERT-32": (42.4, 45.8, 42.1, 34.0),
            UNI: (30.1, 35.7, 34.1, 30.1),
        },
        "retrieve": {
            "HYBRID-ME-BERT-uni": (45.7, 49.5, 48.5, 42.9),
            "ME-BERT": (42.0, 43.3, 40.4, 34.4),
            "ME-BERT-64": (42.2, 43.4, 38.9, 33.0),
            "DE-BERT": (44.2, 44.0, 40.1, 32.2),
            "DE-BERT-512": (43.3, 43.2, 38.8, 32.7),
            "DE-BERT-128": (38.0, 36.7, 32.8, 27.0),
            "DE-BERT-64": (37.4, 35.1, 32.6, 26.6),
            "DE-BERT-32": (36.3, 34.7, 31.0, 24.9),
            UNI: (30.1, 35.7, 34.1, 30.1),
        },
    },
}
Values = dict[str, dict[str, dict[int, np.ndarray]]]  # stage -> system -> length -> [seeds, queries]
Term = tuple[float, str, str]  # weight, system, and "shortest", "longest" or "every" length
Predictions = Mapping[int, Mapping[str, Any]]  # length -> what capacity_tasks.predict found


@dataclass(frozen=True)
class Claim:
    """Σ weight · measure(system, length) + margin > 0."""

    statement: str
    stage: str
    terms: tuple[Term, ...]
    margin: float = 0.0


def gather(results: Sequence[Mapping[str, Any]]) -> Values:
    """Of all seeds, which were measured on the same queries."""
    rows: dict[tuple[str, str, int], list[list[float]]] = {}
    for result in results:
        for system, stages in result["stages"].items():
            for stage, values in stages.items():
                rows.setdefault((stage, system, result["length"]), []).append(values)
    found: Values = {stage: {} for stage in STAGES}
    for (stage, system, length), values in rows.items():
        found[stage].setdefault(system, {})[length] = np.array(values)
    return found


# --- claims -----------------------------------------------------------------------------------------


def fall(system: str, sign: float = 1.0) -> tuple[Term, Term]:
    """How much a system loses from the shortest to the longest passages."""
    return (sign, system, "shortest"), (-sign, system, "longest")


def above(a: str, b: str, length: str) -> tuple[Term, Term]:
    """By how much system a is above system b."""
    return (1.0, a, length), (-1.0, b, length)


def containing_claims(measured: Values, sizes: Mapping[str, int]) -> list[Claim]:
    """§5."""
    single, multiple = families(sizes)
    claims = [
        Claim(f"{name} falls faster than {UNI} with length", stage, fall(name) + fall(UNI, -1))
        for stage in STAGES
        for name in single
    ]
    if len(single) > 1:
        narrow, wide = single[0], single[-1]
        both = fall(narrow) + fall(wide, -1)
        claims.append(Claim(f"{narrow} falls faster than {wide}", "retrieve", both))
    claims += [
        Claim(f"{name} is below {UNI} on the longest passages", "retrieve", above(UNI, name, "longest"))
        for name in single
    ]
    for many, one in pairs(single, multiple, sizes):
        for stage in STAGES:
            claims.append(Claim(f"{many} is above {one} on the longest", stage, above(many, one, "longest")))
        claims.append(Claim(f"{one} falls faster than {many}", "retrieve", fall(one) + fall(many, -1)))
    claims += [
        Claim(f"{name} is above {UNI} on the {length}", "retrieve", above(name, UNI, length))
        for name in multiple
        for length in ("shortest", "longest")
    ]
    for name, dense, sparse in hybrids(measured):
        claims += hybrid_claims(name, dense, sparse, "longest")
    if CROSS in measured["rerank"]:
        claims.append(Claim(f"{CROSS} does not fall with length", "rerank", fall(CROSS, -1), MARGIN))
        claims += [
            Claim(f"{CROSS} is above {name} on the longest", "rerank", above(CROSS, name, "longest"))
            for name in (single + multiple)[-1:]
        ]
    return claims


def answer_claims(measured: Values, sizes: Mapping[str, int]) -> list[Claim]:
    """§6."""
    single, multiple = families(sizes)
    claims = []
    if len(single) > 1:
        claims += [
            Claim(f"{single[-1]} is above {single[0]}", stage, above(single[-1], single[0], "every"))
            for stage in STAGES
        ]
    claims += [
        Claim(f"{name} is above {UNI} on the longest", "retrieve", above(name, UNI, "longest"))
        for name in single[-1:]
    ]
    claims += [
        Claim(f"{many} is above {one}", "rerank", above(many, one, "every"))
        for many, one in pairs(single, multiple, sizes)
    ]
    if CROSS in measured["rerank"]:
        claims += [
            Claim(f"{CROSS} is above {name}", "rerank", above(CROSS, name, "every"))
            for name in (single + multiple)[-1:]
        ]
    for name, dense, sparse in hybrids(measured):
        claims += hybrid_claims(name, dense, sparse, "every")
    return claims


CLAIMS: dict[str, Callable[[Values, Mapping[str, int]], list[Claim]]] = {
    "containing": containing_claims,
    "answers": answer_claims,
}


def hybrid_claims(name: str, dense: str, sparse: str, length: str) -> list[Claim]:
    at = "" if length == "every" else f" on the {length}"
    return [
        Claim(f"{name} is above {dense}{at}", "retrieve", above(name, dense, length)),
        Claim(f"{name} is above {sparse}{at}", "retrieve", above(name, sparse, length)),
        Claim(f"the gain of {name} over {dense} grows with length", "retrieve", fall(dense) + fall(name, -1)),
    ]


def families(sizes: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Systems of one vector and of many, each from the fewest numbers to the most."""
    order = sorted(sizes, key=lambda name: (sizes[name], not name[-1].isdigit()))
    return [n for n in order if n.startswith("DE-")], [n for n in order if n.startswith("ME-")]


def pairs(single: list[str], multiple: list[str], sizes: Mapping[str, int]) -> list[tuple[str, str]]:
    """Each system of many vectors, and the one of one vector with as many numbers, or of its width."""
    found = []
    for many in multiple:
        same = [one for one in single if sizes[one] == sizes[many]]
        width = [one for one in single if one == many.replace("ME", "DE")]
        found += [(many, one) for one in dict.fromkeys(same + width)]
    return found


def hybrids(measured: Values) -> list[tuple[str, str, str]]:
    """(hybrid, its dense system, its BM25)."""
    names = [name for name in measured["retrieve"] if name.startswith("HYBRID-")]
    parts = [(name, *name.removeprefix("HYBRID-").rsplit("-", 1)) for name in names]
    return [(name, dense, f"BM25-{sparse}") for name, dense, sparse in parts]


def combined(terms: Sequence[Term], cell: Callable[[str, int], Any], lengths: Sequence[int]) -> Any:
    """Σ weight · cell(system, length)."""
    at = {"shortest": lengths[:1], "longest": lengths[-1:], "every": lengths}
    return sum(w * sum(cell(s, length) for length in at[w_at]) / len(at[w_at]) for w, s, w_at in terms)


def of_paper(claim: Claim, task: str, lengths: Sequence[int]) -> float | None:
    """The same combination of Table A.1, where it has all of it."""
    table = TABLE_A1[task][claim.stage]
    if not {s for _, s, _ in claim.terms} <= table.keys() or not set(lengths) <= set(PAPER_LENGTHS):
        return None
    return float(
        combined(claim.terms, lambda s, length: table[s][PAPER_LENGTHS.index(length)] / 100, lengths)
    )


def of_theory(
    claim: Claim, measured: Values, predictions: Predictions, sizes: Mapping[str, int], lengths: Sequence[int]
) -> float | None:
    """The same combination for random projections of the systems' sizes; BM25-uni's own part is measured."""
    systems = {system for _, system, _ in claim.terms}
    if claim.stage != "retrieve" or not systems <= sizes.keys() | {UNI} or systems == {UNI}:
        return None

    def cell(system: str, length: int) -> float:
        if system == UNI:
            return float(measured["retrieve"][UNI][length].mean())
        return float(np.mean(predictions[length]["values"][str(sizes[system])]))

    return float(combined(claim.terms, cell, lengths))


def verdict(interval: Interval, p: float, claim: Claim, paper: float | None, learned: bool) -> str:
    """Reproduced: shown to be above −margin. Not reproduced: shown to be below that, or below the paper's
    number and perhaps not above −margin."""
    if not learned:
        return "out of reach at this scale"
    if interval.low > -claim.margin and p < ALPHA:
        return "reproduced"
    least = max(-claim.margin, -1.0 if paper is None else paper)
    below = interval.low <= -claim.margin and interval.high < least
    return "not reproduced" if below else "out of reach at this scale"


def has_learned(
    measured: Values,
    predictions: Predictions,
    sizes: Mapping[str, int],
    system: str,
    lengths: Sequence[int],
) -> bool:
    """At every length at least `LEARNED` of BM25-uni's measure, or what a random projection of its size does.

    By retrieval where the system searches: among few candidates one ranks well that has learned little.
    """
    stage = "retrieve" if system in measured["retrieve"] else "rerank"
    for length in lengths:
        least = LEARNED * float(measured[stage][UNI][length].mean())
        if stage == "retrieve" and system in sizes:
            least = min(least, float(np.mean(predictions[length]["values"][str(sizes[system])])))
        if measured[stage][system][length].mean() < least:
            return False
    return True


def claim_rows(
    task: str, measured: Values, predictions: Predictions, sizes: Mapping[str, int], lengths: Sequence[int]
) -> Rows:
    """One family for Holm's correction."""
    claims = [claim for claim in CLAIMS[task](measured, sizes) if measurable(claim, measured, lengths)]
    differences = [combined(c.terms, _cell(measured[c.stage]), lengths) for c in claims]
    tests = [
        paired_test(d.mean(0) + c.margin, 0 * d.mean(0)) for c, d in zip(claims, differences, strict=True)
    ]
    rows: Rows = []
    for claim, difference, p in zip(claims, differences, holm(tests), strict=True):
        interval, paper = seeds_interval(difference), of_paper(claim, task, lengths)
        theory = of_theory(claim, measured, predictions, sizes, lengths)
        systems = {system for _, system, _ in claim.terms}
        able = all(has_learned(measured, predictions, sizes, system, lengths) for system in systems)
        rows.append(
            {
                "the paper says": claim.statement,
                "stage": STAGES[claim.stage],
                "its numbers": "–" if paper is None else f"{paper:+.3f}",
                "measured": shown(interval, "+"),
                "p (Holm)": f"{p:.4f}",
                "random projection": "–" if theory is None else f"{theory:+.3f}",
                "verdict": verdict(interval, p, claim, paper, able),
            }
        )
    return rows


def _cell(of: Mapping[str, Mapping[int, np.ndarray]]) -> Callable[[str, int], np.ndarray]:
    return lambda system, length: of[system][length]


def measurable(claim: Claim, measured: Values, lengths: Sequence[int]) -> bool:
    """Whether its systems were measured, and at two lengths where it compares them."""
    known = {system for _, system, _ in claim.terms} <= measured[claim.stage].keys()
    return known and (len(lengths) > 1 or not {"shortest", "longest"} <= {at for _, _, at in claim.terms})
