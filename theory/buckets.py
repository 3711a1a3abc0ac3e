"""Score with random buckets in place of MaxSim: which scores result, and how many repetitions are needed?

In MUVERA (Dhulipala et al. 2024), `planes` random planes cut the space into 2^planes buckets. Let a query
token have the angle θᵢ and the similarity Sᵢ to a document's token i. Instead of the maximum of Sᵢ, the query
token contributes the mean of Sᵢ over the document's tokens in its bucket or, if there are none, over the
tokens at the least Hamming distance. One plane separates two vectors with probability θ/π (Goemans &
Williamson 1995), so

    P(Hᵢ = h) = C(planes, h) (θᵢ/π)^h (1 − θᵢ/π)^(planes − h),    P(same bucket) = (1 − θᵢ/π)^planes.

The joint law of several tokens also depends on the angles between the tokens. `expected_shares` approximates
it by assuming independent distances, and gives the mean and variance of one repetition; the central limit
theorem then gives the recall of many repetitions (`expected_recall`).
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from theory import checks
from theory.checks import Array
from theory.recall import at_least


def expected_shares(angles: ArrayLike, planes: int, *, fill: bool = True) -> Array:
    """E[Aᵢ], [m, ...]: the expected weight of document token i in the mean that a query token contributes.

    angles: between the query token and the document's tokens, [m, ...].

    E[Aᵢ] = Σₕ P(Hᵢ = h) ∫₀¹ Πₖ≠ᵢ (P(Hₖ > h) + P(Hₖ = h) t) dt over the Hamming distances h, or over h = 0
    alone if `fill` is False. This follows from 1/(1 + n) = ∫ tⁿ dt if the tokens' distances are independent.
    The integrand is a polynomial of degree m − 1, which ⌈m/2⌉ Gauss-Legendre nodes integrate exactly.
    """
    angles, planes = checks.interval(angles, "angles", 0, np.pi), int(checks.whole(planes, "planes", least=0))
    distances = np.arange(planes + 1).reshape(-1, *[1] * angles.ndim)
    p = angles / np.pi
    at = special.comb(planes, distances) * p**distances * (1 - p) ** (planes - distances)  # [h, m, ...]
    beyond = np.cumsum(at[::-1], axis=0)[::-1] - at
    nodes, weights = np.polynomial.legendre.leggauss((len(angles) + 1) // 2)
    shares = np.zeros(angles.shape)
    for equal, above in zip(at[: None if fill else 1], beyond, strict=fill):
        for t, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            farther = np.maximum(above + equal * t, 1e-300)
            shares += equal / farther * (weight * np.exp(np.log(farther).sum(0)))
        if np.log(np.maximum(above, 1e-300)).sum(0).max() < -30:  # all tokens are within this distance
            break
    return shares


def expected_recall(
    means: ArrayLike, variances: ArrayLike, repetitions: int, best: ArrayLike, candidates: int
) -> float:
    """Compute the expected share of the documents in `best` that rank among the first `candidates` of n.

    means, variances: mean and variance of every document's score in one repetition, [n]. best: indices of
    documents. Scores are assumed independent and normal, with variances `variances` / repetitions. Raises
    ValueError for a negative variance, no candidates, or no documents in `best`.
    """
    count = checks.whole(repetitions, "repetitions")
    places = int(checks.whole(candidates, "candidates"))
    means = checks.vector(means, "means", axes=1, nonzero=False)
    chosen = checks.whole(best, "best", least=0, most=len(means) - 1).astype(np.int64)
    spread = np.sqrt(checks.interval(variances, "variances", 0, np.finfo(float).max) / count)
    if spread.shape != means.shape or chosen.ndim != 1 or not len(chosen):
        raise ValueError(
            f"means {means.shape}, variances {spread.shape}, best {chosen.shape}; allowed: [n], [n] and [b], "
            "b ≥ 1"
        )
    spread = np.maximum(spread, 1e-12)
    nodes, weights = np.polynomial.hermite_e.hermegauss(15)
    recalls = []
    for one in chosen:
        rivals = np.delete(np.arange(len(means)), one)
        scores = means[one] + spread[one] * nodes
        above = special.ndtr((means[rivals, None] - scores) / spread[rivals, None])
        recalls.append(1 - weights @ at_least(above, places) / weights.sum())
    return float(np.mean(recalls))
