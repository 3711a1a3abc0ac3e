"""Alignments A and normalisers Z for rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A); none of them needs a decoder.

An alignment such as `TopK(k=2)` is a frozen dataclass whose fields are its parameters. It is called as a
function (S, valid, documents, queries) -> A, where S, valid and A have the shape [b, n, i, j]. Hard
alignments return A without a gradient; `Entropic` is differentiable. Padding is set to −∞ before any max or
top-k. `core.interact` applies salience. `ALIGNMENTS` maps names to subclasses of `Alignment`, and
`NORMALISERS` maps names to functions that compute Z.
"""

import ast
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeAlias, dataclass_transform

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paradigms.core import TokenPairs, Tokens, Valid
from paradigms.io.checks import OneLine, Range, check_several, check_types, naming
from paradigms.muvera import MOST_PLANES, buckets_of, random_planes, side_counts
from paradigms.relax import SMALLEST_EPS, entropic_topk
from paradigms.statistics import statistics_of

Lengths: TypeAlias = Int[Tensor, "*n"]  # real tokens of documents

READABLE = ("similarity", "vectors", "ids", "pool", "lengths", "statistics")  # pool: the other candidates
UNBOUNDED = 1 << 40  # tokens: longer than any document

# Name -> class of every alignment. Defining a subclass of `Alignment` adds it.
ALIGNMENTS: dict[str, type["Alignment"]] = {}

# --- A ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What a computation takes: bytes of memory, and time in multiply-adds of a matrix product.

    The sum of two costs is the cost of one computation after the other, which can use the same memory.
    """

    bytes: int = 0
    operations: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(max(self.bytes, other.bytes), self.operations + other.operations)

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.bytes if times else 0, self.operations * times)


@dataclass_transform(frozen_default=True)
class Alignment:
    """The alignment A in rel. Each subclass becomes a frozen dataclass and is added to `ALIGNMENTS`.

    reads: the members of `READABLE` on which A may depend; a test perturbs all other inputs and checks that A
    does not change. Raises ValueError if `reads` contains any other name, or if a field has the wrong type or
    lies outside its `Range`.
    """

    reads: ClassVar[frozenset[str]]
    positive: ClassVar[bool] = False  # whether A drops non-positive similarities if ids are >= 0

    def __init_subclass__(cls, *, reads: Collection[str]) -> None:
        check_several(reads, f"{cls.__name__}: what it reads")
        if unknown := [name for name in reads if name not in READABLE]:
            raise ValueError(
                f"{cls.__name__} reads {', '.join(map(repr, unknown))}; there are {', '.join(READABLE)}"
            )
        cls.reads = frozenset(reads)
        ALIGNMENTS[cls.__name__] = dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        with naming(type(self).__name__):
            check_types(self)

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        raise NotImplementedError

    def cost(self, pairs: int, vectors: int, dim: int) -> Cost:
        """Bound the cost of a call. A service adds up a request's costs, and refuses it if they are too high.

        pairs: entries of S. vectors: tokens of all documents and queries, with `dim` numbers each. The
        default allows for sorting S; an alignment with loops overrides it.
        """
        return Cost(32 * pairs, 1000 * pairs)

    def with_salience(self, queries: Tokens) -> tuple["Alignment", Tokens]:
        """Return an equivalent alignment and queries, in which weights of query tokens are saliences.

        The fast paths apply salience, so an alignment that weighs query tokens (`Idf`) can use the fast paths
        of the returned alignment (`QueryToDocument`).
        """
        return self, queries

    def kept(self, lengths: Lengths) -> Lengths | None:
        """Return the number of document tokens aligned with each query token; None unless A is top-k.

        lengths: number of tokens in each document; the result has one number per length. The aligned tokens
        are the most similar tokens in the document. If the alignment A depends on ids, only document tokens
        with the query token's id are considered.
        """
        return None

    def is_maximum(self, longest: int = UNBOUNDED) -> bool:
        """Return whether A is the argmax over i for each j, in documents of at most `longest` tokens."""
        aligned = self.kept(torch.tensor(longest))
        return aligned is not None and not self.positive and int(aligned) <= 1

    def is_maxsim(self, longest: int = UNBOUNDED) -> bool:
        """Return whether A is the argmax over all tokens of a document, regardless of their ids."""
        return self.is_maximum(longest) and "ids" not in self.reads


def as_alignment(align: Alignment | str) -> Alignment:
    """Parse a string such as "TopK(k=2)" as an alignment; "EqualIds" is short for "EqualIds()".

    An `Alignment` is returned unchanged. Raises ValueError if the string cannot be parsed, or if the
    alignment or a parameter is unknown.
    """
    if isinstance(align, Alignment):
        return align
    text = str(align)
    try:
        match ast.parse(text if text.endswith(")") else f"{text}()", mode="eval").body:
            case ast.Call(ast.Name(name), [], keywords):
                knobs = {str(knob.arg): ast.literal_eval(knob.value) for knob in keywords}
            case _:
                raise ValueError("no call with keywords")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r:.200} is not an alignment; write it like TopK(k=2)") from error
    if name not in ALIGNMENTS:
        raise ValueError(f"unknown alignment {name!r:.200}; there are {', '.join(ALIGNMENTS)}")
    kind: Any = ALIGNMENTS[name]
    try:
        chosen: Alignment = kind(**knobs)
    except TypeError as error:
        names = ", ".join(kind.__dataclass_fields__) or "none"
        raise ValueError(f"alignment {text:.200}: give {name} values for its settings ({names})") from error
    return chosen


class AllPairs(Alignment, reads=()):
    """A = 1: with one vector on each side, rel is DPR's inner product (Karpukhin et al. 2020)."""

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        return valid.to(S.dtype)

    def kept(self, lengths: Lengths) -> Lengths:
        return lengths


class QueryToDocument(Alignment, reads={"similarity"}):
    """A_ij = 1 iff i = argmax_i' S_i'j: each query token takes its best document token (MaxSim).

    This is the alignment of ColBERT (Khattab & Zaharia 2020), ME-BERT (Luan et al. 2021) and MVDR (q→d; Wu et
    al. 2024, Eq. 6).
    """

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        return _argmax(S, valid, axis=-2)

    def kept(self, lengths: Lengths) -> Lengths:
        return lengths.clamp(max=1)


class DocumentToQuery(Alignment, reads={"similarity"}):
    """A_ij = 1 iff j = argmax_j' S_ij': each document token takes its best query token.

    Used for reranking by MVDR (q←d; Wu et al. 2024, Table 5).
    """

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        return _argmax(S, valid, axis=-1)


class EqualIds(Alignment, reads={"similarity", "ids"}):
    """A_ij = 1 iff i = argmax_i' S_i'j over i' with id(i') = id(j): exact match (COIL, Gao et al. 2021)."""

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        d, q = ids_of(documents, queries)
        return _argmax(S, valid & (d[..., :, None] == q[..., None, :]), axis=-2)

    def kept(self, lengths: Lengths) -> Lengths:
        return lengths.clamp(max=1)


class PositiveEqualIds(Alignment, reads={"similarity", "ids"}):
    """`EqualIds` restricted to S_ij > 0, so that a match never lowers a score, as in the COIL authors' code.

    Tokens cut from pooled vectors have negative ids and match even if S_ij is negative.
    """

    positive = True

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        ids, _ = ids_of(documents, queries)
        return EqualIds()(S, valid, documents, queries) * ((S.detach() > 0) | (ids < 0)[..., :, None])

    def kept(self, lengths: Lengths) -> Lengths:
        return lengths.clamp(max=1)


class PoolTopK(Alignment, reads={"similarity", "pool"}):
    """A_ij = 1 iff i = argmax_i' S_i'j and S_ij is among token j's k largest over the whole pool.

    This is XTR's in-batch token retrieval (Lee et al. 2023, Eq. 2). The pool is the n candidates passed in.
    All tokens that tie for the k-th place are retrieved. k: a number of tokens or, if below 1, a share of the
    pool's real tokens; at least one token is retrieved (`pool_count`).
    """

    k: Annotated[int | float, Range(0, 1 << 40, above=True)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k >= 1 and not isinstance(self.k, int):
            raise ValueError(f"PoolTopK: k={self.k} must be a whole number of tokens or a share below 1")

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        return _argmax(S, retrieved_tokens(S, valid, self.k), axis=-2)


class TopK(Alignment, reads={"similarity"}):
    """A_ij = 1 iff S_ij is among the k largest entries of column j in a document (Qian et al. 2022, §3.1)."""

    k: Annotated[int, Range(1, 1 << 40)]

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        return _largest(S, valid, self.kept(documents.mask.sum(-1)))

    def kept(self, lengths: Lengths) -> Lengths:
        return lengths.clamp(max=self.k)


class TopP(Alignment, reads={"similarity", "lengths"}):
    """`TopK` with k = max(⌊p·m⌋, 1), where m is the number of tokens in d (Qian et al. 2022, §3.1)."""

    p: Annotated[float, Range(0, 1, above=True)]

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        return _largest(S, valid, self.kept(documents.mask.sum(-1)))

    def kept(self, lengths: Lengths) -> Lengths:
        share = (self.p * lengths.double() + 1e-9).floor().long()  # .29 · 100 is 28.999…
        return share.clamp(min=1).minimum(lengths)


class Entropic(Alignment, reads={"similarity"}):
    """A_·j = argmax_λ S_·jᵀλ + ε H(λ), 1ᵀλ = k, λ ∈ [0, 1]: soft top-k (Qian et al. 2022, Eq. 9)."""

    k: Annotated[int | float, Range(0, 1 << 40, above=True)]
    eps: Annotated[int | float, Range(SMALLEST_EPS, 1e6)]
    iterations: Annotated[int | None, Range(1, 1000)] = None  # steps of Eq. 5; None solves exactly

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        columns = S.transpose(-1, -2)
        mask = valid.transpose(-1, -2)
        return entropic_topk(columns, float(self.k), self.eps, mask, self.iterations).transpose(-1, -2)

    def cost(self, pairs: int, vectors: int, dim: int) -> Cost:
        return Cost(96 * pairs, (4000 + 400 * (self.iterations or 0)) * pairs)


class Idf(Alignment, reads={"similarity", "statistics"}):
    """A_ij = idf(id(j)) · 1[i = argmax_i' S_i'j]: MaxSim in which rare query tokens weigh more.

    statistics: name of the corpus statistics (`paradigms.statistics`) from which the IDF of each query token
    is computed. With Z = Σ A ("total"), rel is a weighted mean. Vectors that do not represent a vocabulary
    token (ids below 0) have weight 1. Tokens that occur in no document, such as the [MASK] of
    `query_augmentation`, have the largest weight. Raises ValueError if queries have no ids, or if the
    statistics are unknown.
    """

    statistics: Annotated[str, OneLine()]

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        return _argmax(S, valid, axis=-2) * self._weights(queries)[:, :, None, :]

    def with_salience(self, queries: Tokens) -> tuple[Alignment, Tokens]:
        weights = self._weights(queries)
        weights = weights if queries.salience is None else weights * queries.salience
        return QueryToDocument(), replace(queries, salience=weights)

    def _weights(self, queries: Tokens) -> Float[Tensor, "b 1 j"]:
        ids = _known_ids(self, queries)
        idf = statistics_of(self.statistics).idf(ids.clamp(min=0)).where(ids >= 0, 1.0)
        return idf.to(queries.vectors.dtype)


class Excess(Alignment, reads={"similarity"}):
    """A_ij = (1 − τ/S_ij)⁺ · 1[i = argmax_i' S_i'j]: S ⊙ A sums query tokens' excesses, (maxᵢ S_ij − τ)⁺.

    This is MaxSim with a floor, max(maxᵢ S_ij, τ), up to a constant. The gradient is that of MaxSim above the
    floor, and 0 below. tau: τ ≥ 0, in units of the similarity.
    """

    tau: Annotated[int | float, Range(0, 1e6)]

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        return _above(S, valid, S.new_tensor(self.tau))


class TableExcess(Alignment, reads={"similarity", "statistics"}):
    """`Excess` over τⱼ = the floor of query token j's id, from a table (`Paradigm.count_floors`).

    statistics: name of corpus statistics with floors. Raises ValueError if queries have no ids, or if the
    statistics are unknown or have no floors.
    """

    statistics: Annotated[str, OneLine()]

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        floors = statistics_of(self.statistics).floors_of(_known_ids(self, queries))
        return _above(S, valid, floors[:, :, None, :].to(S.dtype))


class PoolExcess(Alignment, reads={"similarity", "pool"}):
    """`Excess` over τⱼ = the larger of 0 and query token j's k-th best similarity in the whole pool.

    Up to a constant, rel is what XTR searches with (Lee et al. 2023, Eq. 4), with the pool as the corpus. No
    gradient flows to τ. k: as in `PoolTopK`.
    """

    k: Annotated[int | float, Range(0, 1 << 40, above=True)]

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        if not S.numel():
            return torch.zeros_like(S)
        outside = ~retrieved_tokens(S, valid, self.k)
        return _above(S, valid, S.detach().masked_fill(outside, torch.inf).amin((1, 2))[:, None, None])


class Buckets(Alignment, reads={"vectors", "lengths"}):
    """A_ij = 1[bucket(i) = bucket(j)] / |bucket(j) ∩ d|, averaged over random partitions.

    MUVERA's fixed-dimensional encodings (Dhulipala et al. 2024) use this alignment; `muvera.FixedEncoding`
    computes the same rel as one inner product. With `fill`, if the document has no token in bucket(j), the
    tokens at the smallest Hamming distance share the weight 1.
    """

    planes: Annotated[int, Range(0, MOST_PLANES)]
    repetitions: Annotated[int, Range(1, 1 << 20)]
    fill: bool = True
    seed: int = 0

    def __call__(self, S: TokenPairs, valid: Valid, documents: Tokens, queries: Tokens) -> TokenPairs:
        A = torch.zeros_like(S)
        counts = side_counts(self.planes, S.device)
        for normals in random_planes(documents.vectors.shape[-1], self.planes, self.repetitions, self.seed):
            d = buckets_of(documents.vectors, normals)
            q = buckets_of(queries.vectors, normals)
            distance = counts[d[..., :, None] ^ q[..., None, :]].where(valid, self.planes + 1)
            least = distance.amin(-2, keepdim=True) if self.fill and S.shape[-2] else 0
            chosen = ((distance == least) & valid).to(S.dtype)
            A += chosen / chosen.sum(-2, keepdim=True).clamp(min=1)
        return A / self.repetitions

    def cost(self, pairs: int, vectors: int, dim: int) -> Cost:
        planes = dim * self.planes
        each = 1000 * pairs + vectors * planes + 5_000_000  # the calls of small tensors
        return Cost(32 * pairs + 4 * planes * self.repetitions, self.repetitions * each)


def ids_of(documents: Tokens, queries: Tokens) -> tuple[Tensor, Tensor]:
    """Return the token ids of documents and queries. Raises ValueError if either has no ids."""
    if documents.ids is None or queries.ids is None:
        raise ValueError("an alignment of equal ids needs token ids on both sides; Tokens.ids is None")
    return documents.ids, queries.ids


def _known_ids(align: Alignment, queries: Tokens) -> Int[Tensor, "b 1 j"]:
    """Return the ids of query tokens, −1 for padding."""
    if queries.ids is None:
        raise ValueError(f"{type(align).__name__} needs the ids of query tokens; Tokens.ids is None")
    return queries.ids.where(queries.mask, -1)


def pool_count(k: int | float, tokens: Int[Tensor, "b j"]) -> Int[Tensor, "b j"]:
    """Return how many of m real tokens `PoolTopK` retrieves per query token: k, or max(⌊k·m⌋, 1) if k < 1."""
    share = (k * tokens.double() + 1e-9).floor().long()  # as in `TopP.kept`
    return share.clamp(min=1) if k < 1 else torch.full_like(tokens, int(k))


def retrieved_tokens(S: TokenPairs, valid: Valid, k: int | float) -> Valid:
    """Compute XTR's Â: mask the document tokens among each query token's k most similar in the whole pool."""
    size = S.shape[1] * S.shape[2]
    counts = pool_count(k, valid.sum((1, 2)))
    most = min(int(counts.max()), size) if counts.numel() else 0
    if most == size:
        return valid
    pool = S.detach().masked_fill(~valid, -torch.inf).movedim(-1, 1).flatten(2)  # [b, j, n·i]
    threshold = pool.topk(most).values.gather(-1, counts[..., None] - 1)[..., 0]
    return valid & (S.detach() >= threshold[:, None, None, :])


def _argmax(S: TokenPairs, valid: Valid, axis: int) -> TokenPairs:
    if not S.shape[axis]:
        return torch.zeros_like(S)
    places = S.detach().masked_fill(~valid, -torch.inf).max(axis, keepdim=True).indices
    return torch.zeros_like(S).scatter(axis, places, 1.0) * valid


def _above(S: TokenPairs, valid: Valid, floor: Tensor) -> TokenPairs:
    """Compute A with Σᵢ S_ij A_ij = max(maxᵢ S_ij − τ, 0), whose gradient is 1 above τ.

    floor: τ, which broadcasts to S; below 0, it counts as 0.
    """
    floor = floor.clamp(min=0)
    above = floor < S
    return _argmax(S, valid, axis=-2) * (1 - floor / S.where(above, 1)).where(above, 0)


def _largest(S: TokenPairs, valid: Valid, k: Int[Tensor, "x n"]) -> TokenPairs:
    most = min(int(k.max()) if k.numel() else 1, S.shape[-2])
    places = S.detach().masked_fill(~valid, -torch.inf).topk(most, dim=-2).indices
    within = torch.arange(most, device=S.device)[:, None] < k[..., None, None]
    return torch.zeros_like(S).scatter(-2, places, within.to(S.dtype).expand_as(places)) * valid


# --- Z ----------------------------------------------------------------------------------------------

SMALLEST = 1e-6  # replaces Z = 0, where the sum is also 0: nothing is aligned, and rel = 0


def one(A: TokenPairs, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Z = 1."""
    return A.new_ones(A.shape[:2])


def query_tokens(A: TokenPairs, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Z = N, the number of real query tokens.

    This normaliser changes the scale of a loss, but not rankings.
    """
    return queries.mask.sum(-1).clamp(min=1).to(A.dtype).expand(A.shape[:2])


def document_tokens(A: TokenPairs, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Z = M, the number of real document tokens."""
    return documents.mask.sum(-1).clamp(min=1).to(A.dtype).expand(A.shape[:2])


def total(A: TokenPairs, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Z = Σ A (Qian et al. 2022, Eq. 1), at least 1e-6: if nothing is aligned, rel is 0, not 0/0."""
    return A.sum((-2, -1)).clamp(min=SMALLEST)


def retrieved(A: TokenPairs, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """Z = |{j : A_ij > 0 for some i}|: the number of query tokens that retrieved a token of d.

    Lee et al. 2023 (XTR), Eq. 2.
    """
    return (A > 0).any(-2).sum(-1).to(A.dtype).clamp(min=SMALLEST)


NORMALISERS = {
    "one": one,
    "query_tokens": query_tokens,
    "document_tokens": document_tokens,
    "total": total,
    "retrieved": retrieved,
}
