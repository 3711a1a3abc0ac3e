"""Every alignment with every Z, and random texts for them."""

from itertools import product

import torch
from torch import Tensor

from paradigms.align import NORMALISERS
from paradigms.core import Tokens
from paradigms.recipe import Recipe

ALIGNED: list[tuple[str, dict]] = [
    ("all_pairs", {}),
    ("query_to_document", {}),
    ("document_to_query", {}),
    ("equal_ids", {}),
    ("positive_equal_ids", {}),
    ("pool_top_k", {"k": 5}),
    ("pool_top_k", {"k": 10**6}),
    ("top_k", {"k": 1}),
    ("top_k", {"k": 3}),
    ("top_p", {"p": 0.3}),
    ("entropic", {"k": 1.5, "eps": 0.1}),
    ("entropic", {"k": 1.5, "eps": 0.1, "iterations": 5}),
    ("buckets", {"planes": 2, "repetitions": 3}),
]
RECIPES = [Recipe("test", align, Z, knobs) for (align, knobs), Z in product(ALIGNED, NORMALISERS)]


def label(recipe: Recipe) -> str:
    return " ".join([recipe.align, *map(str, recipe.align_knobs.values()), "Z", recipe.normalise])


def texts(
    salience: bool = False,
    *,
    real: float = 0.7,
    dtype: torch.dtype = torch.float64,
    sizes: tuple[int, ...] = (3, 5, 13, 7, 20),  # b, n, i, j, h
) -> list[Tokens]:
    """Documents and queries with gradients; the first document and the last query are empty.

    real: the share of tokens that are no padding.
    """
    random, (b, n, i, j, h) = torch.Generator().manual_seed(0), sizes

    def tokens(x: int, n: int, l: int, empty: tuple[int, int]) -> Tokens:
        mask = torch.rand(x, n, l, generator=random) < real
        mask[:, :, 0] = real > 0
        mask[empty] = False
        vectors = torch.randn(x, n, l, h, generator=random).where(mask[..., None], 100.0).to(dtype)
        u = torch.rand(x, n, l, generator=random).to(dtype)
        u = u.where(u > 0.2, 0).requires_grad_() if salience else None
        return Tokens(vectors.requires_grad_(), mask, torch.randint(-2, 4, mask.shape, generator=random), u)

    return [tokens(1, n, i, (0, 0)), tokens(b, 1, j, (b - 1, 0))]


def gradients(scores: Tensor, *sides: Tokens) -> list[Tensor]:
    """Of a fixed weighting of the scores, for vectors and salience of both sides; the graph is used up."""
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1), dtype=scores.dtype)
    leaves = [t for side in sides for t in (side.vectors, side.salience) if t is not None]
    found = torch.autograd.grad((scores * weights).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]


def close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
