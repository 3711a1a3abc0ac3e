"""Codes of token vectors: errors as theory has them, whatever the dimensions, norms and residuals."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from paradigms.store import residuals
from paradigms.store.residuals import STEPS, Codec, padded

BITS = sorted(STEPS)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def decoded(codec: Codec, vectors: torch.Tensor) -> torch.Tensor:
    return codec.decode_vectors(**codec.encode_vectors(vectors))


def error(codec: Codec, vectors: torch.Tensor) -> float:
    """Σ‖x − x̂‖² / Σ‖x − c‖²."""
    nearest = codec.centroids[codec.nearest(padded(vectors, codec.bits))][:, : vectors.shape[1]]
    return float((decoded(codec, vectors) - vectors).square().sum() / (vectors - nearest).square().sum())


def squared_error(step: float, bits: int) -> float:
    """E (x − step · (z − (2^b − 1) / 2))² of x ~ N(0, 1), z the nearest of 2^b codes."""
    n = np.arange(1 << bits - 1)  # of the positive half
    c, low, high = (n + 0.5) * step, n * step, np.append((n + 1)[:-1] * step, 1e3)

    def until(x: np.ndarray) -> np.ndarray:
        """∫ (x − c)² φ(x), but for a constant."""
        return (1 + c**2) * ndtr(x) - (x - 2 * c) * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)

    return float(2 * (until(high) - until(low)).sum())


@pytest.mark.parametrize("bits", BITS)
def test_steps_have_the_least_squared_error_on_a_normal_distribution(bits):
    step = STEPS[bits]
    best = minimize_scalar(
        squared_error, bounds=(step / 2, 2 * step), args=(bits,), method="bounded", options={"xatol": 1e-6}
    )
    assert abs(step - best.x) <= 6e-5  # four decimals, and the accuracy of the minimisation


@pytest.mark.parametrize("width", [1, 3, 8, 32, 48, 100])
@pytest.mark.parametrize("bits", BITS)
def test_dimensions_that_fill_no_tile_cost_no_accuracy(width, bits):
    vectors = normal(1500, width)
    codec = Codec.fit(vectors, 1, bits, seed=0)
    assert codec.spread[width:].max(initial=0) == 0
    assert error(codec, vectors) < 1.08 * squared_error(STEPS[bits], bits) + 2e-5  # of rounded scales


def test_residuals_of_every_size_have_their_scale():
    """Norms differ by a factor of up to a thousand in one index: each token's error follows its own norm."""
    size = 2.0 ** torch.linspace(-3, 7, 1200)[:, None]
    vectors = normal(1200, 128) * size
    for bits in BITS:
        codec = Codec.fit(vectors, 1, bits, seed=0)
        codec.centroids.zero_()
        shares = (decoded(codec, vectors) - vectors).square().sum(1) / vectors.square().sum(1)
        ratio = vectors.square().mean(1).sqrt() / float(codec.spread.mean())
        assert float(ratio.min()) < 2**-7  # some of which lie below the smallest scale
        for part in shares[ratio > 2**-5.5].split(100):
            assert float(part.mean()) < 1.15 * squared_error(STEPS[bits], bits) + 2e-5


def test_added_vectors_far_from_the_sample_are_coded_too():
    """A sample of one vector measures only its own rounding: vectors at distance √2 are coded coarsely."""
    others = torch.nn.functional.normalize(normal(500, 128), dim=-1)
    for sample, most in ((others[:0], 0.02), (others[:1], 0.3), (others[:1].repeat(9, 1), 0.3)):
        codec = Codec.fit(sample, 4, 4, seed=0)
        assert float((decoded(codec, others) - others).square().sum(1).mean()) < most


def test_near_cells_have_the_nearest_centroid_of_nearly_every_token(monkeypatch):
    """Two levels of 1,024 centroids, and 40,000 tokens of 128 dimensions around 3,000 points.

    99% of the tokens have the centroid of a search of all, or one at most 1% further away; the mean square of
    all residuals is at most 1.001 times as large. Two levels cost at most 5% more than k-means of one level.
    """
    points = normal(3000, 128, seed=1)
    vectors = points[torch.randint(3000, (40_000,), generator=torch.Generator().manual_seed(2))]
    vectors = torch.nn.functional.normalize(vectors + 0.7 * normal(40_000, 128, seed=3), dim=-1)

    def square(codec: Codec, nearest: torch.Tensor) -> torch.Tensor:
        return (vectors - codec.centroids[nearest]).square().sum(1)

    flat = Codec.fit(vectors, 1024, 4, seed=0)
    assert flat.cells.tolist() == [0, 1024]
    monkeypatch.setattr(residuals, "FLAT", 1000)
    codec = Codec.fit(vectors, 1024, 4, seed=0)
    assert len(codec.cells) == 33
    assert codec.cells[-1] == len(codec.packed) == 1024
    two_levels = square(codec, codec.nearest(vectors))
    monkeypatch.setattr(residuals, "CELLS", 32)
    exact = square(codec, codec.nearest(vectors))
    assert float((two_levels <= 1.01 * exact).float().mean()) > 0.99
    assert float(two_levels.mean()) < 1.001 * float(exact.mean())
    assert float(exact.mean()) < 1.05 * float(square(flat, flat.nearest(vectors)).mean())
