"""max_λ sᵀλ + ε H(λ)  s.t.  1ᵀλ = k, λ ∈ [0, 1]^m: the entropy-regularised top-k.

Qian et al. 2022 (ALIGNER), Eq. 4 (salience) and Eq. 9 (alignment). The maximiser is the capped softmax λᵢ =
min(1, exp((sᵢ + a)/ε)), where a is chosen to meet the budget k.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from paradigms.core import at_least_float32

SMALLEST_EPS = 1e-30  # keeps scores / ε, and gradients, which grow with 1/ε, within float32


def entropic_topk(
    scores: Float[Tensor, "*batch m"],
    k: float | int | Tensor,
    eps: float,
    mask: Bool[Tensor, "*batch m"] | None = None,
    iterations: int | None = None,
) -> Float[Tensor, "*batch m"]:
    """λ* = argmax sᵀλ + ε H(λ), 1ᵀλ = k, λ ∈ [0, 1]^m, for every row of scores.

    k: a number, or a tensor with one value per row; fractions are allowed. eps: at least SMALLEST_EPS, in the
    unit of the scores. mask: True for real entries; λ is 0 elsewhere. iterations: None solves exactly in O(m
    log m); an integer T runs T steps of the paper's Eq. 5 from a = b = 0. These steps undershoot the budget
    and converge linearly, at rate n1/k, where n1 is the number of entries at 1.

    The result is computed in float32 or wider even under autocast: at ε = .002, bfloat16 cannot separate
    neighbouring scores. It is differentiable in scores and k: with n1 fixed, autograd gives the exact
    Jacobian of the maximiser.
    """
    if eps < SMALLEST_EPS:
        raise ValueError(f"eps must be at least {SMALLEST_EPS:g}, got {eps}; for eps -> 0 there is hard_topk")
    if iterations is not None and iterations < 1:
        raise ValueError(f"iterations must be at least 1, or None for the exact solution, got {iterations}")
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    if not scores.numel():
        return torch.zeros_like(scores)
    with torch.autocast(scores.device.type, enabled=False):
        s = _wide(scores, mask)
        length = mask.sum(-1)
        budget = torch.as_tensor(k, dtype=s.dtype, device=s.device).expand(length.shape).clamp(min=0)
        # Rows whose budget covers everything or nothing are handled separately. For them the solver gets a
        # budget that keeps it finite, and its result is discarded.
        proper = (budget > 0) & (budget < length)
        inner = budget.where(proper, 0.5)
        rows = mask & proper[..., None]
        inside = (
            _exact(s, inner, eps, rows) if iterations is None else _iterate(s / eps, inner, rows, iterations)
        )
        everything = (mask & (budget >= length)[..., None]).to(s.dtype)
        return torch.where(proper[..., None], inside, everything).to(scores.dtype)


def hard_topk(
    scores: Float[Tensor, "*batch m"],
    k: float | int | Tensor,
    mask: Bool[Tensor, "*batch m"] | None = None,
) -> Float[Tensor, "*batch m"]:
    """λ* = argmax sᵀλ, 1ᵀλ = k, λ ∈ [0, 1]^m: `entropic_topk` as ε → 0, without a gradient.

    λ is 1 above the k-th largest score and 0 below it; ties share the rest of the budget. Qian et al. 2022,
    Figure 6.
    """
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    s = _wide(scores.detach(), mask)
    budget = torch.as_tensor(k, dtype=s.dtype, device=s.device).detach().expand(s.shape[:-1])[..., None]
    place = budget.ceil().long().minimum(mask.sum(-1, keepdim=True)).clamp(min=1) - 1
    threshold = s.sort(-1, descending=True).values.gather(-1, place)
    above = mask & (s > threshold)
    tied = mask & (s == threshold)
    left = (budget - above.sum(-1, keepdim=True)).clamp(min=0)
    share = (left / tied.sum(-1, keepdim=True).clamp(min=1)).clamp(max=1)
    return above.to(s.dtype).where(~tied, share).to(scores.dtype)


def token_budget(ratio: float, mask: Bool[Tensor, "*batch m"]) -> Float[Tensor, "*batch"]:
    """Return max(1, ⌈ratio · number of real tokens⌉) for each text; 0 for a text without tokens."""
    length = mask.sum(-1).double()
    return (ratio * length - 1e-9).ceil().clamp(min=1).minimum(length)  # .55 · 100 is 55.00000000000001


def _wide(scores: Tensor, mask: Tensor) -> Tensor:
    """Convert scores to float32 or wider, and set padding to the smallest finite value."""
    wide = at_least_float32(scores)
    return wide.masked_fill(~mask, torch.finfo(wide.dtype).min)


def _exact(s: Tensor, k: Tensor, eps: float, mask: Tensor) -> Tensor:
    """Find n1, the number of entries at 1; a softmax shares the rest of the budget among the others."""
    ordered, order = s.detach().sort(dim=-1, descending=True)
    # The cap lies at most ε ln m above the ⌈k⌉-th score. Relative to that score, the scores near the cap are
    # small and lose nothing to rounding; s/ε itself reaches 500, where float32 has steps of 3e-5.
    pivot = ordered.gather(-1, k.detach()[..., None].ceil().long() - 1)
    s = (s - pivot) / eps
    ordered = (ordered - pivot) / eps
    rest = ordered.flip(-1).logcumsumexp(-1).flip(-1)  # [n] = LSE of all but the n largest
    n = torch.arange(s.shape[-1], device=s.device)
    left = k.detach()[..., None] - n
    # a(n)/ε = ln(k − n) − LSE_{i>n}; n1 is the smallest n that keeps every other entry at most 1. Scores
    # further above the pivot than the cap are excluded, because their differences are lost to rounding.
    fits = (left.log() <= rest - ordered) & (ordered <= math.log(s.shape[-1]) + 1)
    last = left.ceil().clamp(min=1)[..., 0].long() - 1  # the largest n < k always fits
    n1 = torch.where(fits.any(-1), fits.float().argmax(-1), last)
    capped = torch.zeros_like(mask).scatter(-1, order, n < n1[..., None]) & mask
    open_ = mask & ~capped
    share = s.masked_fill(~open_, torch.finfo(s.dtype).min).softmax(-1).where(open_, 0)
    return capped.to(s.dtype) + (k - n1)[..., None] * share


def _iterate(s: Tensor, k: Tensor, mask: Tensor, iterations: int) -> Tensor:
    """a ← ε ln k − ε LSE((s + b)/ε), b ← min(−s − a, 0); λ = exp((s + a + b)/ε).

    The code stores s, a and b divided by ε.
    """
    s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
    b = torch.zeros_like(s)
    for _ in range(iterations):
        a = k.log()[..., None] - (s + b).logsumexp(-1, keepdim=True)
        b = (-s - a).clamp(max=0)
    return (s + a + b).exp()
