"""Run k-means within each of many groups; NP-decoding groups vectors by surface token."""

import numpy as np
from jaxtyping import Float, Int

from paradigms.io.progress import progress_bar

ROUNDS = 20  # iterations of Lloyd's algorithm
ALIKE = 1e-4  # vectors with a smaller relative distance count as equal up to rounding
SAMPLE = 1 << 15  # larger groups: vectors per chunk; centroids are fitted to this many evenly spaced vectors


def grouped_kmeans(
    vectors: Float[np.ndarray, "t h"],
    offsets: Int[np.ndarray, " g1"],
    sizes: Int[np.ndarray, " g"],
    warm: Int[np.ndarray, " t"] | None,
    seed: int,
    progress: bool = False,
) -> tuple[Float[np.ndarray, "g k h"], Int[np.ndarray, " t"]]:
    """argmin over C and c of Σ_t ‖x_t − C_{g(t), c(t)}‖², a local minimum, with c(t) < sizes[g(t)].

    Lloyd's algorithm (FAISS) starts from the means of the labels `warm`. Empty clusters start from vectors
    drawn as in k-means++ (Arthur & Vassilvitskii, SODA 2007). If no distinct vector is left, a cluster gets
    the group's mean and no members. vectors: vectors[offsets[g]:offsets[g + 1]] is group g; the array is read
    twice and may be a memory map. A group's draws depend only on the seed and the group's number.
    """
    centroids = np.zeros((len(sizes), int(sizes.max()), vectors.shape[1]), np.float32)
    labels = np.empty(len(vectors), np.int64)
    import faiss  # takes a while, and no search needs it

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # threads change the order of sums, and so a borderline vector's cluster
    try:
        with progress_bar(progress) as bar:
            for g in bar.track(range(len(sizes)), description="cluster tokens"):
                first, last = offsets[g : g + 2].tolist()
                rows = np.linspace(first, last - 1, min(last - first, SAMPLE)).astype(np.int64)
                sample = np.asarray(vectors[rows], np.float32)
                mean = sample.mean(0)
                begin = None if warm is None else warm[rows]
                C, numbers = _fit(sample - mean, begin, int(sizes[g]), np.random.default_rng((seed, g)))
                centroids[g] = mean
                centroids[g, numbers] += C
                for start in range(first, last, SAMPLE):
                    part = slice(start, min(start + SAMPLE, last))
                    labels[part] = numbers[faiss.knn(vectors[part] - mean, C, 1)[1][:, 0]]
    finally:
        faiss.omp_set_num_threads(threads)
    return centroids, labels


def _fit(
    X: Float[np.ndarray, "n h"], warm: Int[np.ndarray, " n"] | None, k: int, random: np.random.Generator
) -> tuple[Float[np.ndarray, "c h"], Int[np.ndarray, " c"]]:
    """Cluster vectors with mean 0; return at most k centroids and their numbers in [0, k)."""
    seeds = {} if warm is None else {int(c): X[warm == c].mean(0) for c in np.unique(warm)}
    distance = np.full(len(X), np.inf)
    norms = np.square(X).sum(1)

    def closest(centroid: np.ndarray) -> np.ndarray:
        square = np.square(X - centroid).sum(1)
        return np.minimum(distance, np.where(square > ALIKE**2 * norms, square, 0))

    for centroid in seeds.values():
        distance = closest(centroid)
    for c in (c for c in range(k) if c not in seeds):
        weights = np.where(np.isfinite(distance), distance, 1).astype(np.float64)  # uniform for the first
        if not weights.any():
            break
        seeds[c] = X[random.choice(len(X), p=weights / weights.sum())]
        distance = closest(seeds[c])
    C = np.stack([*seeds.values()])
    if len(C) < len(X):
        import faiss

        kmeans = faiss.Kmeans(X.shape[1], len(C), niter=ROUNDS, min_points_per_centroid=1)
        kmeans.cp.max_points_per_centroid = SAMPLE
        kmeans.train(X, init_centroids=C)
        C = np.asarray(kmeans.centroids)
    return C, np.array([*seeds])
