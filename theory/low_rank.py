"""Bound the distance from attention A = softmax_j(S), S_ij = d_iᵀWq_j, to the rank-one R = 1·softmax(r)ᵀ.

Lemma 5.1 of Wu et al. 2024 claims ‖A − R‖ ≤ 4γ‖W‖, where γ “depends on the matrix entries”; the proof uses
R = 1rᵀ. γ is free, so the statement is vacuous, and 1rᵀ is not normalised. The corrected
statement holds without conditions: with S̄_j = mean_i S_ij, R = 1·softmax(S̄)ᵀ and
δ = max_i (max_j E_ij − min_j E_ij) for E = S − 1S̄ᵀ,

‖A − R‖_∞ ≤ 2 tanh(δ/4) ≤ ½ max_i ‖d_i − d̄‖ · diam(Q) · ‖W‖₂,    ‖A − R‖_F ≤ √(2M) tanh(δ/4),

where ‖·‖_∞ is the largest row sum of absolute values. All quantities are functions of S. ln A may replace S,
because a constant added to a row of S cancels.

Everywhere below, S and A are [..., M, N] (leading axes are heads, layers or examples; remove padding first),
documents D are [..., M, h], queries Q are [..., N, h], and W is [..., h, h] (the identity by default). All
numbers are finite.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import pdist
from scipy.special import softmax

from theory import checks
from theory.checks import Array


def attention_scores(documents: ArrayLike, queries: ArrayLike, weight: ArrayLike | None = None) -> Array:
    """S_ij = d_iᵀWq_j, [..., M, N] (Wu et al. 2024, Lemma 5.1)."""
    D, Q, W = _factors(documents, queries, weight)
    return D @ W @ np.swapaxes(Q, -1, -2)


def alignment(scores: ArrayLike) -> Array:
    """A = softmax of S over query tokens, [..., M, N] (Wu et al. 2024, Lemma 5.1). Rows sum to 1."""
    return softmax(_matrix(scores, "scores"), axis=-1)


def rank_one(scores: ArrayLike) -> Array:
    """R = 1·softmax(r)ᵀ, r_j = mean_i S_ij = d̄ᵀWq_j, [..., M, N]: every row is that of the mean token d̄.

    This is the R of Lemma 5.1 (Wu et al. 2024), normalised like A.
    """
    S = _matrix(scores, "scores")
    return np.broadcast_to(softmax(S.mean(-2, keepdims=True), axis=-1), S.shape)


def rank_one_as_printed(scores: ArrayLike) -> Array:
    """R = 1rᵀ, r_j = d̄ᵀW(q_j − q̄), [..., M, N]: the R in the printed proof of Lemma 5.1 (Wu et al. 2024, B).

    The proof leaves out d̄ᵀWq̄, which is constant along a row of S and cancels in A. R is not near A even at
    W = 0, where R = 0, A = 1/N, and the printed bound 4γ‖W‖ is 0 for every γ.
    """
    S = _matrix(scores, "scores")
    r = S.mean(-2, keepdims=True)
    return np.broadcast_to(r - r.mean(-1, keepdims=True), S.shape)


def spread(scores: ArrayLike) -> float | Array:
    """δ = max_i (max_j E_ij − min_j E_ij), E = S − 1·mean_i(S), [...]: how much the rows of S differ."""
    S = _matrix(scores, "scores")
    return checks.plain(np.ptp(S - S.mean(-2, keepdims=True), axis=-1).max(-1))


def row_bound(spread: ArrayLike) -> float | Array:
    """‖A − R‖_∞ ≤ 2 tanh(δ/4), [...]: the corrected Lemma 5.1.

    The bound is derived here: softmax(x) and softmax(x + e) differ by at most tanh(δ/4) in total variation if
    the entries of e lie within δ ≥ 0 of one another.
    """
    delta = checks.interval(spread, "spread", 0, np.finfo(float).max)
    return checks.plain(2 * np.tanh(delta / 4))


def norm_bound(documents: ArrayLike, queries: ArrayLike, weight: ArrayLike | None = None) -> float | Array:
    """2 tanh(δ/4) ≤ ½ max_i ‖d_i − d̄‖ · diam(Q) · ‖W‖₂, [...]: the corrected Lemma 5.1 in terms of norms.

    It follows from tanh x ≤ x and δ = max (d_i − d̄)ᵀW(q_j − q_l). diam(Q) is the largest distance between
    query tokens.
    """
    D, Q, W = _factors(documents, queries, weight)
    radius = np.linalg.norm(D - D.mean(-2, keepdims=True), axis=-1).max(-1)
    tokens = Q.reshape(-1, *Q.shape[-2:])
    diameter = np.reshape([pdist(of).max(initial=0.0) for of in tokens], Q.shape[:-2])
    return checks.plain(radius * diameter * np.linalg.norm(W, ord=2, axis=(-2, -1)) / 2)


def row_norm(matrix: ArrayLike) -> float | Array:
    """‖X‖_∞ = max_i Σ_j |X_ij|, [...], for X [..., M, N]."""
    return checks.plain(np.abs(_matrix(matrix, "matrix")).sum(-1).max(-1))


def best_rank_one(matrix: ArrayLike) -> tuple[Array, float | Array]:
    """argmin ‖X − R‖_F over R of rank one, and its relative error ‖X − R‖_F / ‖X‖_F: [..., M, N] and [...].

    By the singular value decomposition (Eckart and Young), R = σ₁u₁v₁ᵀ and the error is √(1 − σ₁²/Σσ²), which
    Figure 4(b) of Wu et al. 2024 plots. X must not be zero.
    """
    X = _nonzero(matrix)
    left, values, right = np.linalg.svd(X, full_matrices=False)
    best = values[..., :1, None] * left[..., :, :1] * right[..., :1, :]
    tail = (values[..., 1:] ** 2).sum(-1)
    total = (values**2).sum(-1)
    return best, checks.plain(np.sqrt(tail / total))


def stable_rank(matrix: ArrayLike) -> float | Array:
    """‖X‖_F² / ‖X‖₂², [...], for X [..., M, N]: from 1 to rank X, and insensitive to tiny singular values.

    The stable rank is 1 only if X has rank one; the error of `best_rank_one` is √(1 − 1/stable rank). X must
    not be zero.
    """
    X = _nonzero(matrix)
    values = np.linalg.svd(X, compute_uv=False)
    return checks.plain((values**2).sum(-1) / values[..., 0] ** 2)


def report(scores: ArrayLike) -> dict[str, float | Array]:
    """Compute how far A = softmax(S) is from rank one, with the proved bounds, for each leading index of S.

    Wu et al. 2024, §7.4, with Lemma 5.1 corrected. The keys are best_error, the relative Frobenius error of
    the best rank-one matrix; softmax_error, the relative Frobenius error of R = 1·softmax(r)ᵀ; stable_rank;
    spread δ; row_error ‖A − R‖_∞; and row_bound, a bound on row_error. Values are [...], floats for one
    matrix. If only attention weights A > 0 are known, pass ln A.
    """
    S = _matrix(scores, "scores")
    A = alignment(S)
    delta = spread(S)
    difference = A - rank_one(S)
    norm = np.linalg.norm(A, axis=(-2, -1))
    return {
        "best_error": best_rank_one(A)[1],
        "softmax_error": checks.plain(np.linalg.norm(difference, axis=(-2, -1)) / norm),
        "stable_rank": stable_rank(A),
        "spread": delta,
        "row_error": row_norm(difference),
        "row_bound": row_bound(delta),
    }


def _matrix(value: ArrayLike, name: str) -> Array:
    matrix = checks.vector(value, name, nonzero=False)
    if matrix.ndim < 2 or matrix.shape[-2] == 0:
        raise ValueError(f"{name} has shape {matrix.shape}; allowed: [..., M, N] with M and N of at least 1")
    return matrix


def _nonzero(value: ArrayLike) -> Array:
    matrix = _matrix(value, "matrix")
    if not np.any(matrix != 0, axis=(-2, -1)).all():
        raise ValueError("matrix is a zero matrix or contains one; allowed: non-zero matrices")
    return matrix


def _factors(
    documents: ArrayLike, queries: ArrayLike, weight: ArrayLike | None
) -> tuple[Array, Array, Array]:
    D = _matrix(documents, "documents")
    Q = _matrix(queries, "queries")
    W = np.eye(D.shape[-1], Q.shape[-1]) if weight is None else _matrix(weight, "weight")
    if W.shape[-2:] != (D.shape[-1], Q.shape[-1]) or (weight is None and D.shape[-1] != Q.shape[-1]):
        raise ValueError(
            f"documents {D.shape}, weight {W.shape} and queries {Q.shape} do not fit; "
            "allowed: [..., M, h], [..., h, h] and [..., N, h]"
        )
    return D, Q, W
