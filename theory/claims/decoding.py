"""Claims about constraints (arXiv:2504.09935) and state width (arXiv:2601.05588) of identifier decoders."""

import numpy as np

from theory import answerable, capacity, decoding
from theory.claims import RANKERS, UNFORESEEN, Evidence, apart, theorem


@theorem(
    "KL(p_C ‖ p̂) = Σ_v p_C(v) ln s_v − ln Σ_v p̂(v) s_v for the next token, s_v the share of its mass in C",
    f"{UNFORESEEN}, abstract",
    "the decoder is exact on all sequences, masked to valid tokens and renormalised; the law is ours, as the "
    "printed bound was not available",
    claim="constraints that decoding does not foresee have a lower bound on an error, a KL divergence of the "
    "next token; it depends on the Simpson diversity of the relevance",
)
def unforeseen_constraints(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    count = min(samples, 200)
    p: np.ndarray
    for _ in range(count):
        p = rng.dirichlet(np.full(27, 0.5)).reshape(3, 3, 3)
        corpus = rng.random((3, 3, 3)) < 0.4
        corpus[rng.integers(3), 0, 0] = corpus[0, 1, 2] = True
        inside = np.where(corpus, p, 0).sum((1, 2))
        valid = corpus.any((1, 2))
        model = p.sum((1, 2))[valid] / p.sum((1, 2))[valid].sum()
        true = inside[valid] / inside.sum()
        by_enumeration = (true * np.log(true / model)).sum()
        gap = float(decoding.foresight_gap(p.sum((1, 2)), inside))
        worst = max(worst, abs(by_enumeration - gap), -min(gap, 0.0))
    even = abs(float(decoding.foresight_gap([0.2, 0.5, 0.3], [0.1, 0.25, 0.15])))
    p = rng.dirichlet(np.ones(400)).reshape(4, 100)
    keep = 0.5
    masses = p.sum(1)
    draws = rng.random((2000, 4, 100)) < keep
    mean = np.mean(decoding.foresight_gap(masses, (draws * p).sum(-1)))
    simpson = ((p / masses[:, None]) ** 2).sum(1)
    predicted = (1 - keep) / (2 * keep) * (masses * (1 - masses) * simpson).sum()
    detail = "four tokens of 100 documents, half of which stay: "
    detail += f"mean {mean:.5f} nats, {predicted:.5f} by the Simpson index"
    return Evidence(max(worst, even), count, tolerance=1e-12, detail=detail)


@theorem(
    "a beam search by exact prefix probabilities with B beams can rank the best document first and miss the "
    "B − 1 next best",
    f"{UNFORESEEN}, abstract",
    "a distribution that is sparse among the documents; counted exactly",
    claim="for sparse relevance distributions, beam search “can” have a perfect top-1 precision and a poor "
    "recall",
)
def sparse_relevance(rng: np.random.Generator, samples: int) -> Evidence:
    wrong = 0.0
    beams = (2, 4, 8, 16)
    for count in beams:
        # The best document under token 0, then B − 1 tokens with many poor documents, B − 1 with one good.
        tokens = 2 * count
        p = np.zeros((tokens, tokens))
        p[0, 0] = 0.5
        p[1:count] = 1.0
        p[count : 2 * count - 1, 0] = tokens / 2
        p[1:] *= 0.5 / p[1:].sum()
        ranked = decoding.beam(p, p > 0, count)
        good = np.argwhere(p >= p[count, 0])
        assert len(good) == count
        hits = {tuple(d) for d in ranked.tolist()} & {tuple(d) for d in good.tolist()}
        wrong += tuple(ranked[0]) != (0, 0) or hits != {(0, 0)}
        every = decoding.beam(p, p > 0, p.size)
        wrong += {tuple(d) for d in every[:count].tolist()} != {tuple(d) for d in good.tolist()}
    return Evidence(wrong, len(beams), detail=f"recall of the B best is 1/B for B = {beams}")


@theorem(
    "vectors of n − 1 numbers rank n documents in every order, and of n − 2 do not; states of V − 1 numbers "
    "give every p(d | q) over n = Vᵐ sequences",
    f"{RANKERS}, abstract",
    "a state per prefix, (n − 1)/(V − 1) of them: a query has n − 1 numbers in both cases",
    claim="a dual encoder needs a dimension that grows linearly with the corpus for arbitrary rankings, an "
    "autoregressive ranker a constant one",
)
def width_of_rankers(rng: np.random.Generator, samples: int) -> Evidence:
    worst = 0.0
    count = min(samples, 12)
    for instance in range(count):
        V, m = ((2, 3), (2, 6), (3, 3), (5, 2))[instance % 4]
        p = rng.dirichlet(np.full(V**m, 0.3)).reshape((V,) * m) + 1e-12
        p /= p.sum()
        states = decoding.prefix_states(p)
        worst = max(worst, apart(decoding.sequence_log_p(states), np.log(p)))
        worst = max(worst, abs(sum(s.size for s in states) - (V**m - 1)))
        n = 3 + instance % 6
        simplex = np.eye(n)[:, 1:]  # affinely independent: n points in n − 1 dimensions
        order = rng.permutation(n).astype(float)
        query = np.linalg.lstsq(np.hstack([simplex, np.ones((n, 1))]), order, rcond=None)[0][:-1]
        worst = max(worst, float((np.argsort(simplex @ query) != np.argsort(order)).any()))
        points = rng.standard_normal((n, n - 2))
        answer = answerable.one_vector(points, capacity.unanswerable_set(points))
        worst = max(worst, float(answer.answerable is not False or not answerable.verified(points, answer)))
    detail = "V = 2: one number per prefix ranks 64 documents in any order, where one vector needs 63"
    return Evidence(worst, count, detail=detail)
