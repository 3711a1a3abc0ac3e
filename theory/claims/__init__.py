"""Describe the papers' theorems and the evidence that a check returns, and register checks in THEOREMS.

A theorem is a statement with a function that looks for violations. A paper's theorem has a `claim`, which
gives the paper's assertion in our words, with the words at issue in quotation marks; the verdict, such as
"holds" or "false as printed", is about the claim. A theorem without a claim is a law derived here, or a law
by the authors named in `source`. If a claim is wrong, `correction` states the fact that holds instead; the
check then tests the correction as our statement, and measures the difference from the printed form. Each
theorem is one function in another file of this folder; this file imports all theorems, and
`experiments/theory_checks.py` runs them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

LUAN = "Luan et al. 2021"
ALIGNER = "Qian et al. 2022"
XTR = "Lee et al. 2023"
GENERATIVE = "Wu et al. 2024"
LIMIT = "Weller et al. 2025"
UNFORESEEN = "Wu et al. 2025"
RANKERS = "Rozonoyer et al. 2026"
OURS = "laws beside the papers"


@dataclass(frozen=True)
class Evidence:
    """The evidence that a theorem's check returns.

    violation: largest violation of our statement, in `unit`; at most `tolerance` if the statement holds.
    samples: number of instances tested.
    tightness: median of bounded quantity / bound; 1 if the bound is attained.
    printed: violation of the printed form; None if the paper prints the statement that is checked.
    allowed: largest violation that the paper's wording allows; `because` gives the reason.
    detail: the counterexample, or the decisive numbers.
    curves: arguments of `Curves` in experiments/studies/curves.py, for the page.
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
    claim: str = ""

    @property
    def paper(self) -> str:
        """Name of the paper that makes the claim, or `OURS`."""
        return self.source.partition(",")[0] if self.claim else OURS


THEOREMS: dict[str, Theorem] = {}


def theorem(
    statement: str, source: str, assumption: str = "none", correction: str = "", claim: str = ""
) -> Callable[[Check], Check]:
    """Register a check under the name of the decorated function."""

    def register(check: Check) -> Check:
        THEOREMS[check.__name__] = Theorem(statement, source, assumption, correction, check, claim)
        return check

    return register


def excess(left: ArrayLike, right: ArrayLike) -> float:
    """max(left − right, 0): the largest violation of left ≤ right."""
    return float(np.max(np.maximum(np.asarray(left) - np.asarray(right), 0)))


def apart(actual: ArrayLike, expected: ArrayLike) -> float:
    """max |actual − expected| / |expected|: the relative violation of an equality; expected ≠ 0."""
    return float(np.max(np.abs(np.asarray(actual) / np.asarray(expected) - 1)))


def median_ratio(quantity: ArrayLike, bound: ArrayLike) -> float:
    return float(np.median(np.asarray(quantity) / np.asarray(bound)))


# Tolerance of statements tested on draws, in standard errors. A normal variable deviates further with
# probability 6.8e-6, so a run with some 40 such tests fails by chance less than once in 1,500 runs.
DEVIATIONS = 4.5


def deviations(share: ArrayLike, draws: int, probability: Any) -> float:
    """Return the largest two-sided deviation of an observed share from its probability, in standard errors.

    share: fraction of `draws` in which the event occurs. The tail probability is exact (binomial), so it is
    also valid for rare events. It is converted to the normal quantile with the same tail.
    """
    count = np.rint(np.asarray(share) * draws)
    tail = np.minimum(
        stats.binom.cdf(count, draws, probability), stats.binom.sf(count - 1, draws, probability)
    )
    return float(np.max(stats.norm.isf(np.minimum(tail, 0.5))))


def deviation_above(share: ArrayLike, draws: int, bound: ArrayLike) -> float:
    """Return the largest excess of a share over a probability bound, in standard errors; at least 0."""
    tail = stats.binom.sf(np.rint(np.asarray(share) * draws) - 1, draws, np.minimum(bound, 1))
    return float(np.max(stats.norm.isf(np.minimum(tail, 0.5))))


# Each of these files registers theorems with the functions above.
from theory.claims import projections, recall, aligner, xtr, imputation, generative, capacity, decoding  # noqa: E402, F401, I001
