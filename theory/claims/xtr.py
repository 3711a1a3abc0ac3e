"""Claims about token retrieval (Lee et al. 2023, XTR)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from theory import token_retrieval
from theory.claims import XTR, Evidence, apart, excess, median_ratio, theorem

EXACT_SEARCH = "exact search"


def pools(rng: np.random.Generator, samples: int) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Draw 1–8 query tokens and pools of 3–12 documents, with similarities of any sign and k' ≤ pool size."""
    for _ in range(samples):
        count = rng.integers(3, 13)
        owners = np.concatenate([np.arange(count), rng.integers(0, count, rng.integers(0, 40))])
        owners = rng.permutation(owners)
        P = rng.normal(rng.uniform(-2, 2), 1, (rng.integers(1, 9), owners.size))
        yield P, owners, int(rng.integers(1, owners.size + 1))


@theorem(
    "f_XTR = (1/Z) Σ_i max_j Â_ij q_iᵀd_j",
    f"{XTR}, Eq. 2",
    "similarities of either sign",
    "−∞ where Â = 0: otherwise unretrieved 0s beat negative retrieved similarities",
    claim="f_XTR(Q, D) = (1/Z) Σ_i max_j A_ij Â_ij q_iᵀd_j",
)
def retrieved_maximum(rng: np.random.Generator, samples: int) -> Evidence:
    worst = printed = 0.0
    for P, owners, k in pools(rng, min(samples, 200)):
        ours = token_retrieval.xtr_scores(P, owners, k)
        mask = token_retrieval.retrieved(P, k)
        for document in np.flatnonzero(token_retrieval.candidates(P, owners, k)):
            rows = zip(P, mask & (owners == document), strict=True)
            mean = np.mean([row[own_tokens].max() for row, own_tokens in rows if own_tokens.any()])
            worst = max(worst, abs(ours[document] - mean))
        off = np.abs(token_retrieval.xtr_scores_as_printed(P, owners, k) - ours)
        printed = max(printed, float(off.max()))
    P = np.array([[-0.2, -0.3]])
    owners = np.zeros(2, int)
    literal = token_retrieval.xtr_scores_as_printed(P, owners, 1)[0]
    masked = token_retrieval.xtr_scores(P, owners, 1)[0]
    detail = f"P = (−.2, −.3), k = 1: {literal:g} as printed, {masked:g} with −∞"
    return Evidence(worst, min(samples, 200), printed=printed, detail=detail)


@theorem(
    "f_XTR' takes m_i where Â_i* = 0, and f_XTR' − f_ColBERT = (1/n)Σ_{missing}(m_i − max_j P_ij) ≥ 0",
    f"{XTR}, Eq. 4",
    EXACT_SEARCH + ", m_i the k'-th score",
    claim="a query token's missing similarity is “upper bounded” by its k'-th retrieved score",
)
def imputation(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    negative = 0
    gaps = list[Any]()
    for P, owners, k in pools(rng, min(samples, 300)):
        colbert = token_retrieval.colbert_scores(P, owners)
        gap = token_retrieval.imputation_gap(P, owners, k)
        imputed = token_retrieval.imputed_scores(P, owners, k)
        filled = np.where(
            token_retrieval.retrieved(P, k), P, token_retrieval.imputed_similarities(P, k)[:, None]
        )
        literal = token_retrieval.colbert_scores(filled, owners)  # Eq. 4 as printed: max over j, for any m_i
        off = *np.abs(imputed - colbert - gap), *np.abs(literal - imputed)
        worst = max(worst, excess(colbert, imputed), *off)
        gaps.extend(gap[token_retrieval.candidates(P, owners, k)])
        negative += bool(token_retrieval.imputed_similarities(P, k).min() < 0)
    detail = f"mean gap {np.mean(gaps):.3f}; the paper's m_i ≥ 0 is not needed: m_i < 0 in {negative} pools"
    return Evidence(float(worst), min(samples, 300), detail=detail)


@theorem(
    "∂L/∂P⁺ = −(1−P⁺)/Z⁺ and ∂L/∂P⁻ = P⁻/Z⁻ on the maxima",
    f"{XTR}, appendix A",
    "Z locally constant",
    claim="the gradient exists only where P⁺ is not 0, that is, retrieved, and depends on Z⁺",
)
def xtr_gradients(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    h = 1e-6
    count = min(samples, 100)
    for P, owners, k in [*pools(rng, count)]:  # draw all pools before the directions
        gradient = token_retrieval.xtr_gradient(P, owners, k, 0)
        direction = rng.standard_normal(P.shape)
        moved = (token_retrieval.xtr_scores(P + sign * h * direction, owners, k) for sign in (1, -1))
        ahead, behind = (token_retrieval.cross_entropy(scores, 0) for scores in moved)
        if np.diff(np.sort(P, axis=1)).min() > 20 * h:  # the step is too small to change an order
            worst = max(worst, abs((ahead - behind) / (2 * h) - float((gradient * direction).sum())))
    return Evidence(worst, count, tolerance=1e-5)


@theorem(
    "few retrieved tokens mean a large gradient on each; "
    "their sum over a document is 1 − P⁺ or P⁻ whatever Z",
    f"{XTR}, appendix A",
    "Z locally constant, Z > 0",
    claim="the gradient is “large” whenever few tokens of the positive document are retrieved",
)
def gradient_mass(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    count = min(samples, 200)
    for P, owners, k in pools(rng, count):
        f = token_retrieval.xtr_scores(P, owners, k)
        expected = np.exp(f - f.max()) / np.exp(f - f.max()).sum()
        expected[0] = 1 - expected[0]
        expected[~token_retrieval.candidates(P, owners, k)] = 0
        mass = token_retrieval.gradient_mass(token_retrieval.xtr_gradient(P, owners, k, 0), owners)
        worst = max(worst, float(np.abs(mass - expected).max()))
    few = np.array([[0.9, 0.2, 0.1], [0.1, 0.2, 0.9]])
    one, two = (token_retrieval.xtr_gradient(few, owners, 1, 0) for owners in ([0, 1, 1], [0, 1, 0]))
    one_each = np.abs(one[one != 0]).max()
    two_each = np.abs(two[two < 0]).max()
    detail = f"the same score from 1 or 2 rows: {one_each:.3f} on one entry, {two_each:.3f} on each of two"
    return Evidence(worst, count, detail=detail)


@theorem(
    "at f⁺ = .8 and all f⁻ = .2 the cross-entropy is close to zero",
    f"{XTR}, §3, failure case",
    "cosines, a batch of 128 documents, no temperature",
    "it is 4.2584, and P⁺ ≤ .05498: cosines need a temperature",
    claim="although retrieval fails, the cross-entropy is “close to zero” in training",
)
def temperature(rng: np.random.Generator, samples: int) -> Evidence:
    loss = token_retrieval.level_loss(128)
    limit = token_retrieval.positive_probability_limit(128)
    scores = rng.uniform(-1, 1, (min(samples, 1000), 128))
    reached = [np.exp(-token_retrieval.cross_entropy(row, 0)) for row in scores]
    attained = np.exp(-token_retrieval.cross_entropy(np.append(1.0, np.full(127, -1.0)), 0))
    golden = max(apart(loss, 4.2584325), apart(limit, 0.05498257), apart(attained, limit))
    cold = token_retrieval.level_loss(128, temperature=0.02)
    needed = token_retrieval.largest_temperature(128, 0.9)
    detail = f"loss {loss:.4f}; at τ = .02 {cold:.1e}; P⁺ = .9 needs τ ≤ {needed:.3f}"
    printed: dict[str, Any] = {"unit": "nats", "allowed": 0.1, "because": "“close to”", "detail": detail}
    worst = max(golden, excess(reached, limit))
    tight = median_ratio(reached, limit)
    return Evidence(worst, len(reached), tolerance=1e-6, tightness=tight, printed=float(loss), **printed)


@theorem(
    "XTR scores with 4000 times fewer FLOPs",
    f"{XTR}, Table 1 and appendix B",
    "n = 16, k' = 1000, m̄ = 55, d = 128, r̄ = 2.5",
    "nk' candidates with 2.5 tokens each need 2.5nk' retrieved tokens; counted consistently, 12226 times",
    claim="XTR's scoring stage takes “4000×” fewer FLOPs",
)
def scoring_cost(rng: np.random.Generator, samples: int) -> Evidence:
    paper = token_retrieval.scoring_cost(consistent=False)
    ours = token_retrieval.scoring_cost()
    golden = apart(
        [paper["colbert"], paper["xtr"], paper["ratio"], paper["gathered_bytes"], ours["ratio"]],
        [3_618_816_000, 896_000, 4038.8571, 450.56e6, 12225.7297],
    )
    balance = apart(ours["candidates"] * 2.5, 16 * 1000)
    costs = (f"{c['colbert']:.0f} / {c['xtr']:.0f} = {c['ratio']:.2f}" for c in (paper, ours))
    detail = "paper {}; consistent {}".format(*costs)
    printed: dict[str, Any] = {"allowed": 0.05, "because": "4000 is rounded", "detail": detail}
    return Evidence(max(golden, balance), 1, tolerance=1e-7, printed=apart(ours["ratio"], 4000), **printed)
