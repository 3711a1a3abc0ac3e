"""Claims about what embeddings can answer: Weller et al. 2025 (LIMIT), and the laws of `theory.capacity`."""

import numpy as np
from studies.curves import Curves
from studies.theory_claims import LIMIT, Evidence, apart, excess, theorem

from theory import capacity, projections


@theorem(
    "from some n on, a dimension answers a vanishing share of the sets of k, however large the dimension",
    f"{LIMIT}, abstract",
    "all sets of k = 2 of n documents, exact scores",
    "below h = 2k only; 2k numbers answer all sets of any n, so that margin and precision are the limit",
    quote="the number of top-k subsets of documents capable of being returned as the result of some query is "
    "limited by the dimension of the embedding",
)
def sets_by_dimension(rng: np.random.Generator, samples: int) -> Evidence:
    worst, answered = 0.0, 0.0
    for n, k in ((6, 2), (46, 2), (150, 2), (9, 3), (14, 3)):
        sets = capacity.all_sets(n, k)
        found = capacity.gaps(capacity.moment_queries(n, sets), capacity.moment_vectors(n, k), sets)
        worst, answered = max(worst, excess(0, found)), float(np.mean(found > 0))
        if k == 2:
            worst = max(worst, apart(found.min(), capacity.moment_gap(n)))
    detail = (
        f"h = 4 answers all {11175:,} pairs of 150 documents, with a cosine gap of "
        f"{capacity.moment_gap(150):.1e}"
    )
    return Evidence(
        worst,
        5,
        tolerance=1e-6,
        unit="of all sets",
        printed=answered,
        allowed=0.5,
        because="“limited”",
        detail=detail,
    )


@theorem("2k − 1 numbers leave a set of k unanswered from n = 3k on (Radon)", "lower bound on dimension")
def radon(rng: np.random.Generator, samples: int) -> Evidence:
    worst, count = 0.0, min(samples, 60)
    for instance in range(count):
        k = 1 + instance % 3
        points = rng.standard_normal((2 * k + 1, 2 * k - 1))
        part = capacity.unanswerable_set(points)
        scores = rng.standard_normal((200, 2 * k - 1)) @ points.T
        others = np.delete(scores, part, axis=1)
        worst = max(worst, excess(scores[:, part].min(1), others.max(1)), float(len(part) > k))
    return Evidence(worst, count, tolerance=1e-12)


@theorem("a cosine gap γ of all sets of k needs C(n, k) ≤ (1 + 2/γ)^h (packing)", "upper bound on the margin")
def packing(rng: np.random.Generator, samples: int) -> Evidence:
    worst, ratios = 0.0, []
    for n, k in ((4, 1), (8, 2), (46, 2), (9, 3)):
        sets = capacity.all_sets(n, k)
        pairs = (
            (capacity.moment_queries(n, sets), capacity.moment_vectors(n, k)),
            ((np.eye(n)[sets].sum(1) - k / n) / np.sqrt(k * (1 - k / n)), np.eye(n)),
        )
        for queries, documents in pairs:
            gap, bound = (
                capacity.gaps(queries, documents, sets).min(),
                capacity.packing_gap(n, k, documents.shape[1]),
            )
            worst = max(worst, excess(gap, bound))
            ratios.append(gap / bound)
    return Evidence(worst, len(ratios), tightness=float(np.median(ratios)))


@theorem(
    "a random projection of one-hot documents to O(k² ln n) numbers answers all sets, at a constant margin",
    "union bound over the exact law",
    "Gaussian A, failure .05",
)
def random_projection_answers(rng: np.random.Generator, samples: int) -> Evidence:
    n, lost, draws = 12, 0, min(samples, 200)
    h, sets = int(capacity.random_dimension(n, failure=0.05)), capacity.all_sets(n)
    for _ in range(draws):
        documents = rng.standard_normal((n, h))
        lost += bool(capacity.gaps(documents[sets].sum(1), documents, sets).min() <= 0)
    found = lost / draws
    needed = [capacity.random_dimension(n) for n in (46, 1000, 50_000)]
    detail = (
        f"h = {h} for 12 documents: {found:.3f} of the draws fail; some projection answers all pairs of 46, "
        + ("1,000, 50,000 documents in {:.0f}, {:.0f}, {:.0f} dimensions".format(*needed))
    )
    margin = projections.normalized_margin(np.eye(3)[0] + np.eye(3)[1], np.eye(3)[0], np.eye(3)[2])
    return Evidence(
        max(excess(found, 0.05 + 4 * np.sqrt(0.05 / draws)), abs(margin - 0.5)), draws, detail=detail
    )


@theorem("√(mn)/‖2R−1‖₂ ≤ sign rank ≤ 1 + sign changes of a row", "Forster 2002; Alon, Frankl, Rödl 1985")
def sign_rank(rng: np.random.Generator, samples: int) -> Evidence:
    pairs = np.zeros((66, 12))
    np.put_along_axis(pairs, capacity.all_sets(12), 1, 1)
    hadamard = np.array([[1.0]])
    for _ in range(5):
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    cases = [pairs, (hadamard + 1) / 2, *(rng.random((min(samples, 40), 9, 12)) < 0.5)]
    bounds = [(capacity.forster_bound(R), capacity.sign_change_bound(R)) for R in cases]
    low, high = np.array(bounds).T
    detail = (
        f"at least {low[0]:.2f}, at most {high[0]:.0f} for all pairs of 12; at least "
        f"{low[1]:.2f} for Hadamard's 32 × 32"
    )
    return Evidence(max(excess(low, high), apart(low[1], np.sqrt(32))), len(cases), detail=detail)


@theorem(
    "the max over tokens of 2 numbers answers any relevance matrix",
    "a token for each query a document answers",
)
def ring(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    for queries in (3, 50, 300):
        relevance, tokens = rng.random((queries, 6)) < 0.4, capacity.ring(queries)
        scores = np.array([np.max(np.where(own, tokens @ tokens.T, -1), axis=1) for own in relevance.T]).T
        worst = max(
            worst, excess(1, scores[relevance]), excess(scores[~relevance], np.cos(2 * np.pi / queries))
        )
    return Evidence(worst, 3)


@theorem(
    "rounded to float16 the 2k-dimensional vectors lose a pair at 25 documents, to float32 at 223",
    "float types",
    "k = 2",
)
def rounding(rng: np.random.Generator, samples: int) -> Evidence:
    found = [capacity.first_broken_size(dtype) for dtype in (np.float16, np.float32)]
    gaps = [capacity.moment_gap(n) for n in found]
    detail = "where the cosine gap is {:.1e} and {:.1e}; ".format(*gaps) + (
        f"46 documents of 1,035 queries need {capacity.pattern_bits(46, 1035):.0f} bits each, if "
        f"queries know nothing"
    )
    n, panel = np.array([10, 25, 50, 100, 223, 500, 1000]), "cosine gap of pairs in h = 4"
    lines = {
        "2k numbers on a curve": capacity.moment_gap(n),
        "no vectors have more": capacity.packing_gap(n, 2, 4),
    }
    units = {f"rounding of {name}": np.full(len(n), np.finfo(name).epsneg) for name in ("float16", "float32")}
    curves = Curves("documents n", n, {panel: lines}, dotted=units, log_y=[panel])
    return Evidence(apart(found, [25, 223]), 2, tolerance=0.05, detail=detail, curves=curves)
