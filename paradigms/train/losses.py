"""Losses over scores: they see rel, never an encoder."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def contrastive(
    scores: Float[Tensor, "b n"],
    target: Int[Tensor, " b"],
    excluded: Bool[Tensor, "b n"],
    temperature: float,
) -> Float[Tensor, ""]:
    """−(1/b) Σ log softmax(rel/τ)[target]: softmax cross-entropy over in-batch and hard negatives.

    `excluded` candidates take no part: other documents that are relevant to the query too, and second
    copies of its own. The target itself is never excluded. XTR's objective is this loss over its own rel.
    A temperature is needed: with cosines and many negatives the target's probability at τ = 1 stays far
    below 1 however good the scores are.
    """
    own = torch.zeros_like(excluded).scatter(1, target[:, None], True)
    logits = (scores / temperature).masked_fill(excluded & ~own, -torch.inf)
    return torch.nn.functional.cross_entropy(logits, target)
