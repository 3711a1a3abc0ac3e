"""Score documents from retrieved tokens only: rel = (1/Z) Σ_i max over the retrieved j of P_ij  (XTR).

Lee et al. 2023 (XTR). P_ij = q_iᵀd_j is the similarity of query token i (of n) to token j of a pool, which
contains the tokens of all documents in order. Â_ij = 1 if j is among the k largest of row i over the whole
pool. The score of a document uses only the document's columns.

Everywhere below, `similarities` P is [n, t] and finite; `owners` [t] gives the document 0 … C−1 of each
column, and every document owns at least one column; `k` is whole and at least 1. Temperatures τ are positive;
the paper has τ = 1. Scalars give floats. Other arguments raise ValueError. This module is a readable
reference; the fast implementations are tested against it.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax

from theory import checks
from theory.checks import Array

CLIPPED_NORMALISER = 1e-6  # the paper's "small number" in place of Z = 0


def retrieved(similarities: ArrayLike, k: int) -> NDArray[np.bool_]:
    """Â [n, t], True for exactly the min(k, t) largest similarities of each row; ties: the earlier column.

    Lee et al. 2023, §3.1 (k_train, over the batch) and Eq. 3 (k', over the corpus), under exact search.
    """
    P = checks.vector(similarities, "similarities", axes=2, nonzero=False)
    count = int(checks.whole(k, "k"))
    order = np.argsort(-P, axis=1, kind="stable")[:, :count]
    mask = np.zeros(P.shape, dtype=bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask


def colbert_scores(similarities: ArrayLike, owners: ArrayLike) -> Array:
    """f_ColBERT = (1/n) Σ_i max_j P_ij for every document, [C] (Lee et al. 2023, Eq. 1)."""
    P, owner = _pool(similarities, owners)
    return _row_maxima(P, owner).mean(0)


def xtr_scores(similarities: ArrayLike, owners: ArrayLike, k: int) -> Array:
    """f_XTR = (1/Z) Σ_i max{P_ij : j retrieved} over rows that retrieved a token of the document, [C].

    Lee et al. 2023, Eq. 2, with unretrieved similarities at −∞ before the maximum. Z is the number of such
    rows. If there are none, Z is a small number and f_XTR = 0.
    """
    best, seen = _retrieved_maxima(similarities, owners, k)
    return np.where(seen, best, 0.0).sum(0) / _normaliser(seen)


def xtr_scores_as_printed(similarities: ArrayLike, owners: ArrayLike, k: int) -> Array:
    """(1/Z) Σ_i max_j Â_ij P_ij, [C]: Eq. 2 of Lee et al. 2023 taken literally.

    An unretrieved token enters the maximum as 0 and beats every negative retrieved similarity.
    """
    P, owner = _pool(similarities, owners)
    mask = retrieved(P, k)
    return _row_maxima(P * mask, owner).sum(0) / _normaliser(_row_maxima(mask, owner))


def imputed_similarities(similarities: ArrayLike, k: int) -> Array:
    """m_i = the k'-th largest similarity of query token i, or the smallest if there are fewer, [n] (§3.2)."""
    P = checks.vector(similarities, "similarities", axes=2, nonzero=False)
    return np.where(retrieved(P, k), P, np.inf).min(1)


def imputed_scores(similarities: ArrayLike, owners: ArrayLike, k: int) -> Array:
    """f_XTR' = (1/n) Σ_i (max over retrieved j of P_ij, or m_i if row i retrieved no token), [C].

    Lee et al. 2023, Eq. 4, with m_i from `imputed_similarities`, which may be negative. The score is defined
    for every document, but retrieval ranks only the `candidates`.
    """
    best, seen = _retrieved_maxima(similarities, owners, k)
    return np.where(seen, best, imputed_similarities(similarities, k)[:, None]).mean(0)


def candidates(similarities: ArrayLike, owners: ArrayLike, k: int) -> NDArray[np.bool_]:
    """Return a mask [C] of the documents that a query token retrieved a token of (Lee et al. 2023, Eq. 3)."""
    _, seen = _retrieved_maxima(similarities, owners, k)
    return np.any(seen, axis=0)


def imputation_gap(similarities: ArrayLike, owners: ArrayLike, k: int) -> Array:
    """f_XTR' − f_ColBERT = (1/n) Σ_{i missing} (m_i − max_j P_ij) ≥ 0, [C].

    The formula is derived here from Eq. 1 and 4 of Lee et al. 2023. Search is assumed to be exact: a missing
    row's maximum is then at most m_i, and a present row's maximum is retrieved. The gap is 0 if every row
    retrieved a token of the document.
    """
    P, owner = _pool(similarities, owners)
    _, seen = _retrieved_maxima(P, owner, k)
    shortfall = imputed_similarities(P, k)[:, None] - _row_maxima(P, owner)
    return np.where(seen, 0.0, shortfall).mean(0)


def cross_entropy(scores: ArrayLike, positive: int, temperature: float = 1.0) -> float:
    """L_CE = −ln P⁺, P⁺ = softmax(f/τ) of the positive document, for scores f [C] (Lee et al. 2023, §2.1)."""
    scaled = _scaled(scores, positive, temperature)
    return float(logsumexp(scaled) - scaled[positive])


def xtr_gradient(
    similarities: ArrayLike, owners: ArrayLike, k: int, positive: int, temperature: float = 1.0
) -> Array:
    """∂L_CE/∂P [n, t] under f_XTR.

    The gradient is −(1−P⁺)/(Z⁺τ) on the retrieved maxima of the positive document and +P⁻/(Z⁻τ) on the
    retrieved maxima of each negative document (Lee et al. 2023, appendix A). The set of retrieved tokens, and
    hence Z, is taken as locally constant. A document without a retrieved token has f_XTR = 0 and gradient 0;
    the paper leaves both undefined. With k ≥ t all tokens are retrieved, and the gradient is that under
    f_ColBERT. Ties go to the earlier column.
    """
    P, owner = _pool(similarities, owners)
    usable = retrieved(P, k)
    slope = softmax(_scaled(xtr_scores(P, owner, k), positive, temperature))
    slope[positive] -= 1
    gradient = np.zeros_like(P)
    for document, d_score in enumerate(slope / temperature):
        columns = np.flatnonzero(owner == document)
        visible = np.where(usable[:, columns], P[:, columns], -np.inf)
        rows = np.flatnonzero(usable[:, columns].any(1))
        gradient[rows, columns[visible[rows].argmax(1)]] = d_score / max(rows.size, 1)
    return gradient


def gradient_mass(gradient: ArrayLike, owners: ArrayLike) -> Array:
    """Σ |∂L_CE/∂P_ij| over each document's columns, [C].

    The mass is (1−P⁺)/τ for the positive document and P⁻/τ for a negative document, for any n and Z, or 0 if
    no token of the document was retrieved. So, contrary to what appendix A may suggest, in-batch token
    retrieval does not push harder on a document with few retrieved tokens: it spreads the same mass over
    fewer entries.
    """
    P, owner = _pool(gradient, owners)
    return np.asarray(np.bincount(owner, weights=np.abs(P).sum(0)), dtype=np.float64)


def positive_probability_limit(batch: ArrayLike, temperature: ArrayLike = 1.0) -> float | Array:
    """max P⁺ = 1 / (1 + (B−1) e^{−2/τ}) for scores in [−1, 1] (cosines) and B documents in the batch.

    The limit is derived here for the loss of Lee et al. 2023, §2.1. B includes the positive document. B ≥ 2
    and τ broadcast.
    """
    negatives = checks.whole(batch, "batch", least=2) - 1
    return checks.plain(1 / (1 + negatives * np.exp(-2 / checks.positive(temperature, "temperature"))))


def largest_temperature(batch: ArrayLike, probability: ArrayLike) -> float | Array:
    """τ = 2 / ln((B−1) P/(1−P)): the largest τ at which cosines can give the positive document probability P.

    This is the inverse of `positive_probability_limit`. The result is +inf if P ≤ 1/B, which every τ allows.
    B ≥ 2 and P in (0, 1) broadcast.
    """
    negatives = checks.whole(batch, "batch", least=2) - 1
    P = checks.probability(probability, "probability")
    margin = np.log(negatives * P / (1 - P))
    with np.errstate(divide="ignore"):
        return checks.plain(np.where(margin > 0, 2 / np.maximum(margin, 0), np.inf))


def level_loss(
    batch: ArrayLike, positive: ArrayLike = 0.8, negative: ArrayLike = 0.2, temperature: ArrayLike = 1.0
) -> float | Array:
    """L_CE = ln(1 + (B−1) e^{(f⁻−f⁺)/τ}) if the positive document scores f⁺ and all B−1 negatives score f⁻.

    This is the failure case of Lee et al. 2023, §3: at f⁺ = .8, f⁻ = .2 the paper calls the loss close to 0,
    which requires a small τ. All arguments broadcast; B ≥ 2.
    """
    negatives = checks.whole(batch, "batch", least=2) - 1
    gap = _finite(negative, "negative") - _finite(positive, "positive")
    scaled = gap / checks.positive(temperature, "temperature")
    return checks.plain(np.logaddexp(0, np.log(negatives) + scaled))


def scoring_cost(
    query_tokens: int = 16,
    retrieved_tokens: int = 1000,
    document_tokens: float = 55,
    dimension: int = 128,
    tokens_per_candidate: float = 2.5,
    *,
    consistent: bool = True,
) -> dict[str, float]:
    """Compute the FLOPs of the scoring stages of ColBERT and XTR.

    n query tokens retrieve k' tokens each; documents have m̄ tokens of d dimensions. The defaults are the
    settings of Lee et al. 2023, appendix B and Table 1. The paper (consistent=False) counts C = nk'
    candidates with r̄ retrieved tokens for every query token: ColBERT C·n(2m̄d + m̄ + 1), XTR C·n(r̄ + 1).
    These two counts contradict each other, because only nk' tokens are retrieved. With consistent=True, r̄
    tokens per candidate over the whole query give C = nk'/r̄ candidates; XTR reads r̄ numbers and adds n:
    C(r̄ + n).

    Returns candidates, colbert and xtr (FLOPs), ratio, and gathered_bytes (the float32 vectors that ColBERT
    loads).
    """
    n = float(checks.whole(query_tokens, "query_tokens"))
    tokens = float(checks.whole(retrieved_tokens, "retrieved_tokens"))
    d = float(checks.whole(dimension, "dimension"))
    m = float(checks.dimensions(document_tokens, "document_tokens"))
    r = float(checks.dimensions(tokens_per_candidate, "tokens_per_candidate"))
    count = n * tokens / r if consistent else n * tokens
    colbert = count * n * (2 * m * d + m + 1)
    xtr = count * (r + n) if consistent else count * n * (r + 1)
    costs = {"candidates": count, "colbert": colbert, "xtr": xtr, "ratio": colbert / xtr}
    return costs | {"gathered_bytes": 4 * count * m * d}


def _pool(similarities: ArrayLike, owners: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    P = checks.vector(similarities, "similarities", axes=2, nonzero=False)
    owner = checks.whole(owners, "owners", least=0).astype(np.int64)
    if owner.shape != P.shape[1:]:
        raise ValueError(
            f"owners has shape {owner.shape}; allowed: one document for each of {P.shape[1]} columns"
        )
    if np.unique(owner).size != owner.max() + 1:
        raise ValueError(
            "owners leaves out a document; allowed: every number from 0 to the largest, at least once"
        )
    return P, owner


def _row_maxima(values: NDArray, owner: NDArray[np.int64]) -> NDArray:
    """Return each row's maximum over each document's columns, [n, C]."""
    return np.stack([values[:, owner == document].max(1) for document in range(owner.max() + 1)], axis=1)


def _retrieved_maxima(similarities: ArrayLike, owners: ArrayLike, k: int) -> tuple[Array, NDArray[np.bool_]]:
    """Return row maxima over each document's retrieved columns, −inf if none, and a mask of finite ones."""
    P, owner = _pool(similarities, owners)
    best = _row_maxima(np.where(retrieved(P, k), P, -np.inf), owner)
    return best, np.isfinite(best)


def _normaliser(seen: NDArray[np.bool_]) -> Array:
    return np.maximum(seen.sum(0), CLIPPED_NORMALISER)


def _scaled(scores: ArrayLike, positive: int, temperature: float) -> Array:
    f = checks.vector(scores, "scores", axes=1, nonzero=False)
    checks.whole(positive, "positive", least=0, most=f.size - 1)
    return f / checks.positive(temperature, "temperature")


def _finite(value: ArrayLike, name: str) -> Array:
    return checks.vector(np.atleast_1d(value), name, nonzero=False).reshape(np.shape(value))
