"""Score with random buckets in place of MaxSim: which scores result?

In MUVERA (Dhulipala et al. 2024), `planes` random planes cut the space into 2^planes buckets. Let a query
token have the angle θᵢ and the similarity Sᵢ to a document's token i. Instead of the maximum of Sᵢ, the query
token contributes the mean of Sᵢ over the document's tokens in its bucket or, if there are none, over the
tokens at the least Hamming distance. One plane separates two vectors with probability θ/π (Goemans &
Williamson 1995), so

    P(Hᵢ = h) = C(planes, h) (θᵢ/π)^h (1 − θᵢ/π)^(planes − h),    P(same bucket) = (1 − θᵢ/π)^planes.

The joint law of several tokens also depends on the angles between the tokens. `expected_shares` approximates
it by assuming independent distances, and gives the mean and variance of one repetition.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from theory import checks
from theory.checks import Array


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
