"""Claims about relevance and alignment in generative retrieval: Wu et al. 2024, §1, §4 and the lemmas."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy.special import log_softmax, logsumexp

from theory import kernels, low_rank
from theory.claims import GENERATIVE, Evidence, apart, excess, theorem


def attention_factors(
    rng: np.random.Generator, samples: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Draw D [M, h], Q [N, h] and W [h, h] with sizes from 2 to 15, at scales that give small and large δ."""
    for _ in range(samples):
        M, N, h = rng.integers(2, 16, 3)
        D = 10 ** rng.uniform(-1.5, 1) * rng.standard_normal((M, h))
        yield D, rng.standard_normal((N, h)), rng.standard_normal((h, h)) / h


def unit_tokens(rng: np.random.Generator, count: int, h: int) -> np.ndarray:
    x = rng.standard_normal((count, h))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@theorem(
    "GR with atomic identifiers is single-vector dense retrieval: log p(d | q) ranks as e_dᵀh(q)",
    f"{GENERATIVE}, §2",
    "one softmax over the documents, without an end token",
    claim="as Nguyen and Yates 2023 show, generative retrieval with atomic identifiers is “equivalent” to "
    "single-vector dense retrieval",
)
def atomic_identifiers(rng: np.random.Generator, samples: int) -> Evidence:
    count = min(samples, 200)
    documents = 50
    h = 16
    H = rng.standard_normal((count, h))
    E = rng.standard_normal((documents, h))
    relevance = H @ E.T
    log_p = log_softmax(relevance, axis=1)
    worst = np.ptp(relevance - log_p, axis=1).max()  # rel − log p is the same for all documents of a query
    ended = log_p + log_softmax(rng.standard_normal((count, documents, 8)), axis=2)[:, :, 0]
    other = float(np.mean(ended.argmax(1) != relevance.argmax(1)))
    detail = "an end token, of which the claim does not speak, adds log p(end | d, q): on random states "
    detail += f"another document is then first for {other:.2f} of the queries"
    return Evidence(float(worst), count, detail=detail)


@theorem(
    "L(d, q) = Σ_i log p(d_i | d_<i, q) = Σ_i L_i(d, q), L_i = −e_{d_i}ᵀh_i + log Σ_v exp e_vᵀh_i",
    f"{GENERATIVE}, Eqs 6 to 10",
    "none",
    "L = −Σ_i log p: Eqs 3, 8, 28 and 29 have the sign of a log probability, Eqs 6, 7, 9 and 10 of a loss",
    claim="log p(d | q) = L(d, q) = Σ_i L_i(d, q)",
)
def sign_of_the_loss(rng: np.random.Generator, samples: int) -> Evidence:
    count = min(samples, 500)
    logits = rng.standard_normal((count, 5, 30))  # 5 places; the document's token is number 0 at each place
    eq_8 = log_softmax(logits, axis=2)[:, :, 0].sum(1)
    eq_10 = (logsumexp(logits, axis=2) - logits[:, :, 0]).sum(1)
    detail = f"Eq. 8 is {eq_8[0]:.2f} where Eq. 10 is {eq_10[0]:.2f}"
    return Evidence(apart(-eq_8, eq_10), count, printed=apart(eq_8, eq_10), detail=detail)


@theorem(
    "log p(d_i | d_<i, q) ∝ e_{d_i}ᵀh_i where C = Σ_{v≠d_i} exp e_vᵀh_i is much larger than exp e_{d_i}ᵀh_i",
    f"{GENERATIVE}, Eqs 26 to 29",
    "none",
    "−exp(s)/C ≤ log p − (s − ln C) ≤ 0 for the logit s; C is another for every query and prefix",
    claim="log p(d_i | d_{i−1}, …, d_0, q) = L_i(d, q) ∝ e_{d_i}ᵀh_i",
)
def log_probability_by_the_logit(rng: np.random.Generator, samples: int) -> Evidence:
    count = min(samples, 300)
    tokens = 3000
    logits = 2 * rng.standard_normal((count, tokens))  # one token for each of `count` prefixes
    s = logits[:, 0]
    C = np.exp(logits[:, 1:]).sum(1)
    log_p = s - np.logaddexp(s, np.log(C))
    gap = log_p - (s - np.log(C))
    worst = max(excess(gap, 1e-12), excess(-np.exp(s) / C, gap))
    # The prefixes' states are equal up to scale: p stays small, and only C distinguishes the prefixes.
    scaled = rng.uniform(0.5, 3, (count, 1)) * rng.standard_normal(tokens)
    scaled[:, 0] = np.abs(scaled[:, 0])
    other = log_softmax(scaled, axis=1)[:, 0]
    ranks = scaled[:, 0].argsort().argsort(), other.argsort().argsort()
    correlation = float(np.corrcoef(*ranks)[0, 1])
    detail = f"states of one direction and several lengths: p ≤ {np.exp(other.max()):.4f}, and the rank "
    detail += f"correlation of logit and log p is {correlation:.2f}"
    return Evidence(float(worst), count, printed=1 - correlation, detail=detail)


@theorem(
    "‖A − 1·softmax(r)ᵀ‖_∞ ≤ 2tanh(δ/4) ≤ ½ max‖d_i−d̄‖ diam(Q) ‖W‖₂",
    f"{GENERATIVE}, Lemma 5.1",
    "W ≠ 0; γ free, as printed. experiments/low_rank.py measures how often γ = 1 suffices",
    "vacuous: every matrix R satisfies it with γ = ‖A − R‖/(4‖W‖), whether or not A is near rank one; the "
    "bound with δ in place of γ excludes something",
    claim="some rank-one matrix R has ‖A − R‖ ≤ 4γ‖W‖, where γ “depends on the matrix entries”",
)
def lemma_5_1(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    count = min(samples, 500)
    ratios = list[Any]()
    for D, Q, W in attention_factors(rng, count):
        S = low_rank.attention_scores(D, Q, W)
        error = low_rank.row_norm(low_rank.alignment(S) - low_rank.rank_one(S))
        bound = low_rank.row_bound(low_rank.spread(S))
        worst = max(worst, excess(error, bound), excess(bound, low_rank.norm_bound(D, Q, W)))
        ratios.append(error / bound)
    S = low_rank.attention_scores(np.eye(2), np.eye(2))
    A = low_rank.alignment(S)
    report = low_rank.report(S)
    golden = max(apart(report["row_error"], 0.46211716), apart(report["row_bound"], 0.48983732))
    absurd = np.full((2, 2), 1e6)
    gamma = low_rank.row_norm(A - absurd) / 4  # the least, as ‖I‖_∞ = 1
    detail = f"vacuous: D = Q = W = I, and even R = 10⁶·11ᵀ satisfies it, with γ = {gamma:.3g}"
    options: dict[str, Any] = {"printed": float(low_rank.row_norm(A - absurd)), "allowed": 2.0}
    options |= {"because": "no two alignments are further apart", "unit": "‖A − R‖_∞"}
    tight = float(np.median(ratios))
    return Evidence(max(worst, golden), count, tolerance=1e-7, tightness=tight, detail=detail, **options)


@theorem(
    "R = 1rᵀ, r = d̄ᵀW(Q − q̄1ᵀ), is within 4γC‖W‖ of A",
    f"{GENERATIVE}, appendix B",
    "none",
    "R = 1·softmax(r)ᵀ",
    claim="R = 1rᵀ has ‖A − R‖_{1,∞} ≤ 4γ²‖R_d W R_qᵀ‖₁ ≤ 4γC‖W‖₁",
)
def lemma_5_1_reference(rng: np.random.Generator, samples: int) -> Evidence:
    S = low_rank.attention_scores(rng.standard_normal((5, 3)), rng.standard_normal((4, 3)), np.zeros((3, 3)))
    A = low_rank.alignment(S)
    printed = low_rank.row_norm(A - low_rank.rank_one_as_printed(S))
    ours = low_rank.row_norm(A - low_rank.rank_one(S))
    detail = f"W = 0: ‖A − 1rᵀ‖_∞ = {printed:g}, although the printed bound 4γ‖W‖ is 0 for every γ"
    return Evidence(float(ours), 1, printed=float(printed), detail=detail)


@theorem(
    "the softmax of any scores is near a matrix of rank one",
    f"{GENERATIVE}, §5.2.4",
    claim="attention “inherently” makes the alignment “a lowrank matrix”",
)
def low_rank_is_inherent(rng: np.random.Generator, samples: int) -> Evidence:
    A = low_rank.alignment(5 * np.eye(16))
    error = float(low_rank.best_rank_one(A)[1])
    rank = low_rank.stable_rank(A)
    left, values, right = np.linalg.svd(rng.standard_normal((6, 5)))
    X = (left[:, :5] * values) @ right
    ours = apart(low_rank.best_rank_one(X)[1] ** 2, 1 - values[0] ** 2 / (values**2).sum())
    detail = f"softmax(5·I₁₆): best rank-one relative error {error:.3f}, stable rank {rank:.1f}"
    printed: dict[str, Any] = {"printed": error, "allowed": 0.5, "because": "“low”", "detail": detail}
    return Evidence(max(ours, excess(abs(error - 0.96), 0.005)), 1, unit="relative error", **printed)


@theorem(
    "rel = Σ_ij (1/p_ij) tr(F(d_i)ᵀF(q_j)) with F(x) = xφ(x)ᵀ, φ = elu",
    f"{GENERATIVE}, Lemma 5.2",
    claim="rel(d, q) = Σ_ij (1/p_ij) tr(F(d_i)ᵀF(q_j)), with elu as the kernel function φ",
)
def lemma_5_2(rng: np.random.Generator, samples: int) -> Evidence:
    d = np.array([[1.0, -np.log(2)]])
    q = np.array([[1.0, 2.0]])
    term = kernels.kernel_terms(d, q, kernels.elu).item()
    rel = kernels.relevance(d, q)
    negative = (kernels.elu([1.0]) @ kernels.elu([-1.0])).item()
    ours = max(abs(term), apart(rel, 1 - 2 * np.log(2)), apart(negative, np.expm1(-1)))
    detail = f"d = (1, −ln 2), q = (1, 2): rel = {rel:.4f} but tr(FᵀF) = 0, so that no p helps; "
    detail += f"elu(1)·elu(−1) = {negative:.3f}"
    return Evidence(ours, 1, printed=abs(rel - term), detail=detail)


@theorem(
    "rel ≈ Σ_i d_iᵀS_Qφ(d_i)/(φ(d_i)ᵀz_Q), median error ≤ .1 with 256 features, .03 with 4096",
    "positive random features",
    "unit vectors, h = 16",
)
def positive_features(rng: np.random.Generator, samples: int) -> Evidence:
    counts = (256, 4096)
    errors = []
    for _ in range(min(samples, 60)):
        D = unit_tokens(rng, 20, 16)
        Q = unit_tokens(rng, 10, 16)
        exact = kernels.relevance(D, Q)
        row = []
        for m in counts:
            W = kernels.orthogonal_projections(16, m, int(rng.integers(2**31)))
            row.append(kernels.kernel_relevance(D, Q, partial(kernels.positive_features, projections=W)))
        row += [kernels.kernel_relevance(D, Q, phi) for phi in (kernels.elu, kernels.elu_plus_one)]
        errors.append(np.abs(np.array(row) / exact - 1))
    few, many, elu, shifted = np.median(errors, axis=0)
    detail = f"median relative error {few:.3f} (256), {many:.3f} (4096); elu {elu:.1f}, elu + 1 {shifted:.2f}"
    worst = max(excess(few, 0.1), excess(many, 0.03))
    return Evidence(worst, len(errors), detail=detail)


@theorem(
    "p_ij depends on d_i and q_j",
    f"{GENERATIVE}, Lemma 5.2",
    "none",
    "on d_i and all of Q: p_i = Σ_j exp(d_iᵀq_j)",
    claim="p_ij “depends on d_i and q_j”",
)
def normaliser(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    spread = 0.0
    count = min(samples, 200)
    for _ in range(count):
        d, q, *neighbours = rng.standard_normal((4, 6))
        implied = []
        for other in neighbours:
            S = np.array([[d @ q, d @ other]])
            implied.append(np.exp(d @ q) / low_rank.alignment(S)[0, 0])
            worst = max(worst, apart(implied[-1], np.exp(S).sum()))
        spread = max(spread, float(np.ptp(np.log(implied))))
    detail = f"the same d_i and q_j beside another query token: ln p differs by up to {spread:.1f}"
    return Evidence(worst, count, printed=spread, detail=detail)


@theorem(
    "rel ≤ Σ_ij √tr(F(d_i)ᵀF(d_i)) √tr(F(q_j)ᵀF(q_j)) / (p̂_i p̂_j), near enough to rank by",
    f"{GENERATIVE}, after Lemma 5.2",
    "p̂ = 1 for ≤; any p̂_i of d_i and p̂_j of q_j for the order",
    claim="by the trace inequality, rel(d, q) ≤ Σ_ij (1/(p̂_i p̂_j)) √tr(F(d_i)ᵀF(d_i)) "
    "√tr(F(q_j)ᵀF(q_j)) “approximately” decomposes the relevance",
)
def separable_bound(rng: np.random.Generator, samples: int) -> Evidence:
    documents = [unit_tokens(rng, 6, 8) * rng.uniform(0.5, 1.5) for _ in range(20)]
    queries = [unit_tokens(rng, 4, 8) for _ in range(20)]
    exact = np.array([[kernels.relevance(D, Q) for D in documents] for Q in queries])
    factor = np.array([kernels.separable_factor(D, kernels.elu) for D in documents])
    bound = np.array([factor * kernels.separable_factor(Q, kernels.elu) for Q in queries])
    same = float(np.mean(bound.argsort(1) != bound[0].argsort()))
    ranks = exact.argsort(1).argsort(1), bound.argsort(1).argsort(1)
    correlation = np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(*ranks, strict=True)])
    d = np.array([[0.01]])
    q = np.array([[1.0]])
    least = kernels.separable_factor(d, kernels.elu) * kernels.separable_factor(q, kernels.elu)
    above = kernels.relevance(d, q)
    detail = f"d = .01, q = 1: rel {above:g} above the bound {least:g}; one order of 20 documents for all of "
    detail += f"20 queries, mean rank correlation with rel {correlation:.2f}"
    return Evidence(same, 20, printed=excess(above, least), detail=detail)
