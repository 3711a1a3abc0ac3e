"""What a theorem of the papers is here, what checking it yields, and the registry of all theorems.

A theorem is a statement with a function that looks for violations: exact, unlike the claims of the
studies, which are judged from samples. A paper's has its sentence as printed, `quote`, and that sentence
is judged; one without is a law of our own. Where a sentence needs mending, `correction` says what holds
instead; what is then checked as ours is the correction, and the printed form beside it, which must differ
from it by a measured number. One short function per theorem, in the files beside this one, whose import
fills THEOREMS; `experiments/theory_checks.py` runs them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

LUAN = "Luan et al. 2021"
ALIGNER = "Qian et al. 2022"
XTR = "Lee et al. 2023"
GENERATIVE = "Wu et al. 2024"
LIMIT = "Weller et al. 2025"
OURS = "laws of our own"


@dataclass(frozen=True)
class Evidence:
    """What a check saw.

    violation: by how much our statement failed at worst (0: never), against tolerance, in `unit`.
    samples: instances looked at. tightness: median of bounded quantity / bound, 1 where attained.
    printed: by how much the form as printed failed, None where nothing else is printed; allowed: what its
    words leave room for, `because` of what.
    detail: the counterexample, or the numbers that matter. curves: what a page draws, by the fields of
    `Curves` in experiments/studies/curves.py.
    """

    violation: float
    samples: int
    tolerance: float = 1e-9
    unit: str = ""
    tightness: float | None = None
    printed: float | None = None
    allowed: float = 1e-9
    because: str = "rounding"
    detail: str = ""
    curves: dict[str, Any] | None = None


Check = Callable[[np.random.Generator, int], Evidence]


@dataclass(frozen=True)
class Theorem:
    statement: str
    source: str
    assumption: str
    correction: str
    check: Check
    quote: str = ""

    @property
    def paper(self) -> str:
        """Whose claim it is."""
        return self.source.partition(",")[0] if self.quote else OURS


THEOREMS: dict[str, Theorem] = {}


def theorem(
    statement: str, source: str, assumption: str = "none", correction: str = "", quote: str = ""
) -> Callable[[Check], Check]:
    """Register a check under its function's name."""

    def register(check: Check) -> Check:
        THEOREMS[check.__name__] = Theorem(statement, source, assumption, correction, check, quote)
        return check

    return register


def excess(left: ArrayLike, right: ArrayLike) -> float:
    """max(left − right, 0) at worst: the violation of left ≤ right."""
    return float(np.max(np.maximum(np.asarray(left) - np.asarray(right), 0)))


def apart(actual: ArrayLike, expected: ArrayLike) -> float:
    """max |actual − expected| / |expected|: the violation of an equality with a number that is not 0."""
    return float(np.max(np.abs(np.asarray(actual) / np.asarray(expected) - 1)))


def median_ratio(part: ArrayLike, whole: ArrayLike) -> float:
    return float(np.median(np.asarray(part) / np.asarray(whole)))


def standard_errors(estimate: ArrayLike, error: ArrayLike, expected: ArrayLike) -> float:
    """max |estimate − expected| / standard error; allowed 4."""
    return float(np.max(np.abs(np.asarray(estimate) - np.asarray(expected)) / np.maximum(error, 1e-300)))
