"""Claims about random projections of pairs: Luan et al. 2021, §2.1, and the exact laws behind it."""

import numpy as np
from scipy import special
from studies.theory_claims import LUAN, Evidence, apart, excess, median_ratio, standard_errors, theorem

from theory import projections, recall


def margins_and_dimensions(rng: np.random.Generator, samples: int) -> tuple[np.ndarray, np.ndarray]:
    return 10 ** rng.uniform(-2, -0.0001, samples), np.floor(10 ** rng.uniform(0, 3.5, samples))


GAUSSIAN = "Gaussian A, μ = ε > 0"
GRID = np.array([0.02, 0.05, 0.1, 0.2, 0.4])


@theorem("P(error) ≤ 4 exp(−(k/2)h(ε))", f"{LUAN}, Lemma 1", GAUSSIAN)
def lemma_1(rng: np.random.Generator, samples: int) -> Evidence:
    margin, k = margins_and_dimensions(rng, samples)
    exact, bound = projections.pairwise_error(k, margin), projections.pairwise_error_bound(k, margin)
    grid = projections.pairwise_error_bound(2.0 ** np.arange(5, 11)[:, None], GRID)
    detail = f"empty (above 1) in {np.sum(grid > 1)} of 30 cells k = 32…1024, ε = .02….4"
    return Evidence(excess(exact, bound), samples, tightness=median_ratio(exact, bound), detail=detail)


@theorem(
    "Lemma 1's constant 4 can be 2",
    f"exact law; {LUAN}, Lemma 1",
    "Gaussian; Rademacher with ties, exact for two-sparse pairs and for vectors of small whole numbers",
)
def lemma_1_with_constant_2(rng: np.random.Generator, samples: int) -> Evidence:
    margin, k = margins_and_dimensions(rng, samples)
    bound = projections.pairwise_error_bound(k, margin, constant=2)
    gaussian = projections.pairwise_error(k, margin)
    rademacher = projections.rademacher_error_two_sparse(k, margin)
    worst = max(excess(gaussian, bound), excess(rademacher, bound))
    pairs = min(samples, 200)
    for _ in range(pairs):
        q, delta = rng.integers(-2, 3, (2, 6)) + 3 * np.eye(2, 6, dtype=int)
        delta = delta if q @ delta >= 0 else -delta
        if q @ delta > 0:
            k = int(rng.integers(1, 120))
            margin = projections.normalized_margin(q, delta, 0 * delta)
            allowed = projections.pairwise_error_bound(k, margin, constant=2)
            worst = max(worst, excess(whole_number_error(k, q, delta), allowed))
    return Evidence(worst, 2 * samples + pairs, tightness=median_ratio(gaussian, bound))


def every_row(v: int) -> np.ndarray:
    """The 2^v equally likely rows of a Rademacher matrix, up to scale."""
    return 2 * (np.arange(2**v)[:, None] >> np.arange(v) & 1) - 1


def whole_number_error(k: int, q: np.ndarray, delta: np.ndarray) -> float:
    """P(⟨Aq, Aδ⟩ ≤ 0) of a Rademacher A, exactly: the k-fold convolution of what one row contributes."""
    rows = every_row(len(q))
    products = (rows @ q) * (rows @ delta)
    row = np.bincount(products - products.min()) / len(products)
    total = np.ones(1)
    for _ in range(k):
        total = np.convolve(total, row)
    return float(total[: 1 - k * products.min()].sum()) if products.min() <= 0 else 0.0


@theorem("P(error) = P(t_k > √k ε/√(1−ε²)) = ½I_{1−ε²}(k/2,½) = I_{(1−ε)/2}(k/2,k/2)", "exact law", GAUSSIAN)
def exact_law_closed_forms(rng: np.random.Generator, samples: int) -> Evidence:
    margin = rng.uniform(0.01, 0.9, samples)
    k = np.floor(np.minimum(10 ** rng.uniform(0, 3, samples), 600 / margin**2 / 4))
    k = np.maximum(k, 1)
    error = projections.pairwise_error(k, margin)
    kept = error > 1e-200
    half = special.betainc(k / 2, 0.5, 1 - margin**2) / 2
    symmetric = special.betainc(k / 2, k / 2, (1 - margin) / 2)
    worst = max(apart(half[kept], error[kept]), apart(symmetric[kept], error[kept]))
    logs = apart(np.exp(projections.log_pairwise_error(k, margin))[kept], error[kept])
    return Evidence(max(worst, logs), samples, tolerance=1e-7)


@theorem("P(error) is that of explicit k × v projections", "exact law", GAUSSIAN)
def exact_law_simulated(rng: np.random.Generator, samples: int) -> Evidence:
    worst, draws = 0.0, 10 * samples
    for k, v in ((8, 12), (32, 40)):
        q, better, worse = rng.standard_normal((3, v))
        better = worse + (better + (excess(0, better @ q) + 3) / (q @ q) * q)  # ⟨q, δ⟩ > 0
        margin = projections.normalized_margin(q, better, worse)
        exact = projections.pairwise_error(k, margin)
        seed = int(rng.integers(2**31))
        found, _ = projections.simulated_error(
            k, q, better, worse, ensemble="gaussian", samples=draws, seed=seed
        )
        worst = max(worst, standard_errors(found, np.sqrt(exact * (1 - exact) / draws), exact))
    return Evidence(worst, 2 * draws, tolerance=4, unit="s.e.")


@theorem("P(error) ≤ ½(1−ε²)^{k/2}", "exact law", GAUSSIAN)
def exponential_bound(rng: np.random.Generator, samples: int) -> Evidence:
    margin, k = margins_and_dimensions(rng, samples)
    error, bound = projections.pairwise_error(k, margin), 0.5 * np.exp(k / 2 * np.log1p(-(margin**2)))
    kept = bound > 1e-280
    return Evidence(
        excess(error, bound * (1 + 1e-9)), samples, tightness=median_ratio(error[kept], bound[kept])
    )


@theorem("k* is the least k with P(error) ≤ β: 6764, 1082, 270, 67, 17 at β = .05", "exact law", GAUSSIAN)
def exact_required_dimension(rng: np.random.Generator, samples: int) -> Evidence:
    margin, beta = rng.uniform(0.02, 0.9, samples), rng.uniform(0.001, 0.4, samples)
    k = projections.required_dimension(margin, beta)
    enough = excess(projections.pairwise_error(k, margin), beta)
    before = np.where(k > 1, projections.pairwise_error(np.maximum(k - 1, 1), margin), 1.0)
    golden = [6764, 1082, 270, 67, 17], [13528, 2163, 539, 134, 32]
    found = [projections.required_dimension(GRID, b) for b in (0.05, 0.01)]
    return Evidence(max(enough, excess(beta, before), apart(found, golden)), samples, tolerance=1e-12)


@theorem(
    "k* ≈ z²(1−ε²)/ε² + (z²+1)/2 within .01 for ε ≤ .1, .06 at ε = .4", "exact law", "Gaussian A, β = .05"
)
def approximate_required_dimension(rng: np.random.Generator, samples: int) -> Evidence:
    margin = np.append(rng.uniform(0.01, 0.1, min(samples, 500)), 0.4)
    error = np.abs(
        projections.required_dimension(margin, 0.05, "approximation")
        - projections.required_dimension(margin, 0.05, "exact_real")
    )
    allowed = np.append(np.full(len(margin) - 1, 0.01), 0.065)
    return Evidence(excess(error, allowed), len(margin), detail=f"{error[-1]:.3f} at ε = .4")


@theorem("k ≥ 2h(ε)⁻¹ ln(4/β) suffices", f"{LUAN}, Eq. 2", GAUSSIAN)
def equation_2(rng: np.random.Generator, samples: int) -> Evidence:
    margin, beta = rng.uniform(0.02, 1, samples), rng.uniform(0.001, 0.5, samples)
    k = projections.required_dimension(margin, beta, "lemma1")
    exact = projections.required_dimension(margin, beta)
    return Evidence(
        excess(projections.pairwise_error(k, margin), beta), samples, tightness=median_ratio(exact, k)
    )


@theorem(
    "k* grows as h(ε)⁻¹, and the bound 8.764 h(ε)⁻¹ is tight up to a constant factor",
    f"{LUAN}, §2.1.3, Figure 2; exact law",
    "Gaussian A, β = .05, ε → 0",
)
def tight_up_to_a_constant(rng: np.random.Generator, samples: int) -> Evidence:
    margin, z = np.array([1e-3, 5e-4]), special.ndtri(0.95)
    exact = projections.required_dimension(margin, 0.05, "exact_real")
    slope = exact * projections.distortion(margin)
    ratio = projections.required_dimension(margin, 0.05, "lemma1") / exact
    worst = max(apart(slope, z**2 / 2), apart(ratio, 4 * np.log(80) / z**2), apart(ratio, 6.4785899))
    detail = (
        f"slope z²/2 = {z**2 / 2:.4f}, factor 4 ln 80/z² = {4 * np.log(80) / z**2:.4f}; "
        f"at ε = {margin[-1]:g} {slope[-1]:.4f} and {ratio[-1]:.4f}"
    )
    return Evidence(worst, 2, tolerance=2e-3, tightness=float(1 / ratio[-1]), detail=detail)


@theorem(
    "P(error) ≤ β if k > 12ε⁻² ln(4/β), because β ≤ 4exp(−ε²k/12) rearranges into k ≥ 12ε⁻² ln(4/β)",
    f"{LUAN}, Corollary 1 and A.2",
    GAUSSIAN,
    "k ≥ 12ε⁻² ln(4/β), equality included, suffices; that premise rearranges into k ≤ 12ε⁻² ln(4/β)",
)
def corollary_1(rng: np.random.Generator, samples: int) -> Evidence:
    margin, beta = rng.uniform(0.02, 1, samples), rng.uniform(0.001, 0.5, samples)
    k = projections.required_dimension(margin, beta, "corollary1")
    ours = excess(projections.pairwise_error_bound(k, margin), beta * (1 + 1e-12))
    level = projections.pairwise_error(10, 0.2)  # satisfies the premise with β = P(error) at k = 10
    needed = projections.required_dimension(0.2, level, "corollary1")
    exact = projections.required_dimension(margin, beta)
    detail = f"ε = .2, k = 10: β = P(error) = {level:.4f} meets the premise, yet k < {needed:.0f}"
    return Evidence(
        ours, samples, tightness=median_ratio(exact, k), printed=excess(needed, 10), detail=detail
    )


@theorem(
    "k ≥ 24 L_Q L_D ln(4/β) keeps a Boolean pair in order",
    f"{LUAN}, Corollary 2",
    "one pair at a time, not all pairs of a collection at once",
)
def corollary_2(rng: np.random.Generator, samples: int) -> Evidence:
    L_q, L_d = rng.integers(1, 30, samples), rng.integers(1, 300, samples)
    bound = projections.boolean_required_dimension(L_q, L_d, method="corollary2")
    worst = excess(projections.pairwise_error(bound, projections.boolean_margin(L_q, L_d)), 0.05)
    exact = projections.boolean_required_dimension(8, 100)
    golden = max(
        apart(exact, 4329),
        apart(projections.boolean_required_dimension(8, 100, method="corollary2"), 84134.911),
    )
    tight = median_ratio(projections.boolean_required_dimension(L_q, L_d), bound)
    return Evidence(
        max(worst, golden),
        samples,
        tolerance=1e-7,
        tightness=tight,
        detail=f"L_Q = 8, L_D = 100: k* = {exact:.0f}, printed 84135",
    )


@theorem(
    "P(error) is a function of k and ε",
    f"presumed by the bins of {LUAN}, Figure 2 (Rademacher)",
    "k × v projection",
    "true for the Gaussian; a Rademacher row has variance 1 + ε² − 2Σ q̄²δ̄²",
)
def rademacher_variance(rng: np.random.Generator, samples: int) -> Evidence:
    signs = every_row(8)
    worst, instances = 0.0, min(samples, 200)
    for _ in range(instances):
        q, better, worse = rng.standard_normal((3, 8)) * (rng.random((3, 8)) < 0.6) + np.eye(3, 8)
        if (margin := projections.normalized_margin(q, better, worse)) <= 0:
            better, worse, margin = worse, better, -margin
        delta = (better - worse) / np.linalg.norm(better - worse)
        product = (signs @ q) * (signs @ delta) / np.linalg.norm(q)  # every equally likely row
        predicted = 1 + margin**2 - 2 * projections.concentration(q, better, worse)
        worst = max(worst, apart(1 + product.var(), 1 + predicted), apart(1 + product.mean(), 1 + margin))
    sparse, gaussian = projections.rademacher_error_two_sparse(64, 0.2), projections.pairwise_error(64, 0.2)
    detail = f"ε = .2, k = 64: two-sparse Rademacher {sparse:.4f}, Gaussian {gaussian:.4f}"
    return Evidence(worst, instances, printed=float(abs(sparse - gaussian)), detail=detail)


@theorem(
    "any k ≥ k* has a low enough probability of error, k* being the lowest that has",
    f"{LUAN}, §2.1",
    "β = .05, two-sparse pair, ε = .2",
    "for the Gaussian; the Rademacher error is not monotone in k, and k* needs a definition",
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
    return Evidence(max(float(gaussian), golden), len(k), printed=printed, detail=detail)


@theorem(
    "whether ⟨Aq,Ad1⟩ = ⟨Aq,Ad2⟩ counts as an error does not matter (≤ in one place, < in another)",
    f"{LUAN}, §2.1 and Lemma 1",
    "k × v projection",
    "for the Gaussian, where ties have probability 0; with Rademacher they do not",
)
def rademacher_ties(rng: np.random.Generator, samples: int) -> Evidence:
    margin, k = float(np.sqrt(0.5)), np.array([1, 4, 8])  # a row contributes 2ε or exactly 0
    counted = projections.rademacher_error_two_sparse(k, margin)
    strict = projections.rademacher_error_two_sparse(k, margin, ties=False)
    worst = max(apart(counted, 0.5**k), float(np.max(np.abs(strict))))
    detail = f"q = e1, δ = e1 + e2, k = 1: {counted[0]:.2f} counting ties, {strict[0]:.2f} without"
    return Evidence(worst, len(k), printed=float(np.max(counted - strict)), detail=detail)


@theorem(
    "inner products within ε need Ω(ε⁻²) dimensions of any encoder, hence capacity limits of dual encoders",
    f"{LUAN}, §2.2",
    "n orthonormal documents, each the query for itself",
    "the limit is one of distortion, not of ranking: two dimensions keep every first document, for any n",
)
def distortion_is_not_ranking(rng: np.random.Generator, samples: int) -> Evidence:
    n = min(samples, 1000)
    angles = 2 * np.pi * np.arange(n) / n
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    scores = points @ points.T
    lost = float(np.mean(scores.argmax(axis=1) != np.arange(n)))
    distortion = np.abs(scores - np.eye(n)).max()
    margin = projections.normalized_margin(np.eye(3)[0], np.eye(3)[0], np.eye(3)[1])
    needed = recall.required_dimension_recall(np.full(n - 1, margin), 1, method="t_union")
    detail = (
        f"n = {n} points on a circle: each first for itself, inner products off by up to {distortion:.2f}; "
        f"a random projection has enough with k = {needed:.0f}"
    )
    return Evidence(lost, n, detail=detail)


@theorem(
    "q → Sq, d → S⁻¹d keeps every score and changes the margins, hence k*",
    "exact law; Luan et al. 2021, Def. 2.1",
    "S diagonal, positive",
)
def margins_depend_on_the_split(rng: np.random.Generator, samples: int) -> Evidence:
    q, better, worse, scale = rng.lognormal(size=(4, samples, 12))
    kept = apart((q * scale * (better / scale)).sum(-1), (q * better).sum(-1))
    before = projections.normalized_margin(q, better, worse)
    after = projections.normalized_margin(q * scale, better / scale, worse / scale)
    detail = (
        f"margins change by a factor {np.median(np.exp(np.abs(np.log(after / before)))):.2f} in the median"
    )
    return Evidence(kept, samples, detail=detail)
