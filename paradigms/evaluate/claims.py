"""Decide whether papers' claims hold here: claims are data, and one function judges them for every study.

A claim says that the mean of a contrast over queries and training seeds lies above `least` or, if it claims
equality, within ±`within`. `least` is the least effect that matters, chosen before measuring: above 0 where a
paper says that A is better, below 0 where it says that A loses little. The verdict is

- reproduced, if the interval over seeds and queries lies within these bounds, and a test over queries
  agrees, with Holm's correction for all claims of a study. The test is `mean_test`, which asks how large
  unseen losses may be. Only where `least` is 0 is it the paired randomisation test, since signs are random if
  the systems do not differ;
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
from math import ceil, log, sqrt

import numpy as np
from jaxtyping import Float

from paradigms.evaluate.measures import Interval, seeds_interval
from paradigms.evaluate.significance import holm, mean_test, paired_test

ALPHA = 0.05
UNSEEN = -log(ALPHA / 2)  # n queries without a loss leave room for losses of probability UNSEEN / n
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
    lacking: str = ""  # what the study lacks, so that no mean decides the claim; "" = nothing

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
    """Judge a study's claims, with Holm's correction over all of them. Raises ValueError if a value is NaN.

    clusters: each query's cluster; the queries of a cluster are drawn and tested together. If a contrast has
    fewer queries than `clusters`, its queries are the first ones.
    """
    of_claims = [None if clusters is None else clusters[: claim.contrast.shape[1]] for claim in claims]
    pairs = list(zip(claims, of_claims, strict=True))
    adjusted = holm([_p(claim, of_claim) for claim, of_claim in pairs])
    return [_verdict(*pair, p) for pair, p in zip(pairs, adjusted, strict=True)]


def _p(claim: Claim, clusters: Sequence[str] | None) -> float:
    """Two-sided p-value of a mean at the claim's bound; for equality, the larger of those at both bounds."""
    queries = claim.contrast.mean(0)
    if claim.least or claim.within:
        finite = [bound for bound in claim.bounds if np.isfinite(bound)]
        return max(mean_test(queries, bound, clusters, claim.limits) for bound in finite)
    return paired_test(queries, np.zeros_like(queries), clusters)


def _verdict(claim: Claim, clusters: Sequence[str] | None, p: float) -> Verdict:
    interval = seeds_interval(claim.contrast, clusters=clusters)
    least, most = claim.bounds
    inside = interval.low > least and interval.high < most
    outside = interval.high < least or interval.low > most
    obstacle = claim.lacking
    if not obstacle and claim.unlearned:
        obstacle = f"{claim.unlearned} has not learned enough"
    if not obstacle and claim.about == TRAINING and claim.unmoved:
        obstacle = f"training did not move {claim.unmoved} on dev queries"
    if not obstacle and not (p < ALPHA and (inside or outside)):
        obstacle = _missing(claim, interval, p, inside or outside)
    if obstacle:
        return Verdict(claim, interval, p, UNDECIDED, obstacle)
    words = (REPRODUCED, CONTRADICTED) if claim.place else (YES, NO)
    word = words[0] if inside else words[1]
    return Verdict(claim, interval, p, word, "" if claim.contrast.shape[0] > 1 else ONE_SEED)


def _missing(claim: Claim, interval: Interval, p: float, decides: bool) -> str:
    """Say what would decide a claim with this mean, such as a number of queries n.

    The half-width of the interval shrinks with √n; with a bound other than 0, an unseen query of difference
    −1 or 1 also keeps the mean within UNSEEN/n of the bound (`mean_test`).
    """
    distance = min(abs(interval.mean - bound) for bound in claim.bounds)
    if not distance:
        return "the mean equals the bound"
    queries = claim.contrast.shape[1]
    spread = (interval.high - interval.low) / 2 * sqrt(queries)
    unseen = UNSEEN if claim.least or claim.within else 0.0
    count = ceil(((spread + sqrt(spread**2 + 4 * distance * unseen)) / (2 * distance)) ** 2)
    if decides and count <= queries:
        return f"the interval decides, but p is {p:.2f} after Holm's correction"
    return f"a mean of this size needs about {max(count, queries + 1):,} queries"
