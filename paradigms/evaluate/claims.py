"""Decide whether papers' claims hold here: claims are data, and one function judges them for every study.

A claim says that the mean of a contrast over queries and training seeds lies above `least` or, if it claims
equality, within ±`within`. `least` is the least effect that matters: above 0 where a paper says that A is
better, below 0 where it says that A loses little. The verdict is

- reproduced, if the interval over seeds and queries lies within these bounds, and a test over queries
  agrees, with Holm's correction for all claims of a study that test queries may decide. The test is
  `mean_test`: its null hypothesis is that the mean is at the bound, and it asks how large unseen losses may
  be. `paired_test` is not used: its null hypothesis is that each query's difference has either sign with the
  same probability, and it also rejects skewed differences whose mean is 0;
- contradicted, if both say the opposite;
- otherwise not decided here: the sample is too small, the study lacks what the claim is about, a system has
  not learned enough to test the claim, or the claim is about training and training did not significantly
  change a model's measure on dev queries.

A claim about a readout compares ways of scoring with one model, whether or not training changed that model.
The claim's row in the table is marked.

A claim whose `place` (the passage of the paper) is empty is a control: a question that the paper does not
ask. The verdict on a control is yes, no, or not decided here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from math import ceil, hypot, log, sqrt

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri, stdtrit

from paradigms.evaluate.measures import Interval, seeds_interval
from paradigms.evaluate.significance import holm, mean_test

ALPHA = 0.05
CLOSE = 20  # times the queries of a study, beyond which no number of queries is estimated
REPRODUCED, CONTRADICTED, UNDECIDED = "reproduced", "contradicted", "not decided here"
YES, NO = "yes", "no"  # verdicts on controls
ONE_SEED = "with one seed, the interval is over queries alone"  # added to a verdict
TRAINING, READOUT = "training", "readout"


@dataclass(frozen=True)
class Claim:
    """The claim mean(contrast) > least or, if `within` is above 0, |mean(contrast)| < within."""

    place: str  # the paper and the passage: "Lee et al. 2023, §5.2"; "" for a control
    statement: str  # the claim in our words, with the words at issue quoted; or a control's question
    quantity: str  # the measure and the contrast in words: "nDCG@10, XTR − ColBERT"
    contrast: Float[np.ndarray, "seeds queries"]
    least: float = 0.0  # least effect that matters or, below 0, the largest loss that does not
    within: float = 0.0  # for a claim of equality: the smallest difference that matters
    limits: tuple[float, float] = (-1.0, 1.0)  # between which a query's value lies
    printed: str = ""  # the paper's value of the quantity
    unlearned: str = ""  # a system that has not learned enough to test the claim; "" = none
    about: str = ""  # TRAINING, READOUT, or "" if nothing was trained
    unmoved: str = ""  # a model whose dev measure training did not change; for claims about TRAINING
    by_measure: bool = False  # whether a change of the claim's own measure, on test queries, counts as well
    alike: str = ""  # a difference of the trained models that is not significant; "" = none
    lacking: str = ""  # what the study lacks, so that no mean decides the claim; "" = nothing

    @property
    def obstacle(self) -> str:
        """What leaves the claim open whatever its test says; "" = nothing."""
        if self.lacking:
            return self.lacking
        if self.unlearned:
            return f"{self.unlearned} has not learned enough"
        if self.alike:
            return f"{self.alike} is not significant: the trained models may be alike"
        moved = self.about != TRAINING or not self.unmoved
        return "" if moved else f"training did not move {self.unmoved} on dev queries"

    @property
    def counted(self) -> bool:
        """Whether Holm's correction counts the claim: unless it is open whatever the test queries say."""
        return not self.lacking and (self.about != TRAINING or not self.unmoved or self.by_measure)

    @property
    def bounds(self) -> tuple[float, float]:
        """Limits between which the claim puts the mean."""
        return (-self.within, self.within) if self.within else (self.least, np.inf)

    @property
    def bar(self) -> str:
        """The bounds in words; "" if the claim is only that the mean is above 0."""
        if self.within:
            return f", within ±{self.within:g}"
        if not self.least:
            return ""
        return f", above {self.least:g}" if self.least > 0 else f", above −{-self.least:g}"


@dataclass(frozen=True)
class Verdict:
    """A claim, the interval of its contrast, p after Holm's correction, and the verdict."""

    claim: Claim
    interval: Interval
    p: float
    word: str
    reason: str  # why it is undecided, and what would decide it; or a limitation of the interval

    @property
    def row(self) -> dict[str, str]:
        """Return the claim's row in the study's table."""
        seeds, queries = self.claim.contrast.shape
        place = self.claim.place
        statement = self.claim.statement
        readout = self.claim.about == READOUT
        mean, low, high = self.interval
        digits = 3 if high - low >= 0.002 or low == high else 5  # as many as the bounds need to differ
        return {
            "claim": "Control: " * (not place) + statement + " [about a readout]" * readout,
            "place": place or "–",
            "quantity": self.claim.quantity + self.claim.bar,
            "printed": self.claim.printed,
            "measured": f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]",
            "p (Holm)": f"{self.p:.4f}",
            "sample": f"{queries} queries, {seeds} seed{'s' * (seeds != 1)}",
            "verdict": self.word + (f": {self.reason}" if self.reason else ""),
        }


def judge(claims: Sequence[Claim], clusters: Sequence[str] | None = None) -> list[Verdict]:
    """Judge a study's claims. Raises ValueError if a value is NaN.

    Holm's correction is for the claims that test queries may decide (`Claim.counted`); the others, such as
    those about a model that training did not move on dev queries, are corrected among themselves. clusters:
    each query's cluster; the queries of a cluster are drawn and tested together. If a contrast has fewer
    queries than `clusters`, its queries are the first ones.
    """
    of_claims = [None if clusters is None else clusters[: claim.contrast.shape[1]] for claim in claims]
    pairs = list(zip(claims, of_claims, strict=True))
    p = [_p(claim, of_claim) for claim, of_claim in pairs]
    counted = [claim.counted for claim in claims]
    for family in (counted, [not one for one in counted]):
        adjusted = iter(holm(list(compress(p, family))))
        p = [next(adjusted) if inside else value for value, inside in zip(p, family, strict=True)]
    return [_verdict(*pair, value, sum(counted)) for pair, value in zip(pairs, p, strict=True)]


def _p(claim: Claim, clusters: Sequence[str] | None) -> float:
    """Two-sided p-value of a mean at the claim's bound; for equality, the larger of those at both bounds."""
    queries = claim.contrast.mean(0)
    finite = [bound for bound in claim.bounds if np.isfinite(bound)]
    return max(mean_test(queries, bound, clusters, claim.limits) for bound in finite)


def claim_interval(
    contrast: Float[np.ndarray, "seeds queries"], clusters: Sequence[str] | None = None
) -> Interval:
    """Return the 95% interval of the mean over training seeds and queries; half-widths add in squares.

    The part of the queries is a bootstrap of their means over seeds. The part of S seeds is Student's t with
    S − 1 degrees of freedom times the standard error of their means. A bootstrap of the seeds
    (`seeds_interval`) shows (S − 1)/S of their variance: where seeds differ, its 95% interval holds the mean
    in about 72% of studies with two seeds.
    """
    interval = seeds_interval(contrast.mean(0, keepdims=True), clusters=clusters)
    seeds = len(contrast)
    if seeds == 1:
        return interval
    error = contrast.mean(1).std(ddof=1) / sqrt(seeds)
    among = float(stdtrit(seeds - 1, 1 - ALPHA / 2) * error)
    low = interval.mean - hypot(interval.mean - interval.low, among)
    high = interval.mean + hypot(interval.high - interval.mean, among)
    return Interval(interval.mean, low, high)


def _verdict(claim: Claim, clusters: Sequence[str] | None, p: float, tests: int) -> Verdict:
    interval = claim_interval(claim.contrast, clusters)
    decides = _decides(claim, interval)
    obstacle = claim.obstacle
    if not obstacle and not (p < ALPHA and decides):
        obstacle = _missing(claim, interval, p, clusters, tests)
    if obstacle:
        return Verdict(claim, interval, p, UNDECIDED, obstacle)
    words = (REPRODUCED, CONTRADICTED) if claim.place else (YES, NO)
    word = words[0] if interval.low > claim.bounds[0] and interval.high < claim.bounds[1] else words[1]
    return Verdict(claim, interval, p, word, "" if claim.contrast.shape[0] > 1 else ONE_SEED)


def _decides(claim: Claim, interval: Interval) -> bool:
    """Whether the interval lies within the claim's bounds, or outside of them."""
    least, most = claim.bounds
    inside = interval.low > least and interval.high < most
    return inside or interval.high < least or interval.low > most


def _missing(claim: Claim, interval: Interval, p: float, clusters: Sequence[str] | None, tests: int) -> str:
    """Say what would decide a claim with this mean: training seeds, or a number of queries n.

    The half-width of the queries' interval shrinks with √n; an unseen query also keeps the mean within
    −log(α/2)/n of the bound, times half the width of `limits`. α is ALPHA divided by the number of tests.
    """
    distance = min(abs(interval.mean - bound) for bound in claim.bounds)
    if not distance:
        return "the mean equals the bound"
    of_queries = seeds_interval(claim.contrast.mean(0, keepdims=True), clusters=clusters)
    decides = _decides(claim, interval)
    if _decides(claim, of_queries) and not decides:
        return "its training seeds differ too much: it needs more of them"
    queries = claim.contrast.shape[1]
    level = ALPHA / max(tests, 1) / 2
    spread = (of_queries.high - of_queries.low) / 2 * sqrt(queries) * ndtri(level) / ndtri(ALPHA / 2)
    unseen = -log(level) * (claim.limits[1] - claim.limits[0]) / 2
    count = ceil(((spread + sqrt(spread**2 + 4 * distance * unseen)) / (2 * distance)) ** 2)
    if decides and count <= queries:
        return f"the interval decides, but p is {p:.2f} after Holm's correction"
    if count > CLOSE * queries:
        return f"a mean of this size needs more than {CLOSE} times as many queries"
    return f"a mean of this size needs about {max(count, queries + 1):,} queries"
