"""Which rankings can a decoder of identifiers produce, and what do narrow states and constraints cost?

Documents are all n = Vᵐ sequences of m tokens from a vocabulary of V, and p(d | q) is any distribution over
documents.

- Rozonoyer et al. 2026 (arXiv:2601.05588, abstract): to produce every ranking, a vector per document needs a
  dimension that grows with n, but a decoder needs only a constant dimension. In numbers: h = n − 1 numbers
  suffice, h = n − 2 do not (Radon, `capacity.unanswerable_set`), and states of V − 1 numbers do
  (`prefix_states`). There are (n − 1)/(V − 1) states, one per prefix, so a query has n − 1 numbers in both
  cases. A decoder computes these numbers, whereas a query vector would have to store them.
- Wu et al. 2025 (arXiv:2504.09935, abstract): a decoder that knows a corpus only through constraints does not
  foresee which continuations the constraints will allow. In formulas: `foresight_gap`, a divergence between
  distributions of the next token, is 0 only if every valid token keeps the same share of its mass. If each
  document stays in the corpus with probability c, the mean divergence is near (1 − c)/(2c) Σ_v p_v(1 −
  p_v)λ_v, where λ_v = Σ p(d | v)² over v's documents (Simpson's index). The bounds of that paper's theorems
  were not available and are not restated here.
"""

import numpy as np
from numpy.typing import ArrayLike

from theory.checks import Array


def prefix_states(p: ArrayLike) -> list[Array]:
    """ln p(v | prefix) − ln p(0 | prefix) for tokens v = 1 … V − 1: a state of V − 1 numbers per prefix.

    p: positive probabilities of all sequences, [V, …, V]. Returns one array [V^i, V − 1] for each position i.
    Raises ValueError if p has no positive entries or axes of different lengths.
    """
    joint = np.asarray(p, dtype=float)
    if len(set(joint.shape)) != 1 or joint.shape[0] < 2 or not (joint > 0).all():
        raise ValueError(f"p must be positive, with equal axes of at least 2 tokens, got {joint.shape}")
    tokens = joint.shape[0]
    states = []
    for place in range(joint.ndim):
        logs = np.log(joint.reshape(tokens**place, tokens, -1).sum(-1))
        states.append(logs[:, 1:] - logs[:, :1])
    return states


def sequence_log_p(states: list[Array]) -> Array:
    """ln p(d) = Σᵢ ln softmax(0, s_{d_<i}) at d_i, for every sequence: [V, …, V]. states: `prefix_states`."""
    total = np.zeros(1)
    for of_place in states:
        logits = np.pad(of_place, ((0, 0), (1, 0)))
        total = (total[:, None] + logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).ravel()
    return total.reshape((states[0].shape[1] + 1,) * len(states))


def foresight_gap(masses: ArrayLike, kept: ArrayLike) -> float | Array:
    """KL(p_C ‖ p̂) = Σ_v p_C(v) ln s_v − ln Σ_v p̂(v) s_v in nats, s_v = kept_v / masses_v.

    masses: probability of each next token before the constraint, [..., v]; kept: the part of this mass that
    falls on documents in the corpus C. p̂ is the decoder's distribution over valid tokens (kept > 0); p_C is
    the distribution when only documents of C are possible. Raises ValueError unless 0 ≤ kept ≤ masses, with
    some kept > 0.
    """
    total, inside = np.broadcast_arrays(np.asarray(masses, float), np.asarray(kept, float))
    if (inside < 0).any() or (inside > total).any() or not (inside > 0).any(-1).all():
        raise ValueError("kept must lie between 0 and masses, and be positive for some token")
    valid = inside > 0
    share = np.divide(inside, total, out=np.ones_like(total), where=valid)
    model = np.where(valid, total, 0)
    model = model / model.sum(-1, keepdims=True)
    true = inside / inside.sum(-1, keepdims=True)
    gap = (true * np.log(share)).sum(-1) - np.log((model * share).sum(-1))
    return float(gap) if gap.ndim == 0 else gap


def beam(p: ArrayLike, corpus: ArrayLike, beams: int) -> Array:
    """Return the corpus documents that a beam search by prefix probabilities finds, best first: [found, m].

    p: probabilities of all sequences, [V, …, V]. corpus: mask of the sequences that are documents, of the
    same shape. A prefix is valid if some document begins with it. As in a decoder, its probability is the sum
    over all sequences that begin with it, documents or not.
    """
    joint = np.asarray(p, float)
    inside = np.asarray(corpus, bool)
    tokens = joint.shape[0]
    live = np.zeros(1, dtype=np.int64)
    for place in range(1, joint.ndim + 1):
        mass = joint.reshape(tokens**place, -1).sum(-1)
        longer = (live[:, None] * tokens + np.arange(tokens)).ravel()
        valid = np.asarray(inside.reshape(tokens**place, -1).any(-1))
        longer = longer[valid[longer]]
        live = longer[np.argsort(-mass[longer], kind="stable")[:beams]]
    return np.stack(np.unravel_index(live, joint.shape), -1)
