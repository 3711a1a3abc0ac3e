"""What XTR's imputation ranks by: laws beside Lee et al. 2023, Eq. 4."""

import numpy as np
from scipy import stats

from theory import excess as law
from theory import token_retrieval
from theory.claims import DEVIATIONS, Evidence, apart, excess, theorem
from theory.claims.xtr import EXACT_SEARCH, pools


@theorem("f_XTR' = (1/n)Σ m_i + (1/n)Σ (M_i − m_i)⁺", "excess over a floor", EXACT_SEARCH)
def imputation_is_excess(rng: np.random.Generator, samples: int) -> Evidence:
    """Ties included: a similarity that equals m_i counts as m_i, whether retrieved or imputed."""
    worst = 0.0
    count = min(samples, 300)
    for P, owners, k in pools(rng, count):
        P = P.round(1)  # ties
        floors = token_retrieval.imputed_similarities(P, k)
        maxima = np.stack([P[:, owners == document].max(1) for document in range(owners.max() + 1)], axis=1)
        ours = floors.mean() + law.excess(maxima, floors)
        worst = max(worst, float(np.abs(ours - token_retrieval.imputed_scores(P, owners, k)).max()))
    return Evidence(worst, count)


@theorem(
    "approximate search scores by the excess over the visited tokens' floors, and never above exact search",
    "excess over a floor",
    "each query token visits at least k tokens of the pool; with fewer, missing documents can be overrated",
)
def approximate_imputation(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    count = min(samples, 300)
    below = 0
    for P, owners, k in pools(rng, count):
        visited = rng.random(P.shape) < 0.7
        visited[:, :k] = True
        floors = np.array([np.sort(row[seen])[-k] for row, seen in zip(P, visited, strict=True)])
        scores = np.empty(owners.max() + 1)
        for document in range(len(scores)):
            retrieved = visited & (owners == document) & (floors[:, None] <= P)
            best = np.where(retrieved, P, -np.inf).max(1)
            scores[document] = np.where(np.isfinite(best), best, floors).mean()
        reached = np.where(visited, P, floors[:, None])
        maxima = np.stack([reached[:, owners == d].max(1) for d in range(len(scores))], axis=1)
        exact = token_retrieval.imputed_scores(P, owners, k)
        off = np.abs(floors.mean() + law.excess(maxima, floors) - scores).max()
        worst = max(worst, float(off), excess(scores, exact))
        below += bool((scores < exact - 1e-9).any())
    return Evidence(worst, count, detail=f"lower for some document in {below} of {count} pools")


@theorem(
    "E τ = a + s(ψ(pn+1) − ψ(k)), Var τ = s²(ψ'(k) − ψ'(pn+1)): a floor falls by s for each unit of IDF",
    "quantile of an exponential tail",
    "pn similarities a + s·E, E exponential of mean 1, and the rest below",
)
def floor_by_frequency(rng: np.random.Generator, samples: int) -> Evidence:
    """Means by simulation, both moments by integrals: exp((a − τ)/s) has the law Beta(k, pn − k + 1)."""
    draws = max(samples, 200)
    worst = 0.0
    inexact = 0.0
    for k, in_tail in ((1, 40), (10, 40), (40, 40), (10, 4000), (100, 4000)):
        values = 0.3 + 0.1 * rng.exponential(size=(draws, in_tail))
        floors = np.partition(values, in_tail - k, axis=1)[:, in_tail - k]
        mean, variance = law.floor_moments(k, in_tail, 0.3, 0.1)
        worst = max(worst, abs(floors.mean() - mean) / np.sqrt(variance / draws))
        beyond = stats.beta(k, in_tail - k + 1)
        expected = beyond.expect(lambda u: 0.3 - 0.1 * np.log(u))
        square = beyond.expect(lambda u: np.log(u) ** 2)
        spread = 0.01 * square - (expected - 0.3) ** 2
        inexact = max(inexact, abs(mean - expected) / 0.1, apart(variance, spread))
    slope = (law.floor_moments(10, 4000, 0.3, 0.1)[0] - law.floor_moments(10, 400, 0.3, 0.1)[0]) / 0.1
    inexact = max(inexact, excess(abs(slope - np.log(10)), 1 / 800))  # ψ(n+1) = ln n + 1/(2n) − …
    detail = f"a tenth of the frequency lowers τ by {slope:.3f} s, ln 10 = {np.log(10):.3f}"
    worst = max(worst, inexact * 1e6)
    return Evidence(worst, 5 * draws, tolerance=DEVIATIONS, unit="standard errors", detail=detail)


@theorem(
    "imputation clips IDF: pn < k' matches above τ raise the floor of all others by −s ln(1 − pn/k')",
    "quantile of a mixture",
    "a share p of matches above a background that is the same for all tokens",
)
def clipped_frequency(rng: np.random.Generator, samples: int) -> Evidence:
    """Excess need not fall with frequency: a rare token whose neighbours are near has the higher floor."""
    share = 1e-3
    worst = 0.0
    for p in (1e-2, 3e-2, 0.1):  # frequent: the floor of the matches alone, to what the background adds
        mixture = law.mixture_floor(share, [p, 1 - p], [0.7, 0.0], [0.05, 0.05])
        worst = max(worst, abs(mixture - (0.7 + 0.05 * np.log(p / share))))
    for p in (1e-6, 1e-5, 1e-4, 0.9 * share):  # rare: the background's, and what matches add if all exceed it
        rest = law.mixture_floor(share, [1 - p], [0.0], [0.05])
        mixture = law.mixture_floor(share, [p, 1 - p], [0.7, 0.0], [0.05, 0.05])
        worst = max(worst, abs(mixture - rest + 0.05 * np.log1p(-p / share)))
    common = law.mixture_floor(share, [1e-2, 0.99], [0.5, 0.0], [0.05, 0.05])
    rare = law.mixture_floor(share, [1e-4, 1e-2, 0.9899], [0.7, 0.62, 0.0], [0.05, 0.05, 0.05])
    if rare <= common:
        worst = np.inf
    detail = (
        f"counterexample to order by IDF: τ {rare:.3f} of a token 100 times as rare, against {common:.3f}"
    )
    return Evidence(float(worst), 9, tolerance=1e-5, detail=detail)


@theorem(
    "ln r(M)/b(M) = ln(1−π) + softplus((M − τ*)/t): Σ (M_i − τ_i*)⁺/t_i and a constant, within n ln 2",
    "Neyman and Pearson",
    "exponential tails, independent query tokens",
)
def excess_is_likelihood_ratio(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    count = min(samples, 500)
    a = rng.uniform(-1, 1, count)
    s = rng.uniform(0.02, 0.2, count)
    s1 = s * rng.uniform(1.1, 10, count)
    pi = rng.uniform(0.02, 0.98, count)
    M = a + s1 * rng.exponential(size=count)
    background = stats.expon.logpdf(M, a, s)
    relevant = np.logaddexp(np.log1p(-pi) + background, np.log(pi) + stats.expon.logpdf(M, a, s1))
    ratio = law.log_likelihood_ratio(M, a, s, s1, pi)
    steps = (M - law.best_floor(a, s, s1, pi)) * (1 / s - 1 / s1)
    above = np.maximum(steps, 0)
    gap = ratio - np.log1p(-pi) - above
    worst = max(float(np.abs(ratio - (relevant - background)).max()), excess(-gap, 0), excess(gap, np.log(2)))
    beyond = np.exp(-np.maximum(law.best_floor(a, s, s1, pi) - a, 0) / s)
    worst = max(worst, apart(law.best_share(s, s1, pi), beyond))
    return Evidence(worst, count, tolerance=1e-8, tightness=float(np.median(gap / np.log(2))))


@theorem(
    "no ranking by maxima beats the log-likelihood ratio; floors at one share ignore how frequent tokens are",
    "Neyman and Pearson",
    "exponential tails of one scale, eight query tokens of frequencies 1 to 1,000",
)
def best_ranking(rng: np.random.Generator, samples: int) -> Evidence:
    """Area: P(a relevant document scores above another), with its standard error of at most 1/√(4C).

    The law's ratio orders documents of all frequencies as the densities' ratio does, and the excess over its
    best floors as the excess over floors at its best share.
    """
    count = 400 * max(min(samples, 100), 10)
    s = 0.05
    s1 = 0.2
    pi = 0.4
    a = 0.3 + s * np.log(np.logspace(0, 3, 8))[:, None]
    other = s * rng.exponential(size=(8, count))
    relevant = np.where(rng.random((8, count)) < pi, s1, s) * rng.exponential(size=(8, count))
    shares = float(law.best_share(s, s1, pi)) * np.array([0.01, 0.1, 1, 3, 9])
    areas = []
    moved = 0.0
    for share in shares:
        floors = np.full(8, -s * np.log(share))
        area = _area(law.excess(relevant, floors), law.excess(other, floors))
        frequent = _area(law.excess(a + relevant, a[:, 0] + floors), law.excess(a + other, a[:, 0] + floors))
        areas.append(area)
        moved = max(moved, abs(area - frequent))
    best = law.best_floor(a[:, 0], s, s1, pi)
    moved = max(moved, abs(areas[2] - _area(law.excess(a + relevant, best), law.excess(a + other, best))))
    densities = []
    for M in (relevant, other):
        matches = np.log(pi) + stats.expon.logpdf(M, scale=s1)
        rest = stats.expon.logpdf(M, scale=s)
        densities.append((np.logaddexp(np.log1p(-pi) + rest, matches) - rest).sum(0))
    ratio = _area(*densities)
    ours = (law.log_likelihood_ratio(a + M, a, s, s1, pi).sum(0) for M in (relevant, other))
    moved = max(moved, abs(ratio - _area(*ours)))
    plain = _area(relevant.mean(0), other.mean(0))
    worst = max(*areas, plain) - ratio
    listed = ", ".join(f"{area:.4f} at {share:.2g}" for area, share in zip(areas, shares, strict=True))
    detail = f"areas: excess {listed} of the documents, MaxSim {plain:.4f}, the ratio {ratio:.4f}"
    return Evidence(max(worst * np.sqrt(4 * count), moved * 1e7), count, tolerance=DEVIATIONS, detail=detail)


def _area(score: np.ndarray, against: np.ndarray) -> float:
    ranks = stats.rankdata(np.concatenate([score, against]))[: len(score)].mean()
    return float((ranks - (len(score) + 1) / 2) / len(against))
