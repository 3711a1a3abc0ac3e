"""rel(d, q) = 1/Z · Σᵢⱼ (DᵀQ ⊙ A)ᵢⱼ: the formula that all paradigms share.

D ∈ R^{h×M} contains a document's token vectors, Q ∈ R^{h×N} the query's, A ∈ R^{M×N} is the alignment and Z a
normaliser (Wu et al. 2024, arXiv:2404.00684, Eq. 1; with Z = Σ A: Qian et al. 2022, Eq. 1). A paradigm is a
choice of where D and Q come from, what A may depend on, and Z.

Throughout, the axes are b queries, n candidate documents, i document tokens, j query tokens and h features.
`rel` is the readable reference: every faster implementation states which `rel` it equals and is tested
against it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from paradigms.rooms import Entry

TokenPairs: TypeAlias = Float[Tensor, "b n i j"]
Valid: TypeAlias = Bool[Tensor, "b n i j"]


def at_least_float32(x: Tensor) -> Tensor:
    """Convert x to float32, unless it is already float64."""
    return x if x.dtype == torch.float64 else x.float()


@dataclass(frozen=True)
class Tokens:
    """D or Q in the formula, for many texts at once: padded token vectors and a mask.

    The first two axes are x and n. Queries have x = b and n = 1. Documents have x = 1 if they do not depend
    on the query (in-batch training, and all indexable documents) and x = b if each query has its own
    candidates.
    """

    vectors: Float[Tensor, "x n l h"]
    mask: Bool[Tensor, "x n l"]  # True = a token that counts
    ids: Int[Tensor, "x n l"] | None = None  # vocabulary ids, for alignments that match them (COIL)
    salience: Float[Tensor, "x n l"] | None = None  # u of ALIGNER, >= 0; None = 1 everywhere
    side: Literal["document", "query"] | None = field(default=None, kw_only=True)  # None = unknown

    def map(self, function: Callable[[Tensor], Tensor]) -> "Tokens":
        """Apply `function` to every tensor that is not None, and return the new tokens."""
        ids = None if self.ids is None else function(self.ids)
        salience = None if self.salience is None else function(self.salience)
        return Tokens(function(self.vectors), function(self.mask), ids, salience, side=self.side)

    def to(self, device: torch.device | str) -> "Tokens":
        return self.map(lambda t: t.to(device))

    def __getitem__(self, texts: slice) -> "Tokens":
        """Select queries with a slice of the first axis."""
        return self.map(lambda t: t[texts])


TENSORS = "vectors", "mask", "ids", "salience"  # fields of `Tokens`

# A of the formula: (S, valid, documents, queries) -> A, of S's shape. Hard alignments are 0/1 and carry
# no gradient, so rel has exactly the gradient of max or top-k; soft alignments are differentiable.
Align: TypeAlias = Callable[[TokenPairs, Valid, Tokens, Tokens], TokenPairs]
# Z of the formula: (A, documents, queries) -> Z.
Normalise: TypeAlias = Callable[[TokenPairs, Tokens, Tokens], Float[Tensor, "b n"]]


@dataclass(frozen=True)
class Interaction:
    """Similarities S, alignment A and normaliser Z for pairs of queries and documents, in any paradigm.

    For a decoder, rel also includes `rest`, which depends only on the identifier's prefix.
    """

    similarity: TokenPairs  # S = DᵀQ; 0 where either token is padding
    alignment: TokenPairs  # A
    normaliser: Float[Tensor, "b n"]  # Z
    rest: Float[Tensor, "b n"] | None = None  # None = 0

    @property
    def rel(self) -> Float[Tensor, "b n"]:
        matched = (self.similarity * self.alignment).sum((-2, -1)) / self.normaliser
        return matched if self.rest is None else matched + self.rest

    def _repr_html_(self) -> str:
        """Render the first pairs as cards for a notebook."""
        html: str = Entry("framed")(Entry("explanations_of")(self))
        return html


def check_sides(documents: Tokens, queries: Tokens) -> None:
    """Raise TypeError unless both are `Tokens`, and ValueError if they are swapped, which would broadcast."""
    for name, tokens in (("documents", documents), ("queries", queries)):
        if not isinstance(tokens, Tokens):
            kind = type(tokens).__name__
            raise TypeError(f"{name} must be Tokens, as from encode_{name}(texts), not a {kind}")
    d = documents.mask.shape
    q = queries.mask.shape
    if documents.side == "query" or queries.side == "document" or q[1] != 1 or d[0] not in (1, q[0]):
        raise ValueError(
            "documents [1 or b, n, i, h] come first, then queries [b, 1, j, h]; got "
            f"{documents.side or 'tokens'} {list(documents.vectors.shape)}, then "
            f"{queries.side or 'tokens'} {list(queries.vectors.shape)}"
        )


def similarity(documents: Tokens, queries: Tokens) -> tuple[TokenPairs, Valid]:
    """Compute S = DᵀQ and the mask of pairs of real tokens; padded entries of S are 0."""
    check_sides(documents, queries)
    valid = documents.mask[..., :, None] & queries.mask[..., None, :]
    S = torch.einsum("bnih,bmjh->bnij", documents.vectors, queries.vectors)
    return S.where(valid, 0), valid


def salience(documents: Tokens, queries: Tokens) -> Float[Tensor, "#b #n i j"] | None:
    """u_d u_qᵀ, the unary part of A (Qian et al. 2022, Eq. 2; Wu et al. 2024, Eq. 23); None means 1."""
    d = documents.salience
    q = queries.salience
    if d is None and q is None:
        return None
    one = torch.ones((), device=documents.mask.device)
    return (one if d is None else d[..., :, None]) * (one if q is None else q[..., None, :])


def interact(documents: Tokens, queries: Tokens, align: Align, normalise: Normalise) -> Interaction:
    """Compute S, A = Ã ⊙ u_d u_qᵀ (`align` returns Ã) and Z for queries and candidates."""
    S, valid = similarity(documents, queries)
    A = align(S, valid, documents, queries).where(valid, 0)
    unary = salience(documents, queries)
    if unary is not None:
        A = A * unary
    return Interaction(S, A, normalise(A, documents, queries))


def rel(documents: Tokens, queries: Tokens, align: Align, normalise: Normalise) -> Float[Tensor, "b n"]:
    """rel(d, q) = 1/Z · Σᵢⱼ (DᵀQ ⊙ A)ᵢⱼ for every query and candidate.

    If a document or query has no tokens, nothing is aligned and rel is 0.

    >>> tokens = Tokens(torch.eye(2).view(1, 1, 2, 2), torch.ones(1, 1, 2, dtype=torch.bool))
    >>> rel(tokens, tokens, lambda S, *_: torch.ones_like(S), lambda A, *_: A.new_ones(A.shape[:2]))
    tensor([[2.]])
    """
    return interact(documents, queries, align, normalise).rel


def pad_tokens(tokens: Tokens, length: int) -> Tokens:
    """Pad tokens to `length` with masked positions. This does not change rel."""
    extra = length - tokens.mask.shape[-1]
    if extra <= 0:
        return tokens
    pad = torch.nn.functional.pad
    return tokens.map(lambda t: pad(t, (0, 0, 0, extra) if t.ndim == 4 else (0, extra)))


def join_queries(parts: Sequence[Tokens]) -> Tokens:
    """Concatenate queries [b, 1, j, h], padded to the longest."""
    return _join(parts, axis=0)


def join_documents(parts: Sequence[Tokens]) -> Tokens:
    """Concatenate documents [x, n, i, h] into one pool of candidates, padded to the longest."""
    return _join(parts, axis=1)


def _join(parts: Sequence[Tokens], axis: int) -> Tokens:
    length = max(part.mask.shape[-1] for part in parts)
    padded = [pad_tokens(part, length) for part in parts]
    names = [name for name in TENSORS if all(getattr(p, name) is not None for p in padded)]
    tensors = {name: torch.cat([getattr(part, name) for part in padded], axis) for name in names}
    return Tokens(**tensors, side=parts[0].side)
