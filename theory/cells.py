"""Count cells of hyperplane arrangements to bound the numbers and judged queries that an alignment A needs.

Numbers have unlimited precision. n documents have M vectors of h numbers each; m queries have N fixed vectors
each, which do not depend on the relevance. A relevance pattern gives each query a set of k documents.
Document vectors answer the pattern if each set scores strictly above all other documents. Scores are
piecewise linear in the P numbers of the documents, so an order changes only across hyperplanes of R^P. The
number of cells of these hyperplanes bounds the number of patterns that any documents answer. P is nMh, minus
h where adding one vector to all document vectors changes no order (the first three rows).

| A | what decides which token counts | what then decides the order |
|---|---|---|
| one (DPR) | nothing | m·C(n, 2) hyperplanes |
| all (A = 1) | nothing: only the sum of a document's vectors matters, as with M = 1 | m·C(n, 2) |
| q→d (ME-BERT with N = 1, ColBERT) | m·N·n·C(M, 2): the order in each document | m·C(n, 2) |
| equal ids (COIL, tokens of distinct ids) | nothing: ids are part of the text | m·C(n, 2) |
| positive ids (COIL without similarities < 0) | m·N·n: the sign of each match | m·C(n, 2) |
| q←d (MVDR) | m·nM·C(N, 2): the nearest query token | m·C(n, 2) |
| pool (XTR, with or without imputation) | m·N·C(nM, 2): the order in the pool | m·C(n, 2) |
| salience (ALIGNER, k = 1) | m·N·n·C(M, 2): the order in each document | m·C(n, 2), of degree 3 |
| top k (ALIGNER with any k or p) | m·N·n·C(M, 2): the order in each document | m·C(n, 2), of degree 3 |
| buckets (MUVERA, N planes in all) | N·nM: the side of each plane | m·C(n, 2) |

The hyperplanes in the last column cut each cell of those in the middle column, so the product of both numbers
of cells is a bound. If there are few (M^N or N^M) ways to choose tokens, another bound is smaller: it counts
all m·C(n, 2) differences at once, each under all M^2N choices. With a salience > 0 for each token,
P = nM(h + 1), and scores are quotients of polynomials in vectors and saliences. Multiplied out, the
differences of scores have degree 3, and `warren` counts sign patterns.

Entropic alignment and the attention of generative retrieval have no row: their weights are exponentials.
Khovanskii's bound for q exponentials has a factor 2^{q(q−1)/2} (Karpinski and Macintyre 1997). It exceeds the
number of all patterns, so it gives no least h.

H hyperplanes through the origin of R^P have at most 2·Σ_{i<P} C(H − 1, i) cells (Schläfli 1850, Cover 1965;
for any hyperplanes, Zaslavsky 1975). Alon, Frankl and Rödl 1985 bound sign ranks by such counts; Goldberg and
Jerrum 1995 bound the VC dimension. If the query vectors are free too, 2k numbers answer all patterns
(`theory.capacity`).
"""

from typing import Any, Literal, get_args

import numpy as np
from scipy import special

from theory import checks
from theory.capacity import pattern_bits

Aligned = Literal[
    "one", "all", "q→d", "equal ids", "positive ids", "q←d", "pool", "salience", "top k", "buckets"
]


def log_cells(hyperplanes: float, dimension: float) -> float:
    """ln(2·Σ_{i<P} C(H − 1, i)): log of the largest number of cells that H hyperplanes through 0 form in R^P.

    Hyperplanes in general position attain this number. Without hyperplanes the result is ln 1 = 0. H and P
    are whole numbers.
    """
    H = float(checks.whole(hyperplanes, "hyperplanes", least=0))
    P = float(checks.whole(dimension, "dimension"))
    if P >= H:
        return float(H * np.log(2))  # all sign vectors occur
    # The largest term is at P − 1 or at the middle. Towards i = 0, terms fall by a factor or within some √H.
    top = min(P - 1, np.ceil(H / 2))
    i = np.arange(max(0.0, top - 100 - 40 * np.sqrt(min(H, 1e8))), P)
    terms = special.gammaln(H) - special.gammaln(i + 1) - special.gammaln(H - i)
    return float(special.logsumexp(terms) + np.log(2))


def warren(polynomials: float, degree: float, dimension: float) -> float:
    """ln of (8eDH/P)^P ≥ number of strict sign patterns of H ≥ P polynomials of degree D ≥ 1 in R^P.

    The bound is Warren's (1968), with the constant of Goldberg and Jerrum 1995. The result is at most H·ln 2.
    """
    H, D, P = (
        float(checks.whole(x, name))
        for x, name in ((polynomials, "polynomials"), (degree, "degree"), (dimension, "dimension"))
    )
    return float(min(H * np.log(2), P * np.log(max(8 * np.e * D * H / P, 1))))


def log_patterns(
    aligned: Aligned, documents: int, queries: int, numbers: int, vectors: int = 1, tokens: int = 1
) -> float:
    """Bound ln(number of relevance patterns that documents answer) under the alignment A, for fixed queries.

    aligned: the name of A in the module's table. documents: n ≥ 2. queries: m. numbers: h per vector.
    vectors: M per document. tokens: N per query (for buckets, N planes). Raises ValueError if A is unknown.
    """
    if aligned not in get_args(Aligned):
        raise ValueError(f"aligned = {aligned!r}; allowed: {', '.join(get_args(Aligned))}")
    n = float(checks.whole(documents, "documents", least=2))
    named = {"queries": queries, "numbers": numbers, "vectors": vectors, "tokens": tokens}
    m, h, M, N = (float(checks.whole(x, name)) for name, x in named.items())
    M = 1.0 if aligned in ("one", "all") else M
    of_document = m * N * n * M * (M - 1) / 2, 2 * N * np.log(M)
    choices = {
        "q→d": of_document,
        "salience": of_document,
        "top k": (of_document[0], np.inf),
        "positive ids": (m * N * n, 2 * N * np.log(2)),
        "buckets": (N * n * M, np.inf),
        "q←d": (m * n * M * N * (N - 1) / 2, 2 * M * np.log(N)),
        "pool": (m * N * n * M * (n * M - 1) / 2, np.inf),
    }
    deciding, log_choices = choices.get(aligned, (0.0, 0.0))
    dimension = (n * M - (aligned in ("one", "all", "q→d"))) * h
    pairs = m * n * (n - 1) / 2

    def orders(differences: float) -> float:
        if aligned in ("salience", "top k"):
            return warren(differences, 3, n * M * (h + 1))
        return log_cells(differences, dimension)

    bound = log_cells(deciding, dimension) + orders(pairs)
    return min(bound, orders(np.rint(pairs * np.exp(log_choices)))) if log_choices < 30 else bound


def least_numbers(
    aligned: Aligned,
    documents: int,
    queries: int,
    k: int = 2,
    vectors: int = 1,
    tokens: int = 1,
) -> int:
    """Return the least h at which `log_patterns` allows all patterns: m queries, each with k of n documents.

    No two queries have the same k documents. With fewer numbers per vector, at least one pattern cannot be
    realised if query vectors do not depend on the relevance judgments.
    """
    log_count = float(pattern_bits(documents, queries, k, distinct=True)) * documents * np.log(2)

    def enough(h: int) -> bool:
        return log_patterns(aligned, documents, queries, h, vectors, tokens) >= log_count

    return _least(enough)


def judged_queries(
    aligned: Aligned,
    documents: int,
    numbers: int,
    vectors: int = 1,
    tokens: int = 1,
    *,
    error: float = 0.1,
    failure: float = 0.05,
) -> int:
    """Return a number m of judged queries that suffices to estimate what share of new queries is answered.

    For any document vectors, the share of answered queries among m random queries differs from the
    probability of answering a new query by at most √(8 (ln Π(2m) + ln(4/failure))/m) ≤ `error`, except with
    probability `failure` (Vapnik and Chervonenkis 1971, with the growth function Π of `log_patterns`). The
    result is an upper bound on the number needed.
    """
    gap = float(checks.probability(error, "error"))
    level = float(checks.probability(failure, "failure"))

    def enough(m: int) -> bool:
        growth = log_patterns(aligned, documents, 2 * m, numbers, vectors, tokens)
        return 8 * (growth + np.log(4 / level)) <= m * gap**2

    return _least(enough)


def vc_bound(aligned: Aligned, documents: int, numbers: int, vectors: int = 1, tokens: int = 1) -> int:
    """The largest t with 2^t ≤ Π(t): a bound on the VC dimension of "do these vectors answer the query?".

    A hypothesis is a choice of document vectors. An instance is a query with a fixed set of relevant
    documents.
    """

    def shattered(t: int) -> bool:
        return log_patterns(aligned, documents, t, numbers, vectors, tokens) >= t * np.log(2)

    return _least(lambda t: not shattered(t)) - 1


def table(
    documents: int, queries: int, k: int = 2, vectors: int = 2, tokens: int = 2, numbers: int = 4
) -> list[dict[str, Any]]:
    """Make a row for each alignment A: least h, numbers per document, VC bound and judged queries.

    The least h and the numbers per document assume that all patterns with distinct sets must be realisable.
    vectors, tokens: M and N for alignments that use more than one vector or token. numbers: h for the VC
    bound and the judged queries.
    """
    rows = []
    for name, aligned, M, N in (
        ("DPR", "one", 1, 1),
        ("A = 1", "all", vectors, tokens),
        ("ME-BERT", "q→d", vectors, 1),
        ("ColBERT", "q→d", vectors, tokens),
        ("ALIGNER, k = 1", "salience", vectors, tokens),
        ("ALIGNER, any k or p", "top k", vectors, tokens),
        ("COIL, distinct ids", "equal ids", vectors, tokens),
        ("COIL, positive matches", "positive ids", vectors, tokens),
        ("MVDR (q←d)", "q←d", vectors, tokens),
        ("XTR", "pool", vectors, tokens),
        ("MUVERA, 80 planes", "buckets", vectors, 80),
    ):
        kind: Any = aligned
        h = least_numbers(kind, documents, queries, k, M, N)
        row = {"A": name, "M": M, "N": N, "least h": h, "M·h": M * h}
        row["VC ≤"] = vc_bound(kind, documents, numbers, M, N)
        rows.append(row | {"judged queries": judged_queries(kind, documents, numbers, M, N)})
    return rows


def _least(enough: Any) -> int:
    """Return the least whole t ≥ 1 for which enough(t) is true; enough must also be true for all larger t."""
    low = 0
    high = 1
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
