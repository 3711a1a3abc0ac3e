"""Compute attention relevance as a kernel sum, at a cost that is linear in the number of tokens.

rel = Σ_i d_iᵀ S_Q φ(d_i) / (φ(d_i)ᵀ z_Q), with S_Q = Σ_j q_jφ(q_j)ᵀ and z_Q = Σ_j φ(q_j).

rel(d, q) = Σ_ij d_iᵀq_j softmax_j(d_iᵀq_j) separates into query and document parts once exp(xᵀy) =
φ(x)ᵀφ(y). Lemma 5.2 of Wu et al. 2024 takes φ = elu, with normalisers p_ij that depend on d_i and q_j. The
lemma is false as printed: elu(x)ᵀelu(y) is not exp(xᵀy) and can be 0 or negative, and p depends on d_i and
all of Q. The correction uses orthogonal positive random features (Choromanski et al. 2021), φ(x) =
e^{−‖x‖²/2} e^{ωᵀx}/√m, for which E φ(x)ᵀφ(y) = exp(xᵀy). The error grows like e^{‖x+y‖²}, so vectors should
have unit length or be small.

Everywhere below, documents D are [M, h], queries Q are [N, h], and all numbers are finite. A feature map
takes [n, h] to [n, m].
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from theory import checks
from theory.checks import Array

FeatureMap = Callable[[Array], Array]


def relevance(documents: ArrayLike, queries: ArrayLike) -> float:
    """rel = Σ_ij d_iᵀq_j softmax_j(d_iᵀQ)_j, exactly: the left-hand side of Lemma 5.2 of Wu et al. 2024."""
    D, Q = _vectors(documents, queries)
    S = D @ Q.T
    return float((S * softmax(S, axis=1)).sum())


def kernel_relevance(documents: ArrayLike, queries: ArrayLike, features: FeatureMap) -> float:
    """rel ≈ Σ_i d_iᵀ S_Q φ(d_i) / (φ(d_i)ᵀ z_Q), with S_Q = Σ_j q_jφ(q_j)ᵀ and z_Q = Σ_j φ(q_j).

    This is Eq. 25 of Wu et al. 2024, with the p_ij for which the weights sum to 1: p_i = φ(d_i)ᵀz_Q, which
    depends on d_i and all of Q. The cost is linear in M and N. The result equals `relevance` if φ(x)ᵀφ(y) =
    exp(xᵀy). The denominator may be 0 if φ takes negative values.
    """
    D, Q = _vectors(documents, queries)
    phi_d = features(D)
    phi_q = features(Q)
    summary = Q.T @ phi_q  # S_Q [h, m]
    return float((np.einsum("ih,hm,im->i", D, summary, phi_d) / (phi_d @ phi_q.sum(0))).sum())


def kernel_terms(documents: ArrayLike, queries: ArrayLike, features: FeatureMap) -> Array:
    """tr(F(d_i)ᵀF(q_j)) = d_iᵀq_j φ(d_i)ᵀφ(q_j) with F(x) = xφ(x)ᵀ, [M, N].

    These are the terms of Eq. 25 before the factor 1/p_ij (Wu et al. 2024, Lemma 5.2). If a term is 0 and
    d_iᵀq_j is not 0, no p_ij makes the equality hold.
    """
    D, Q = _vectors(documents, queries)
    return (D @ Q.T) * (features(D) @ features(Q).T)


def separable_factor(vectors: ArrayLike, features: FeatureMap) -> float:
    """Σ_i √tr(F(x_i)ᵀF(x_i)) = Σ_i ‖x_i‖‖φ(x_i)‖ for vectors [n, h]: a factor in the printed upper bound.

    Wu et al. 2024, after Lemma 5.2: rel ≤ factor(D)·factor(Q), which the paper also divides by p̂, a constant
    here. The product orders documents by factor(D), which is the same for every query, so it cannot rank.
    """
    X = checks.vector(vectors, "vectors", axes=2, nonzero=False)
    return float((np.linalg.norm(X, axis=1) * np.linalg.norm(features(X), axis=1)).sum())


def elu(vectors: ArrayLike) -> Array:
    """φ(x) = elu(x) = x for x > 0, e^x − 1 otherwise, entrywise.

    Wu et al. 2024 print this φ in Lemma 5.2.
    """
    x = checks.vector(vectors, "vectors", nonzero=False)
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def elu_plus_one(vectors: ArrayLike) -> Array:
    """φ(x) = elu(x) + 1 > 0, entrywise: the usual positive variant of elu (Katharopoulos et al. 2020).

    As with `elu`, φ(x)ᵀφ(y) is not exp(xᵀy).
    """
    return elu(vectors) + 1


def orthogonal_projections(dimension: int, features: int, seed: int) -> Array:
    """Draw ω [m, h]: m Gaussian vectors, orthogonal to one another within every block of h rows.

    Choromanski et al. 2021. Directions come from a QR decomposition and lengths χ_h are drawn independently,
    so each row alone is N(0, I). Raises ValueError if dimension or features is below 1.
    """
    h = int(checks.whole(dimension, "dimension"))
    m = int(checks.whole(features, "features"))
    rng = np.random.default_rng(seed)
    blocks = -(-m // h)
    directions, upper = np.linalg.qr(rng.standard_normal((blocks, h, h)))
    directions = directions * np.sign(np.diagonal(upper, axis1=1, axis2=2))[:, None, :]  # uniform over O(h)
    lengths = np.linalg.norm(rng.standard_normal((blocks, h, h)), axis=2)
    return (np.swapaxes(directions, 1, 2) * lengths[:, :, None]).reshape(blocks * h, h)[:m]


def positive_features(vectors: ArrayLike, projections: ArrayLike) -> Array:
    """φ(x) = e^{−‖x‖²/2} e^{ωᵀx} / √m, [n, m], with E φ(x)ᵀφ(y) = exp(xᵀy) for ω ~ N(0, I).

    Choromanski et al. 2021, Lemma 1. vectors: [n, h]. projections: ω [m, h]. All entries of the result are
    > 0, up to underflow.
    """
    X = checks.vector(vectors, "vectors", axes=2, nonzero=False)
    W = checks.vector(projections, "projections", axes=2)
    if X.shape[1] != W.shape[1]:
        raise ValueError(f"projections {W.shape} do not fit vectors {X.shape}; allowed: [m, {X.shape[1]}]")
    return np.exp(X @ W.T - (X**2).sum(1, keepdims=True) / 2) / np.sqrt(len(W))


def _vectors(documents: ArrayLike, queries: ArrayLike) -> tuple[Array, Array]:
    D = checks.vector(documents, "documents", axes=2, nonzero=False)
    Q = checks.vector(queries, "queries", axes=2, nonzero=False)
    if D.shape[1] != Q.shape[1] or 0 in (len(D), len(Q)):
        raise ValueError(
            f"documents {D.shape} and queries {Q.shape} do not fit; "
            "allowed: [M, h] and [N, h] with M and N of at least 1"
        )
    return D, Q
