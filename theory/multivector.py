"""Do documents with one vector per segment need fewer dimensions than documents with a single vector?

Luan et al., TACL 2021, section 3, Theorem 1 (the case for ME-BERT). Documents are sums of m segments, d1 =
Σ_i d1^(i) and d2 = Σ_i d2^(i). A multi-vector encoder projects each segment and scores a document by
max_i ⟨Aq, Ad^(i)⟩.

Theorem 1: if segments i and j ≠ i are orthogonal (within and across both documents), ⟨q, d1⟩ ≥ ⟨q, d2⟩,
⟨q, d1^(i)⟩ = ⟨q, d1⟩ and ⟨q, d2^(i)⟩ ≤ ⟨q, d2⟩, then μ(q, d1^(i), d2^(i)) ≥ μ(q, d1, d2). This is true. But
max-scoring also compares segment i of d1 with every segment j ≠ i of d2, and the theorem does not cover these
pairs. Margins of these pairs can be far below μ(q, d1, d2), so a smaller k does not follow: see
`COUNTEREXAMPLE`. Segments are rows of [m, v].
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from theory import checks
from theory.checks import Array
from theory.projections import normalized_margin

# All conditions hold with i = 0. Margins: single-vector 1/√2, same-segment 1, cross 1/√201.
COUNTEREXAMPLE: dict[str, Array] = {
    "query": np.array([1.0, 0.0, 0.0]),
    "better": np.array([[1.0, 10.0, 0.0], [0.0, 0.0, 9.0]]),
    "worse": np.array([[0.0, 10.0, 0.0], [0.0, 0.0, 10.0]]),
}


def broken_conditions(
    query: ArrayLike, better: ArrayLike, worse: ArrayLike, segment: int, tolerance: float = 1e-9
) -> list[str]:
    """List the conditions of Theorem 1 that fail for segment i = `segment`; [] if the theorem applies.

    query: [v]. better, worse: segments of d1 and d2, [m, v]. Equalities are checked relative to the norms
    involved, within `tolerance`. ⟨q, d1⟩ ≥ ⟨q, d2⟩ is part of the paper's definition of a margin.
    """
    q, first, second = _segments(query, better, worse)
    index = int(checks.whole(segment, "segment", least=0, most=len(first) - 1))
    size = np.linalg.norm
    broken = []
    segments = np.stack([first, second])
    inner = np.abs(np.einsum("aiv,bjv->abij", segments, segments))
    allowed = tolerance * np.multiply.outer(size(segments, axis=-1), size(segments, axis=-1)).transpose(
        0, 2, 1, 3
    )
    for i, j in zip(*np.nonzero(np.triu((inner > allowed).any(axis=(0, 1)), k=1)), strict=True):
        broken.append(f"segments {i} and {j} are not orthogonal")
    slack = tolerance * size(q) * (size(first, axis=1).sum() + size(second, axis=1).sum())
    total1 = q @ first.sum(axis=0)
    total2 = q @ second.sum(axis=0)
    if total1 < total2 - slack:
        broken.append(f"⟨q, d1⟩ = {total1:.6g} is below ⟨q, d2⟩ = {total2:.6g}")
    if abs(q @ first[index] - total1) > slack:
        broken.append(f"⟨q, d1^({index})⟩ = {q @ first[index]:.6g} is not ⟨q, d1⟩ = {total1:.6g}")
    if q @ second[index] > total2 + slack:
        broken.append(f"⟨q, d2^({index})⟩ = {q @ second[index]:.6g} exceeds ⟨q, d2⟩ = {total2:.6g}")
    return broken


def segment_margins(
    query: ArrayLike, better: ArrayLike, worse: ArrayLike, segment: int
) -> tuple[float, float]:
    """(μ(q, d1^(i), d2^(i)), μ(q, d1, d2)): the sides of Theorem 1, which states first ≥ second.

    See `broken_conditions` for the arguments; the conditions are not checked. Raises ValueError if d1 = d2 or
    d1^(i) = d2^(i), since there is no margin then.
    """
    q, first, second = _segments(query, better, worse)
    index = int(checks.whole(segment, "segment", least=0, most=len(first) - 1))
    same = normalized_margin(q, first[index], second[index])
    return float(same), float(normalized_margin(q, first.sum(axis=0), second.sum(axis=0)))


def cross_margins(query: ArrayLike, better: ArrayLike, worse: ArrayLike) -> Array:
    """μ(q, d1^(i), d2^(j)) for all i, j, [m, m']; 0 where two segments are equal, since they always tie.

    better [m, v] and worse [m', v] may have different numbers of segments.
    """
    q, first, second = _segments(query, better, worse, equal=False)
    result = np.zeros((len(first), len(second)))
    i, j = np.nonzero((first[:, None] != second).any(axis=-1))
    if i.size:
        result[i, j] = normalized_margin(q, first[i], second[j])
    return result


def maxscore_margin(query: ArrayLike, better: ArrayLike, worse: ArrayLike) -> float:
    """max_i min_j μ(q, d1^(i), d2^(j)): a margin that suffices for max-scoring to keep d1 above d2.

    It suffices, but is not necessary, that one segment of d1 beats every segment of d2. For example, let q =
    e0, let d1 have 20 segments e0 + 10 e_i, and let d2 have the zero segment. The margin is .0995, which
    requires k = 273, but the error at k = 1 is below 2⁻²⁰, since one winner among 20 is enough. The margin is
    not positive if the best segment of d1 does not win.
    """
    return float(cross_margins(query, better, worse).min(axis=1).max())


def simulated_maxscore_error(
    k: float, query: ArrayLike, better: ArrayLike, worse: ArrayLike, *, samples: int = 100_000, seed: int = 0
) -> tuple[float, float]:
    """P(max_i ⟨Aq, Ad1^(i)⟩ ≤ max_j ⟨Aq, Ad2^(j)⟩) under Gaussian A: an estimate and its standard error.

    The joint law of all scores, χ_k ⟨q̄, d⟩ + ⟨z, d⟩ with z ⊥ q (`theory.recall`), is sampled, so the cost
    does not depend on k. See `cross_margins` for the arguments.
    """
    q, first, second = _segments(query, better, worse, equal=False)
    count = int(checks.whole(samples, "samples", least=2))
    rng = np.random.default_rng(seed)
    chi = np.sqrt(rng.chisquare(float(checks.dimensions(k)), count))
    unit = q / np.linalg.norm(q)
    documents = np.concatenate([first, second])
    along = documents @ unit
    # ⟨z, d⟩ is Gaussian with this covariance, whose factor is far smaller than v for a few segments.
    beyond = documents - along[:, None] * unit
    factor = np.linalg.qr(beyond.T)[1].T
    scores = along[:, None] * chi + factor @ rng.standard_normal((factor.shape[1], count))
    lost = scores[: len(first)].max(axis=0) <= scores[len(first) :].max(axis=0)
    estimate = float(lost.mean())
    return estimate, float(np.sqrt(estimate * (1 - estimate) / count))


def _segments(query: Any, better: Any, worse: Any, equal: bool = True) -> tuple[Array, Array, Array]:
    q = checks.vector(query, "query", axes=1)
    first, second = (
        checks.vector(x, n, axes=2, nonzero=False) for x, n in ((better, "better"), (worse, "worse"))
    )
    if not (q.shape[-1] == first.shape[-1] == second.shape[-1]) or 0 in (len(first), len(second)):
        raise ValueError(
            f"query {q.shape}, better {first.shape}, worse {second.shape}; "
            "allowed: [v], [m, v], [m, v] with m ≥ 1"
        )
    if equal and len(first) != len(second):
        raise ValueError(f"better has {len(first)} segments and worse {len(second)}; allowed: equally many")
    return q, first, second
