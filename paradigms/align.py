"""A and Z of rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A): every alignment and normaliser that needs no decoder.

Alignments are functions (S, valid, documents, queries, *, knobs) -> A with S, valid and A of shape [b, n, i,
j]. Hard ones return 0/1 without a gradient; `entropic` is differentiable. Padding is −∞ before any max or
top-k. Salience is applied by `core.interact`. A new paradigm adds a function and a name to `ALIGNMENTS` or
`NORMALISERS`; an entry says how many document tokens A keeps, and so whether A is a maximum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paradigms.core import Align, Pairs, Tokens, Valid
from paradigms.fixed import buckets_of, random_planes, shares
from paradigms.relax import entropic_topk

# --- A ----------------------------------------------------------------------------------------------


def all_pairs(S: Pairs, valid: Valid, documents: Tokens, queries: Tokens) -> Pairs:
    """A = 1: with one vector on each side, the inner product of DPR (Karpukhin et al. 2020)."""
    return valid.to(S.dtype)


def query_to_document(S: Pairs, valid: Valid, documents: Tokens, queries: Tokens) -> Pairs:
    """A_ij = 1 iff i = argmax_i' S_i'j: each query token takes its best document token (MaxSim).

    ColBERT (Khattab & Zaharia 2020); ME-BERT (Luan et al. 2021); MVDR (q→d) of Wu et al. 2024, Eq. 6.
    """
    return _argmax(S, valid, axis=-2)


def document_to_query(S: Pairs, valid: Valid, documents: Tokens, queries: Tokens) -> Pairs:
    """A_ij = 1 iff j = argmax_j' S_ij': MVDR (q←d) of Wu et al. 2024, Table 5, for reranking."""
    return _argmax(S, valid, axis=-1)


def equal_ids(S: Pairs, valid: Valid, documents: Tokens, queries: Tokens) -> Pairs:
    """A_ij = 1 iff i = argmax_i' S_i'j over id(i') = id(j): exact match (COIL, Gao et al. 2021)."""
    d, q = ids_of(documents, queries)
    return _argmax(S, valid & (d[..., :, None] == q[..., None, :]), axis=-2)


def positive_equal_ids(S: Pairs, valid: Valid, documents: Tokens, queries: Tokens) -> Pairs:
    """`equal_ids` where S_ij > 0: no match counts against a document, as in COIL's own code.

    Pooled vectors, whose tokens have negative ids, match whatever their sign.
    """
    A = equal_ids(S, valid, documents, queries)
    assert documents.ids is not None
    return A * ((S.detach() > 0) | (documents.ids < 0)[..., :, None])


def pool_top_k(S: Pairs, valid: Valid, documents: Tokens, queries: Tokens, *, k: int) -> Pairs:
    """A_ij = 1 iff i = argmax_i' S_i'j and S_ij is among the k largest of token j over the whole pool.

    XTR's in-batch token retrieval (Lee et al. 2023, Eq. 2); the pool is the n candidates at hand, and ties at
    the k-th place are all retrieved.
    """
    return _argmax(S, retrieved_tokens(S, valid, k), axis=-2)


def top_k(S: Pairs, valid: Valid, documents: Tokens, queries: Tokens, *, k: int) -> Pairs:
    """A_ij = 1 iff S_ij is among the k largest of column j in its document (Qian et al. 2022, §3.1)."""
    return _largest(S, valid, at_most(documents.mask.sum(-1), k=k))


def top_p(S: Pairs, valid: Valid, documents: Tokens, queries: Tokens, *, p: float) -> Pairs:
    """top_k with k = max(⌊p·m⌋, 1), m the document's real length (Qian et al. 2022, §3.1)."""
    return _largest(S, valid, share_of(documents.mask.sum(-1), p=p))


def entropic(
    S: Pairs,
    valid: Valid,
    documents: Tokens,
    queries: Tokens,
    *,
    k: float | int,
    eps: float,
    iterations: int | None = None,
) -> Pairs:
    """A_·j = argmax_λ S_·jᵀλ + ε H(λ), 1ᵀλ = k, λ ∈ [0, 1]: a differentiable top-k (ibid., Eq. 9)."""
    columns, real = S.transpose(-1, -2), valid.transpose(-1, -2)
    return entropic_topk(columns, float(k), eps, real, iterations).transpose(-1, -2)


def buckets(
    S: Pairs,
    valid: Valid,
    documents: Tokens,
    queries: Tokens,
    *,
    planes: int,
    repetitions: int,
    fill: bool = True,
    seed: int = 0,
) -> Pairs:
    """A_ij = 1[bucket(i) = bucket(j)] / |bucket(j) ∩ d|, averaged over random partitions.

    The A of MUVERA's fixed-dimensional encodings (Dhulipala et al. 2024): `fixed.FixedEncoding` gives the
    same rel as one inner product. fill: where the document has no token in bucket(j), those at the least
    Hamming distance share the 1.
    """
    A = torch.zeros_like(S)
    for normals in random_planes(documents.vectors.shape[-1], planes, repetitions, seed):
        share = shares(buckets_of(documents.vectors, normals), documents.mask, planes, fill, S.dtype)
        own = buckets_of(queries.vectors, normals)[:, :, None, :]
        A += share.expand(*S.shape[:3], -1).gather(-1, own.expand_as(S)) / repetitions
    return A.where(valid, 0)


Lengths: TypeAlias = Int[Tensor, "*n"]  # real tokens of documents


def every(lengths: Lengths) -> Lengths:
    """m: every token of a document is kept."""
    return lengths


def at_most(lengths: Lengths, *, k: int = 1) -> Lengths:
    """min(k, m)."""
    if k < 1:
        raise ValueError(f"top_k needs k >= 1, got {k}")
    return lengths.clamp(max=k)


def share_of(lengths: Lengths, *, p: float) -> Lengths:
    """min(max(⌊p·m⌋, 1), m)."""
    if not 0 < p <= 1:
        raise ValueError(f"top_p needs 0 < p <= 1, a share of the document's tokens, got {p}")
    share = (p * lengths.double() + 1e-9).floor().long()  # .29 · 100 is 28.999…
    return share.clamp(min=1).minimum(lengths)


def ids_of(documents: Tokens, queries: Tokens) -> tuple[Tensor, Tensor]:
    """The token ids of both sides. ValueError where one has none."""
    if documents.ids is None or queries.ids is None:
        raise ValueError("an alignment of equal ids needs token ids on both sides; Tokens.ids is None")
    return documents.ids, queries.ids


def retrieved_tokens(S: Pairs, valid: Valid, k: int) -> Valid:
    """Â of XTR: which pairs are among query token j's k most similar tokens of the whole pool."""
    if k < 1:
        raise ValueError(f"token retrieval needs k >= 1, got {k}")
    pool = S.detach().masked_fill(~valid, -torch.inf).movedim(-1, 1).flatten(2)  # [b, j, n·i]
    if pool.shape[-1] <= k:
        return valid
    threshold = pool.topk(k).values[..., -1]
    return valid & (S.detach() >= threshold[:, None, None, :])


def _argmax(S: Pairs, valid: Valid, axis: int) -> Pairs:
    if not S.shape[axis]:
        return torch.zeros_like(S)
    best = S.detach().masked_fill(~valid, -torch.inf).max(axis, keepdim=True).indices
    return torch.zeros_like(S).scatter(axis, best, 1.0) * valid


def _largest(S: Pairs, valid: Valid, k: Int[Tensor, "x n"]) -> Pairs:
    most = min(int(k.max()) if k.numel() else 1, S.shape[-2])
    best = S.detach().masked_fill(~valid, -torch.inf).topk(most, dim=-2).indices
    within = torch.arange(most, device=S.device)[:, None] < k[..., None, None]
    return torch.zeros_like(S).scatter(-2, best, within.to(S.dtype).expand_as(best)) * valid


# --- Z ----------------------------------------------------------------------------------------------

SMALLEST = 1e-6  # stands in for a Z of 0, whose sum is 0 as well: nothing aligned, rel = 0


def one(A: Pairs, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Z = 1."""
    return A.new_ones(A.shape[:2])


def query_tokens(A: Pairs, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Z = N, the query's real tokens: changes no ranking, but the scale that a loss sees."""
    return queries.mask.sum(-1).clamp(min=1).to(A.dtype).expand(A.shape[:2])


def document_tokens(A: Pairs, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Z = M, the document's real tokens."""
    return documents.mask.sum(-1).clamp(min=1).to(A.dtype).expand(A.shape[:2])


def total(A: Pairs, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Z = Σ A (Qian et al. 2022, Eq. 1), at least 1e-6: where nothing is aligned rel is 0, not 0/0."""
    return A.sum((-2, -1)).clamp(min=SMALLEST)


def retrieved(A: Pairs, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Z = |{j : A_ij > 0 for some i}|, query tokens that retrieved one of d's (Lee et al. 2023, Eq. 2)."""
    return (A > 0).any(-2).sum(-1).to(A.dtype).clamp(min=SMALLEST)


# --- registries -------------------------------------------------------------------------------------


UNBOUNDED = 1 << 40  # tokens: longer than any document


@dataclass(frozen=True)
class Alignment:
    """An alignment function and what is known about its A."""

    function: Callable[..., Pairs]
    # What A may read, of: similarity, vectors, ids, pool (the other candidates), lengths. A test perturbs all
    # else and sees A unchanged.
    reads: frozenset[str]
    # (lengths of documents, **knobs) -> how many tokens of each document are aligned to a query token: those
    # of largest similarity, of all or, where A reads ids, of those with the query token's id. None: A is of
    # another form.
    kept: Callable[..., Lengths] | None = None
    positive: bool = False  # whether of those it drops similarities that are not positive, where ids are >= 0

    def is_maximum(self, longest: int = UNBOUNDED, **knobs: Any) -> bool:
        """Whether A is one argmax over i for each j, in documents of at most `longest` tokens."""
        if self.kept is None or self.positive:
            return False
        return int(self.kept(torch.tensor(longest), **knobs)) <= 1


_SIMILARITY = frozenset({"similarity"})

ALIGNMENTS: dict[str, Alignment] = {
    "all_pairs": Alignment(all_pairs, frozenset(), every),
    "query_to_document": Alignment(query_to_document, _SIMILARITY, at_most),
    "document_to_query": Alignment(document_to_query, _SIMILARITY),
    "equal_ids": Alignment(equal_ids, _SIMILARITY | {"ids"}, at_most),
    "positive_equal_ids": Alignment(positive_equal_ids, _SIMILARITY | {"ids"}, at_most, positive=True),
    "pool_top_k": Alignment(pool_top_k, _SIMILARITY | {"pool"}),
    "top_k": Alignment(top_k, _SIMILARITY, at_most),
    "top_p": Alignment(top_p, _SIMILARITY | {"lengths"}, share_of),
    "entropic": Alignment(entropic, _SIMILARITY),
    "buckets": Alignment(buckets, frozenset({"vectors", "lengths"})),
}

NORMALISERS = {
    "one": one,
    "query_tokens": query_tokens,
    "document_tokens": document_tokens,
    "total": total,
    "retrieved": retrieved,
}


def as_maximum(align: Align) -> Alignment | None:
    """The registered alignment that `align` is, if its A is one argmax over i for each j; else None."""
    function, knobs = (align.func, align.keywords) if isinstance(align, partial) else (align, {})
    found = (known for known in ALIGNMENTS.values() if known.function is function)
    return next((known for known in found if known.is_maximum(**knobs)), None)
