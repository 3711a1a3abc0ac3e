"""Laws of our own about random buckets: what fixed-dimensional encodings (MUVERA) make of a maximum."""

import numpy as np
from studies.theory_claims import Evidence, standard_errors, theorem

from theory import buckets


def drawn(rng: np.random.Generator, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """A query token and document tokens in 6 dimensions, all near one direction: [tokens + 1, 6], angles."""
    vectors = rng.standard_normal((tokens + 1, 6)) + rng.uniform(0, 2) * rng.standard_normal(6)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit, np.arccos(np.clip(unit @ unit.T, -1, 1))


def measured(rng: np.random.Generator, unit: np.ndarray, planes: int, draws: int, fill: bool) -> np.ndarray:
    """A of every draw, [draws, tokens], of explicit planes."""
    sides = np.einsum("th,dph->dtp", unit, rng.standard_normal((draws, planes, unit.shape[1]))) > 0
    apart = (sides[:, 1:] != sides[:, :1]).sum(-1)
    chosen = apart == (apart.min(1, keepdims=True) if fill else 0)
    return chosen / np.maximum(1, chosen.sum(1, keepdims=True))


@theorem(
    "E[A₁] = (1 − θ₁/π)^k − ½(1 − (θ₁ + θ₂ + θ₁₂)/2π)^k for a document of two tokens",
    "SimHash buckets, k planes",
    "no filling",
)
def bucket_shares_of_two(rng: np.random.Generator, samples: int) -> Evidence:
    worst, draws = 0.0, 10 * samples
    for planes in (1, 2, 4, 6):
        unit, angles = drawn(rng, 2)
        A = measured(rng, unit, planes, draws, fill=False)[:, 0]
        law = buckets.pair_shares(angles[0, 1], angles[0, 2], angles[1, 2], planes)
        worst = max(worst, standard_errors(A.mean(), A.std() / np.sqrt(draws), law))
    return Evidence(worst, 4 * draws, tolerance=4, unit="s.e.")


@theorem(
    "expected A of many tokens, Hamming distances taken as independent: within .1 of the truth",
    "SimHash buckets, k planes",
    "up to 30 tokens near one direction; an approximation",
)
def bucket_shares_of_many(rng: np.random.Generator, samples: int) -> Evidence:
    worst, off = 0.0, []
    for tokens in (1, 3, 10, 30):
        for planes, fill in ((2, True), (4, True), (4, False)):
            unit, angles = drawn(rng, tokens)
            A = measured(rng, unit, planes, samples, fill).mean(0)
            off.append(np.abs(buckets.expected_shares(angles[0, 1:], planes, fill=fill) - A).max())
            worst = max(worst, off[-1])
    return Evidence(worst, 12 * samples, tolerance=0.1, unit="share", detail=f"mean gap {np.mean(off):.3f}")
