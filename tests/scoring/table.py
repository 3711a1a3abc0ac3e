"""Every alignment with every Z, and random texts to score."""

from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from paradigms.align import NORMALISERS, Idf, TableExcess, as_alignment
from paradigms.core import Tokens
from paradigms.recipe import Recipe
from paradigms.statistics import Statistics

COUNTED = Statistics(9, 99, torch.arange(9), torch.linspace(-1, 2, 9))
NAMED = [
    "AllPairs",
    "QueryToDocument",
    "DocumentToQuery",
    "EqualIds",
    "PositiveEqualIds",
    "PoolTopK(k=5)",
    "PoolTopK(k=0.2)",
    "PoolTopK(k=1000000)",
    "PoolExcess(k=5)",
    "TopK(k=1)",
    "TopK(k=3)",
    "TopP(p=0.3)",
    "Excess(tau=0.5)",
    "Entropic(k=1.5,eps=0.1)",
    "Entropic(k=1.5,eps=0.1,iterations=5)",
    "Buckets(planes=2,repetitions=3)",
]
ALIGNED = [as_alignment(name) for name in NAMED]
ALIGNED += [Idf(statistics=COUNTED.name), TableExcess(statistics=COUNTED.name)]
RECIPES = [Recipe("test", align, Z) for align, Z in product(ALIGNED, NORMALISERS)]


def label(recipe: Recipe) -> str:
    return f"{recipe.align} Z {recipe.normalise}"


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


def sides(salience: bool = False) -> list[Tokens]:
    """The same without gradients."""
    return [side.map(Tensor.detach) for side in texts(salience)]


def in_float64(tokens: Tokens) -> Tokens:
    """Copy tokens in float64, with separate gradients."""
    salience = None if tokens.salience is None else tokens.salience.detach().double().requires_grad_()
    return replace(tokens, vectors=tokens.vectors.detach().double().requires_grad_(), salience=salience)


def gradients(scores: Tensor, *sides: Tokens) -> list[Tensor]:
    """Gradients of a fixed weighting of the scores by both sides' vectors and salience. Frees the graph."""
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)).to(scores)
    leaves = [t for side in sides for t in (side.vectors, side.salience) if t is not None]
    results = torch.autograd.grad((scores * weights).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, results, strict=True)]
