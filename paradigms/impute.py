"""Estimate mⱼ ≈ maxᵢ dᵢᵀqⱼ for documents from which query token j retrieved nothing, and compute scores.

Lee et al. 2023 (arXiv:2304.01982), §3.2, Eq. 4 and Table 5. An imputation is a function (retrieved,
corpus_tokens) -> m. `retrieved` [j, k'] contains the similarities of the document tokens that each query
token retrieved, in any order, padded with −∞ if fewer were found. `corpus_tokens` is the number of tokens in
the corpus. m [j] is on the scale of the similarities. If m is NaN, the query token is left out of the sum and
of Z; `none` always returns NaN. With exact search, no missing similarity exceeds the smallest retrieved one,
so `kth` is an upper bound; `tail_mean` and `percentile` lie above this bound, and `power_law` lies below it.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paradigms.align import retrieved_tokens
from paradigms.core import TokenPairs, Valid

Retrieved = Float[Tensor, "j k"]
Missing = Float[Tensor, " j"]

TAIL = 0.1  # lowest share of the retrieved similarities, for tail_mean and percentile


def kth(retrieved: Retrieved, corpus_tokens: int) -> Missing:
    """mⱼ = the k'-th best similarity, the smallest retrieved one (Eq. 4)."""
    return _or_nan(retrieved.where(retrieved > -torch.inf, torch.inf).amin(1))


def none(retrieved: Retrieved, corpus_tokens: int) -> Missing:
    """No mⱼ: rel is the mean over the query tokens that retrieved a token of d (Eq. 2)."""
    return torch.full_like(retrieved[:, 0], torch.nan)


def zero(retrieved: Retrieved, corpus_tokens: int) -> Missing:
    """mⱼ = 0: a missing token adds nothing to the sum, but Z = N."""
    return _or_nan(retrieved.amax(1)) * 0


def tail_mean(retrieved: Retrieved, corpus_tokens: int) -> Missing:
    """mⱼ = the mean of the smallest tenth of the retrieved similarities."""
    ranked, count = _ranked(retrieved)
    rank = torch.arange(1, ranked.shape[1] + 1, device=ranked.device)
    length = (TAIL * count).ceil()
    tail = (rank > count - length) & (rank <= count)
    return ranked.where(tail, 0).sum(1) / length[:, 0]  # 0/0 = nan if nothing was found


def percentile(retrieved: Retrieved, corpus_tokens: int) -> Missing:
    """mⱼ = the tenth percentile of the retrieved similarities, interpolated linearly."""
    ranked, count = _ranked(retrieved)
    place = (count - 1).clamp(min=0) * (1 - TAIL)
    low = ranked.gather(1, place.floor().long())
    high = ranked.gather(1, place.ceil().long())
    return _or_nan((low + (place - place.floor()) * (high - low))[:, 0])


def power_law(retrieved: Retrieved, corpus_tokens: int) -> Missing:
    """mⱼ = c·R^−b: the power law ln s = ln c − b·ln r for similarity s at rank r, evaluated at R > k'.

    The law is fitted to the positive similarities by least squares. R = √(k'·corpus_tokens) is the middle, on
    the log scale, of the ranks that were not retrieved. mⱼ is at most the k'-th similarity, which is also the
    fallback.
    """
    ranked, count = _ranked(retrieved)
    bound = kth(retrieved, corpus_tokens)
    used = ranked > 0
    rank = torch.arange(1, ranked.shape[1] + 1, device=ranked.device, dtype=torch.float64)
    x = rank.log().expand_as(ranked)
    y = ranked.double().where(used, 1).log()
    total = used.sum(1, keepdim=True)
    x_mean, y_mean = ((t * used).sum(1, keepdim=True) / total for t in (x, y))
    spread = ((x - x_mean) ** 2 * used).sum(1)
    slope = ((x - x_mean) * (y - y_mean) * used).sum(1) / spread
    middle = (count[:, 0].double() * corpus_tokens).sqrt().log()
    fitted = (y_mean[:, 0] + slope * (middle - x_mean[:, 0])).exp().to(bound.dtype)
    return fitted.minimum(bound).where((total[:, 0] > 1) & (bound > 0), bound)


IMPUTATIONS: dict[str, Callable[[Retrieved, int], Missing]] = {
    "kth": kth,
    "none": none,
    "zero": zero,
    "tail_mean": tail_mean,
    "percentile": percentile,
    "power_law": power_law,
}


def imputed_rel(S: TokenPairs, valid: Valid, k: int, imputation: str = "kth") -> Float[Tensor, "b n"]:
    """f_XTR'(q, d) = 1/N Σⱼ (maxᵢ dᵢᵀqⱼ if a token of d is among j's k best in the pool, else mⱼ), Eq. 4.

    With "none", Z is the number of query tokens that retrieved a token of d. S and valid [b, n, i, j] span
    the whole corpus. This is the readable reference for the index search.
    """
    retrieved = retrieved_tokens(S, valid, k)
    pool = S.masked_fill(~valid, -torch.inf).movedim(-1, 1).flatten(2)  # [b, j, n·i]
    largest = pool.topk(min(k, pool.shape[-1])).values
    tokens = valid.any(-1).flatten(1).sum(1).tolist()
    missing = torch.stack([IMPUTATIONS[imputation](*pool) for pool in zip(largest, tokens, strict=True)])
    return filled_mean(S.masked_fill(~retrieved, -torch.inf).amax(-2), missing[:, None])


def retrieved_rel(
    similarities: Retrieved, owners: Int[Tensor, "j k"], corpus_tokens: int, imputation: str = "kth"
) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
    """f_XTR'(q, d) = 1/Z Σⱼ (d's best similarity that j retrieved, else mⱼ) for every retrieved document.

    The scores equal `imputed_rel` on the whole corpus. owners: the document of each retrieved token, −1 if
    the similarity is −∞. Also returns the retrieved documents, in ascending order.
    """
    documents, places = owners.unique(return_inverse=True)
    maxima = similarities.new_full((len(similarities), len(documents)), -torch.inf)
    maxima.scatter_reduce_(1, places, similarities, "amax")
    missing = IMPUTATIONS[imputation](similarities, corpus_tokens)
    retrieved = documents >= 0
    return documents[retrieved], filled_mean(maxima.T[retrieved], missing)


def filled_mean(maxima: Float[Tensor, "*n j"], missing: Float[Tensor, "*#n j"]) -> Float[Tensor, "*n"]:
    """Average `maxima` over query tokens, using `missing` where `maxima` is −∞ and leaving out NaN."""
    return maxima.where(maxima > -torch.inf, missing).nanmean(-1).nan_to_num(0.0)


def _ranked(retrieved: Retrieved) -> tuple[Retrieved, Float[Tensor, "j 1"]]:
    """Sort the similarities in descending order, and count the finite ones."""
    ranked = retrieved.sort(1, descending=True).values
    return ranked, (ranked > -torch.inf).sum(1, keepdim=True).to(ranked.dtype)


def _or_nan(m: Missing) -> Missing:
    return m.where(m.isfinite(), torch.nan)
