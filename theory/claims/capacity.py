"""Claims about what embeddings can answer (Weller et al. 2025, LIMIT), and about random buckets (MUVERA)."""

from typing import Any

import numpy as np

from theory import answerable, buckets, capacity, cells, projections
from theory.claims import DEVIATIONS, LIMIT, Evidence, apart, deviations, excess, theorem


@theorem(
    "h numbers leave some set of k = ⌊h/2⌋ + 1 of any 3k documents unanswered (Radon)",
    f"{LIMIT}, abstract",
    "exact scores",
    claim="the number of sets of k documents that some query can return is “limited” by the dimension h",
)
def sets_by_dimension(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    count = min(samples, 60)
    for instance in range(count):
        h = 1 + instance % 5
        points = rng.standard_normal((h + 2, h))
        part = capacity.unanswerable_set(points)
        scores = rng.standard_normal((200, h)) @ points.T
        rivals = np.delete(scores, part, axis=1)
        worst = max(worst, excess(scores[:, part].min(1), rivals.max(1)), float(len(part) > h // 2 + 1))
    detail = "the limit is on k: sets of k ≤ h/2 are all answered, however many documents there are"
    return Evidence(worst, count, tolerance=1e-12, detail=detail)


@theorem(
    "2k numbers answer all sets of k of any n documents: 4 for pairs",
    f"{LIMIT}, §4",
    "all sets of k = 2 and 3, exact scores",
    "4 numbers answer all pairs of any n (Gale 1963; arXiv:2601.20844). What runs out is the margin, and "
    "with it what gradient descent and float types find",
    claim="free vectors optimised on the test set show that for web-scale search even the largest dimensions "
    "are “not enough to model all combinations” of two documents",
)
def web_scale(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    answered = 0.0
    for n, k in ((6, 2), (46, 2), (150, 2), (9, 3), (14, 3)):
        sets = capacity.all_sets(n, k)
        gap_of_sets = capacity.gaps(capacity.moment_queries(n, sets), capacity.moment_vectors(n, k), sets)
        worst, answered = max(worst, excess(0, gap_of_sets)), float(np.mean(gap_of_sets > 0))
        if k == 2:
            worst = max(worst, apart(gap_of_sets.min(), capacity.moment_gap(n)))
    gap = capacity.moment_gap(150)
    detail = f"h = 4 answers all 11,175 pairs of 150 documents, with a cosine gap of {gap:.1e}; the paper's "
    detail += "extrapolation gives h = 4 some 7 documents"
    printed: dict[str, Any] = {"printed": answered, "because": "“not enough”", "detail": detail}
    return Evidence(worst, 5, tolerance=1e-6, unit="of all sets", **printed)


@theorem(
    "a cosine gap γ of all sets of k needs C(n, k) ≤ (1 + 2/γ)^h (packing) and γ ≤ n/√(k(n−1)(n−k))",
    "upper bounds on the margin; the second is that of arXiv:2601.20844",
)
def packing(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    ratios = []
    for n, k in ((4, 1), (8, 2), (46, 2), (9, 3)):
        sets = capacity.all_sets(n, k)
        pairs = (
            (capacity.moment_queries(n, sets), capacity.moment_vectors(n, k)),
            ((np.eye(n)[sets].sum(1) - k / n) / np.sqrt(k * (1 - k / n)), np.eye(n)),
            (
                (np.eye(n)[sets].sum(1) - k / n) / np.sqrt(k * (1 - k / n)),
                (np.eye(n) - 1 / n) / np.sqrt(1 - 1 / n),  # a regular simplex
            ),
        )
        for queries, documents in pairs:
            gap = capacity.gaps(queries, documents, sets).min()
            bound = capacity.packing_gap(n, k, documents.shape[1])
            worst = max(worst, excess(gap, bound))
            ratios.append(gap / bound)
    return Evidence(worst, len(ratios), tightness=float(np.median(ratios)))


@theorem(
    "a random projection of one-hot documents to O(k² ln n) numbers answers all sets, at a constant margin",
    "union bound over the exact law; the order is that of arXiv:2601.20844",
    "Gaussian A, failure .05",
)
def random_projection_answers(rng: np.random.Generator, samples: int) -> Evidence:
    n = 12
    lost = 0
    draws = min(samples, 200)
    h = int(capacity.random_dimension(n, failure=0.05))
    sets = capacity.all_sets(n)
    for _ in range(draws):
        documents = rng.standard_normal((n, h))
        lost += bool(capacity.gaps(documents[sets].sum(1), documents, sets).min() <= 0)
    share = lost / draws
    needed = [f"{capacity.random_dimension(n):.0f}" for n in (46, 1000, 50_000)]
    detail = f"h = {h} for 12 documents: {share:.3f} of the draws fail; some projection answers all pairs of "
    detail += f"46, 1,000, 50,000 documents in {', '.join(needed)} dimensions"
    e = np.eye(3)
    off = abs(projections.normalized_margin(e[0] + e[1], e[0], e[2]) - 0.5)
    return Evidence(max(excess(share, 0.05 + 4 * np.sqrt(0.05 / draws)), off), draws, detail=detail)


@theorem(
    "some q ranks a set first iff its hull and the hull of the others are disjoint: all pairs at h = 4, and "
    "no set of Radon's; every answer holds in rational arithmetic",
    "linear programmes; separability by them: Mangasarian 1965",
    "one vector",
)
def answerable_queries(rng: np.random.Generator, samples: int) -> Evidence:
    wrong = 0
    count = min(samples, 12)
    vectors = capacity.moment_vectors(12)
    pairs = rng.choice(capacity.all_sets(12), count, replace=False)
    for pair in pairs:
        answer = answerable.one_vector(vectors, pair)
        wrong += not (answer.answerable and answerable.verified(vectors, answer, pair))
    for instance in range(count):
        points = rng.standard_normal((3 + instance % 4, 1 + instance % 4))
        answer = answerable.one_vector(points, capacity.unanswerable_set(points))
        wrong += not (answer.answerable is False and answerable.verified(points, answer))
    return Evidence(float(wrong), 2 * count, detail=f"{2 * count} answers in rational arithmetic")


@theorem(
    "documents of P numbers answer at most 2Σ_{i<P} C(H−1, i) relevance patterns, H = m·C(n,2)·M²: LIMIT's "
    "46 documents need h ≥ 17, or M·h ≥ 14 and 12 with two and four vectors",
    "cells of hyperplane arrangements",
    "queries ignore relevance; one query vector; P = (nM − 1)h",
)
def cells_of_patterns(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    ratios = []
    for n, m, h, M in ((3, 12, 1, 1), (4, 10, 1, 1), (6, 8, 1, 1), (3, 12, 2, 1), (3, 10, 1, 2)):
        Q = rng.standard_normal((m, h))
        D = rng.standard_normal((10 * samples, n, M, h))
        seen = len(np.unique(np.einsum("mh,dnih->dmni", Q, D).max(-1).argmax(-1), axis=0))
        allowed = np.exp(cells.log_patterns("q→d", n, m, h, M))
        worst = max(worst, excess(seen, allowed))
        ratios.append(seen / allowed)
    needed = [M * cells.least_numbers("q→d", 46, 1035, 2, M) for M in (1, 2, 4)]
    worst = max(worst, apart(needed, [17, 14, 12]))
    detail = "all pairs of 46 documents, each asked for once: M·h ≥ " + ", ".join(map(str, needed))
    return Evidence(worst, 5, tightness=float(np.median(ratios)), detail=detail + " with M = 1, 2, 4")


@theorem("√(mn)/‖2R−1‖₂ ≤ sign rank ≤ 1 + sign changes of a row", "Forster 2002; Alon, Frankl, Rödl 1985")
def sign_rank(rng: np.random.Generator, samples: int) -> Evidence:
    pairs = np.zeros((66, 12))
    np.put_along_axis(pairs, capacity.all_sets(12), 1, 1)
    hadamard = np.array([[1.0]])
    for _ in range(5):
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    cases = [pairs, (hadamard + 1) / 2, *(rng.random((min(samples, 40), 9, 12)) < 0.5)]
    low, high = np.array([(capacity.forster_bound(R), capacity.sign_change_bound(R)) for R in cases]).T
    detail = f"at least {low[0]:.2f}, at most {high[0]:.0f} for all pairs of 12; "
    detail += f"at least {low[1]:.2f} for Hadamard's 32 × 32"
    return Evidence(max(excess(low, high), apart(low[1], np.sqrt(32))), len(cases), detail=detail)


@theorem(
    "the max over tokens of 2 numbers answers any relevance matrix",
    "a token for each query a document answers",
)
def ring(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    for queries in (3, 50, 300):
        relevance = rng.random((queries, 6)) < 0.4
        tokens = capacity.ring(queries)
        scores = np.array(
            [np.max(np.where(relevant, tokens @ tokens.T, -1), axis=1) for relevant in relevance.T]
        ).T
        least = np.cos(2 * np.pi / queries)
        worst = max(worst, excess(1, scores[relevance]), excess(scores[~relevance], least))
    return Evidence(worst, 3)


@theorem(
    "rounded to float16 the 2k-dimensional vectors lose a pair at 25 documents, to float32 at 223",
    "float types",
    "k = 2",
)
def rounding(rng: np.random.Generator, samples: int) -> Evidence:
    sizes = [capacity.first_broken_size(dtype) for dtype in (np.float16, np.float32)]
    gaps = " and ".join(f"{capacity.moment_gap(n):.1e}" for n in sizes)
    bits = capacity.pattern_bits(46, 1035, distinct=True)
    detail = f"where the cosine gap is {gaps}; 46 documents, each pair asked for once, need {bits:.0f} bits "
    detail += "each, if queries know nothing"
    n = np.array([10, 25, 50, 100, 223, 500, 1000])
    panel = "cosine gap of pairs in h = 4"
    lines = {"2k numbers on a curve": capacity.moment_gap(n)}
    lines["no vectors have more"] = capacity.packing_gap(n, 2, 4)
    units = {f"rounding of {name}": np.full(len(n), np.finfo(name).epsneg) for name in ("float16", "float32")}
    curves = {"name": "documents n", "x": n, "panels": {panel: lines}, "dotted": units, "log_y": [panel]}
    return Evidence(apart(sizes, [25, 223]), 2, tolerance=0.05, detail=detail, curves=curves)


def drawn(rng: np.random.Generator, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a query token and document tokens near one direction: (vectors [tokens + 1, 6], their angles)."""
    vectors = rng.standard_normal((tokens + 1, 6)) + rng.uniform(0, 2) * rng.standard_normal(6)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit, np.arccos(np.clip(unit @ unit.T, -1, 1))


def drawn_shares(
    rng: np.random.Generator, unit: np.ndarray, planes: int, draws: int, fill: bool
) -> np.ndarray:
    """Return each document token's frequency of being drawn from the query's bucket, over `draws` plane sets.

    For each set of planes, one of the tokens in the bucket is drawn. Token i is drawn with probability E[Aᵢ],
    so counts are binomial.
    """
    sides = np.einsum("th,dph->dtp", unit, rng.standard_normal((draws, planes, unit.shape[1]))) > 0
    distances = (sides[:, 1:] != sides[:, :1]).sum(-1)
    least = distances.min(1, keepdims=True) if fill else 0
    lots = np.where(distances == least, rng.random(distances.shape), 0)
    return np.bincount(lots.argmax(1)[lots.any(1)], minlength=len(unit) - 1) / draws


@theorem(
    "expected A with Hamming distances taken as independent: exact for two tokens with "
    "θ₁₂ = θ₁ + θ₂ − 2θ₁θ₂/π, and for tokens orthogonal to the query and to each other",
    "SimHash buckets, k planes",
    "with and without filling; an approximation for other tokens",
)
def bucket_shares_of_many(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    gaps = []
    draws = 2 * samples
    for planes, fill in ((2, True), (4, True), (4, False)):
        first, second = rng.uniform(0.1, 0.9, 2) * np.pi
        # All three vectors lie on one side of a plane with probability
        # 1 − (θ₁ + θ₂ + θ₁₂)/2π = (1 − θ₁/π)(1 − θ₂/π).
        between = first + second - 2 * first * second / np.pi
        along = (np.cos(between) - np.cos(first) * np.cos(second)) / np.sin(first)
        beyond = np.sqrt(np.sin(second) ** 2 - along**2)
        pair = [1, 0, 0], [np.cos(first), np.sin(first), 0], [np.cos(second), along, beyond]
        for unit in (np.array(pair), np.eye(6)):
            angles = np.arccos(unit[1:] @ unit[0])
            law = buckets.expected_shares(angles, planes, fill=fill)
            worst = max(worst, deviations(drawn_shares(rng, unit, planes, draws, fill), draws, law))
        for tokens in (3, 10, 30):
            unit, angles = drawn(rng, tokens)
            law = buckets.expected_shares(angles[0, 1:], planes, fill=fill)
            gaps.append(np.abs(drawn_shares(rng, unit, planes, draws, fill) - law).max())
    detail = (
        f"up to 30 tokens near one direction: off by at most {max(gaps):.2f}, {np.mean(gaps):.2f} on average"
    )
    return Evidence(worst, 15 * draws, tolerance=DEVIATIONS, unit="s.e.", detail=detail)
