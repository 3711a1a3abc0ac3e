"""Check claims about random projections of pairs (Luan et al. 2021, §2.1) against the exact laws."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import special, stats

from theory import projections
from theory.claims import (
    DEVIATIONS,
    LUAN,
    Evidence,
    apart,
    deviation_above,
    deviations,
    excess,
    median_ratio,
    theorem,
)


def margins_and_dimensions(rng: np.random.Generator, samples: int) -> tuple[np.ndarray, np.ndarray]:
    return 10 ** rng.uniform(-2, -0.0001, samples), np.floor(10 ** rng.uniform(0, 3.5, samples))


GAUSSIAN = "Gaussian A, μ = ε > 0"
BOTH = "Gaussian A; Rademacher A with ties, exact for two-sparse pairs and vectors of small whole numbers"
GRID = np.array([0.02, 0.05, 0.1, 0.2, 0.4])


@theorem(
    "P(error) ≤ 4 exp(−(k/2)h(ε))",
    f"{LUAN}, Lemma 1",
    BOTH,
    claim="the probability β of a pairwise error is at most 4 exp(−(k/2)(ε²/2 − ε³/3))",
)
def lemma_1(rng: np.random.Generator, samples: int) -> Evidence:
    k = 2.0 ** np.arange(5, 12)
    empty = np.sum(projections.pairwise_error_bound(k[:-1, None], GRID) > 1)
    detail = f"empty (above 1) in {empty} of 30 cells k = 32…1024, ε = .02….4"
    lines = {
        "Gaussian A, exact": projections.pairwise_error(k, 0.1),
        "Lemma 1": projections.pairwise_error_bound(k, 0.1),
        "Lemma 1 with 2 for 4": projections.pairwise_error_bound(k, 0.1, 2),
    }
    panel = "error at ε = .1"
    curves = {"name": "k", "x": k, "panels": {panel: lines}, "log_y": [panel]}
    return replace(beyond_bound(rng, samples, 4), detail=detail, curves=curves)


def beyond_bound(rng: np.random.Generator, samples: int, constant: float) -> Evidence:
    """Compare the exact errors under both ensembles with c · exp(−(k/2) h(ε))."""
    margin, k = margins_and_dimensions(rng, samples)
    bound = projections.pairwise_error_bound(k, margin, constant)
    exact = projections.pairwise_error(k, margin)
    worst = max(excess(exact, bound), excess(projections.rademacher_error_two_sparse(k, margin), bound))
    pairs = min(samples, 80)
    for count, epsilon, error in whole_number_errors(rng, pairs):
        worst = max(worst, excess(error, projections.pairwise_error_bound(count, epsilon, constant)))
    return Evidence(worst, 2 * samples + pairs, tightness=median_ratio(exact, bound))


@theorem("Lemma 1's constant 4 can be 2, and ½ for Gaussian A", f"exact law; {LUAN}, Lemma 1", BOTH)
def lemma_1_with_constant_2(rng: np.random.Generator, samples: int) -> Evidence:
    margin, k = margins_and_dimensions(rng, samples)
    half = projections.pairwise_error_bound(k, margin, 0.5)
    evidence = beyond_bound(rng, samples, 2)
    beyond = excess(projections.pairwise_error(k, margin), half * (1 + 1e-12))
    return replace(evidence, violation=max(evidence.violation, beyond))


def whole_number_error(k: int, q: np.ndarray, delta: np.ndarray) -> float:
    """P(⟨Aq, Aδ⟩ ≤ 0) for Rademacher A, by an exact k-fold convolution of one row's contribution."""
    v = len(q)
    rows = 2 * (np.arange(2**v)[:, None] >> np.arange(v) & 1) - 1  # all rows, equally likely, up to scale
    products = (rows @ q) * (rows @ delta)
    row = np.bincount(products - products.min()) / len(products)
    total = np.ones(1)
    for _ in range(k):
        total = np.convolve(total, row)
    return float(total[: 1 - k * products.min()].sum()) if products.min() <= 0 else 0.0


def whole_number_errors(rng: np.random.Generator, pairs: int) -> Iterator[tuple[int, float, float]]:
    """Draw vectors of small whole numbers; yield (k, ε, exact Rademacher error with ties) for each pair."""
    for _ in range(pairs):
        q, delta = rng.integers(-2, 3, (2, 6)) + 3 * np.eye(2, 6, dtype=int)
        delta = delta if q @ delta >= 0 else -delta
        if q @ delta > 0:
            k = int(rng.integers(1, 120))
            yield k, projections.normalized_margin(q, delta, 0 * delta), whole_number_error(k, q, delta)


@theorem("P(error) = P(t_k > √k ε/√(1−ε²)) = ½I_{1−ε²}(k/2,½) = I_{(1−ε)/2}(k/2,k/2)", "exact law", GAUSSIAN)
def exact_law_closed_forms(rng: np.random.Generator, samples: int) -> Evidence:
    margin = rng.uniform(0.01, 0.9, samples)
    k = np.maximum(np.floor(np.minimum(10 ** rng.uniform(0, 3, samples), 150 / margin**2)), 1)
    error = projections.pairwise_error(k, margin)
    half = special.betainc(k / 2, 0.5, 1 - margin**2) / 2
    symmetric = special.betainc(k / 2, k / 2, (1 - margin) / 2)
    forms = (half, symmetric, np.exp(projections.log_pairwise_error(k, margin)))
    normal = error > 1e-200
    return Evidence(max(apart(form[normal], error[normal]) for form in forms), samples, tolerance=1e-7)


@theorem("P(error) is that of explicit k × v projections", "exact law", GAUSSIAN)
def exact_law_simulated(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    draws = 10 * samples
    for k, v in ((8, 12), (32, 40)):
        q, better, worse = rng.standard_normal((3, v))
        better = worse + (better + (excess(0, better @ q) + 3) / (q @ q) * q)  # so that ⟨q, δ⟩ > 0
        margin = projections.normalized_margin(q, better, worse)
        exact = projections.pairwise_error(k, margin)
        seed = int(rng.integers(2**31))
        drawn: dict[str, Any] = {"ensemble": "gaussian", "samples": draws, "seed": seed}
        estimate, _ = projections.simulated_error(k, q, better, worse, **drawn)
        worst = max(worst, deviations(estimate, draws, exact))
    return Evidence(worst, 2 * draws, tolerance=DEVIATIONS, unit="s.e.")


@theorem("P(error) ≤ ½(1−ε²)^{k/2}", "exact law", GAUSSIAN)
def exponential_bound(rng: np.random.Generator, samples: int) -> Evidence:
    margin, k = margins_and_dimensions(rng, samples)
    error = projections.pairwise_error(k, margin)
    bound = 0.5 * np.exp(k / 2 * np.log1p(-(margin**2)))
    tight = median_ratio(error[bound > 1e-280], bound[bound > 1e-280])
    return Evidence(excess(error, bound * (1 + 1e-9)), samples, tightness=tight)


@theorem("k* is the least k with P(error) ≤ β: 6764, 1082, 270, 67, 17 at β = .05", "exact law", GAUSSIAN)
def exact_required_dimension(rng: np.random.Generator, samples: int) -> Evidence:
    margin = rng.uniform(0.02, 0.9, samples)
    beta = rng.uniform(0.001, 0.4, samples)
    k = projections.required_dimension(margin, beta)
    enough = excess(projections.pairwise_error(k, margin), beta)
    before = np.where(k > 1, projections.pairwise_error(np.maximum(k - 1, 1), margin), 1.0)
    golden = [6764, 1082, 270, 67, 17], [13528, 2163, 539, 134, 32]
    dimensions = [projections.required_dimension(GRID, b) for b in (0.05, 0.01)]
    return Evidence(max(enough, excess(beta, before), apart(dimensions, golden)), samples, tolerance=1e-12)


@theorem(
    "k* ≈ z²(1−ε²)/ε² + (z²+1)/2 within .01 for ε ≤ .1, .06 at ε = .4", "exact law", "Gaussian A, β = .05"
)
def approximate_required_dimension(rng: np.random.Generator, samples: int) -> Evidence:
    margin = np.append(rng.uniform(0.01, 0.1, min(samples, 500)), 0.4)
    approximation = projections.required_dimension(margin, 0.05, "approximation")
    exact = projections.required_dimension(margin, 0.05, "exact_real")
    error = np.abs(approximation - exact)
    allowed = np.append(np.full(len(margin) - 1, 0.01), 0.065)
    return Evidence(excess(error, allowed), len(margin), detail=f"{error[-1]:.3f} at ε = .4")


@theorem(
    "k ≥ 2h(ε)⁻¹ ln(4/β) suffices",
    f"{LUAN}, Eq. 2",
    "Gaussian A; Rademacher A, two-sparse pairs",
    claim="k ≥ 2(ε²/2 − ε³/3)⁻¹ ln(4/β) keeps the probability of a pairwise error below β",
)
def equation_2(rng: np.random.Generator, samples: int) -> Evidence:
    return sufficient(rng, samples, "lemma1")


def sufficient(rng: np.random.Generator, samples: int, method: str) -> Evidence:
    """Check whether the k computed by `method` keeps the errors of both ensembles at or below β."""
    margin = rng.uniform(0.02, 1, samples)
    beta = rng.uniform(0.001, 0.5, samples)
    k, exact = (projections.required_dimension(margin, beta, name) for name in (method, "exact"))
    worst = max(excess(projections.pairwise_error(k, margin), beta), rademacher_excess(k, margin, beta))
    return Evidence(worst, 2 * samples, tightness=median_ratio(exact, k))


def rademacher_excess(k: np.ndarray, margin: np.ndarray, beta: float | np.ndarray) -> float:
    """Return the excess over β of a two-sparse pair's error at the next whole k; ties count as errors."""
    return excess(projections.rademacher_error_two_sparse(np.ceil(k), margin), beta)


@theorem(
    "k* grows as h(ε)⁻¹, and the bound 8.764 h(ε)⁻¹ is tight up to a constant factor",
    f"{LUAN}, §2.1.3, Figure 2; exact law",
    "Gaussian A, β = .05, ε → 0",
    claim="the bound is “tight up to a constant factor”, and the least sufficient k grows linearly with "
    "(ε²/2 − ε³/3)⁻¹",
)
def tight_up_to_a_constant(rng: np.random.Generator, samples: int) -> Evidence:
    margin = np.array([1e-3, 5e-4])
    z = special.ndtri(0.95)
    exact = projections.required_dimension(margin, 0.05, "exact_real")
    slope = exact * projections.distortion(margin)
    ratio = projections.required_dimension(margin, 0.05, "lemma1") / exact
    worst = max(apart(slope, z**2 / 2), apart(ratio, 4 * np.log(80) / z**2), apart(ratio, 6.4785899))
    detail = f"slope z²/2 = {z**2 / 2:.4f}, factor 4 ln 80/z² = {4 * np.log(80) / z**2:.4f}; "
    detail += f"at ε = {margin[-1]:g} {slope[-1]:.4f} and {ratio[-1]:.4f}"
    shown = np.array([0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02])
    signs = [projections.rademacher_required_dimension(x) for x in shown]
    lines = {"Gaussian A": projections.required_dimension(shown), "Rademacher A, two-sparse pair": signs}
    bound = {"the paper's 8.764 h(ε)⁻¹": projections.required_dimension(shown, method="lemma1")}
    x = (1 / projections.distortion(shown)).round()
    panel = "k* with error .05"
    curves = {"name": "h(ε)⁻¹", "x": x, "panels": {panel: lines}, "dotted": bound, "log_y": [panel]}
    return Evidence(worst, 2, 2e-3, tightness=float(1 / ratio[-1]), detail=detail, curves=curves)


@theorem(
    "P(error) ≤ β if k ≥ 12ε⁻² ln(4/β)",
    f"{LUAN}, Corollary 1",
    "Gaussian A; Rademacher A, two-sparse pairs",
    claim="for Gaussian or Rademacher A with k > 12ε⁻² ln(4/β), P(⟨Aq, Ad1⟩ ≤ ⟨Aq, Ad2⟩) ≤ β",
)
def corollary_1(rng: np.random.Generator, samples: int) -> Evidence:
    return replace(sufficient(rng, samples, "corollary1"), detail="equality suffices")


@theorem(
    "β ≤ 4exp(−ε²k/12) is k ≥ 12ε⁻² ln(4/β)",
    f"{LUAN}, A.2",
    GAUSSIAN,
    "it is k ≤ 12ε⁻² ln(4/β); the corollary needs 4exp(−ε²k/12) ≤ β, and holds",
    claim="ln β ≤ ln 4 − ε²k/12 “can be rearranged into” k ≥ 12ε⁻² ln(4/β)",
)
def corollary_1_proof(rng: np.random.Generator, samples: int) -> Evidence:
    margin = rng.uniform(0.02, 1, samples)
    beta = rng.uniform(0.001, 0.5, samples)
    k = projections.required_dimension(margin, beta, "corollary1")
    ours = excess(4 * np.exp(-(margin**2) * k / 12), beta * (1 + 1e-12))
    level = projections.pairwise_error(10, 0.2)  # satisfies the premise with β = P(error) at k = 10
    needed = projections.required_dimension(0.2, level, "corollary1")
    detail = f"ε = .2, k = 10: β = P(error) = {level:.4f} meets ln β ≤ ln 4 − ε²k/12, but k < {needed:.0f}"
    return Evidence(ours, samples, unit="dimensions", printed=excess(needed, 10), detail=detail)


@theorem(
    "k ≥ 24 L_Q L_D ln(4/β) keeps a Boolean pair in order",
    f"{LUAN}, Corollary 2",
    "one pair at a time, not all pairs of a collection at once",
    claim="with k ≥ 24 L_Q L_D ln(4/β), “any pairwise error” has a probability of at most β",
)
def corollary_2(rng: np.random.Generator, samples: int) -> Evidence:
    L_q = rng.integers(1, 30, samples)
    L_d = rng.integers(1, 300, samples)
    bound = projections.boolean_required_dimension(L_q, L_d, method="corollary2")
    margin = projections.boolean_margin(L_q, L_d)
    methods = ("exact", "corollary2")
    worst = excess(projections.pairwise_error(bound, margin), 0.05)
    worst = max(worst, rademacher_excess(bound, margin, 0.05))
    exact, printed = (projections.boolean_required_dimension(8, 100, method=name) for name in methods)
    worst = max(worst, apart([exact, printed], [4329, 84134.911]))
    tight = median_ratio(projections.boolean_required_dimension(L_q, L_d), bound)
    detail = f"L_Q = 8, L_D = 100: k* = {exact:.0f}, printed {printed:.0f}"
    return Evidence(worst, samples, tolerance=1e-7, tightness=tight, detail=detail)


@theorem(
    "any k ≥ k* has a low enough probability of error, k* being the lowest that has",
    f"{LUAN}, §2.1",
    "β = .05, two-sparse pair, ε = .2",
    "for the Gaussian; the Rademacher error is not monotone in k, and k* needs a definition",
    claim="“any k ≥ k*” has a sufficiently low probability of error, and some smaller k may have it too",
)
def rademacher_is_not_monotone(rng: np.random.Generator, samples: int) -> Evidence:
    k = np.arange(1, 400)
    rademacher = projections.rademacher_error_two_sparse(k, 0.2)
    first = projections.rademacher_required_dimension(0.2, definition="first")
    last = int(k[rademacher > 0.05][-1])
    gaussian = np.max(np.diff(projections.pairwise_error(k[:, None], GRID), axis=0))
    golden = apart([first, last, projections.rademacher_required_dimension(0.2)], [60, 73, 74])
    printed = excess(rademacher[first - 1 :], 0.05)
    detail = f"first k with P ≤ .05 is {first}, last with P > .05 is {last}; Gaussian k* = 67"
    x = k[53:80:2]
    panel = "error at ε = .2"
    lines = {"Gaussian A": projections.pairwise_error(x, 0.2), "Rademacher A": rademacher[x - 1]}
    curves: dict[str, Any] = {"name": "k", "x": x, "panels": {panel: lines}, "scale": "linear"}
    curves |= {"dotted": {"β = .05": np.full(len(x), 0.05)}}
    return Evidence(max(float(gaussian), golden), len(k), printed=printed, detail=detail, curves=curves)


@theorem(
    "P(|‖Ax‖² − ‖x‖²| > ε‖x‖²) < 2 exp(−(k/2)h(ε))",
    f"{LUAN}, A.1, Eq. 4",
    "0 < ε < 1; Gaussian A, exact; Rademacher A for x = (1, 1)",
    claim="P(|‖Ax‖² − ‖x‖²| > ε‖x‖²) < 2 exp(−(k/2)(ε²/2 − ε³/3))",
)
def equation_4(rng: np.random.Generator, samples: int) -> Evidence:
    epsilon = rng.uniform(0.01, 0.99, samples)
    k = np.floor(10 ** rng.uniform(0, 3, samples))
    bound = 2 * np.exp(-0.5 * k * projections.distortion(epsilon))
    gaussian = stats.chi2.cdf((1 - epsilon) * k, k) + stats.chi2.sf((1 + epsilon) * k, k)
    counts = stats.binom(k, 0.5)  # ‖Ax‖² = (2/k)‖x‖² · (number of rows with two equal signs)
    rademacher = counts.cdf(np.ceil((1 - epsilon) * k / 2) - 1) + counts.sf(np.floor((1 + epsilon) * k / 2))
    worst = max(excess(gaussian, bound), excess(rademacher, bound))
    return Evidence(worst, 2 * samples, tightness=median_ratio(gaussian, bound))


@theorem(
    "P(|⟨Ax,Ay⟩ − ⟨x,y⟩| ≥ (ε/2)(‖x‖² + ‖y‖²)) ≤ 4 exp(−(k/2)h(ε))",
    f"{LUAN}, A.1, Eq. 5",
    "unit vectors, 0 < ε < 1; explicit matrices of both kinds",
    claim="P(|⟨Ax, Ay⟩ − ⟨x, y⟩| ≥ (ε/2)(‖x‖² + ‖y‖²)) ≤ 4 exp(−(k/2)(ε²/2 − ε³/3))",
)
def equation_5(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    ratios = []
    draws = 2 * samples
    for cosine in (0.0, 0.6):
        pair = np.array([[1.0, 0.0, 0.0], [cosine, np.sqrt(1 - cosine**2), 0.0]]).T
        for k, epsilon in ((8, 0.5), (32, 0.3)):
            for signs in (False, True):
                A = rng.standard_normal((draws, k, 3))
                projected = (np.sign(A) if signs else A) @ pair / np.sqrt(k)
                off = np.abs((projected[..., 0] * projected[..., 1]).sum(1) - cosine)
                share = float(np.mean(off >= epsilon))
                bound = projections.pairwise_error_bound(k, epsilon)
                worst = max(worst, deviation_above(share, draws, bound))
                ratios.append(share / bound)
    return Evidence(worst, 8 * draws, DEVIATIONS, "s.e.", tightness=float(np.median(ratios)))
