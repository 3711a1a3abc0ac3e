"""Is the index or the query encoder the limit? Find the queries that some query vectors can answer.

Given document vectors and a set R of relevant documents, a query is answerable under the alignment A if some
Q scores every document of R strictly above all others, whether or not an encoder produces this Q.

- One vector: a query is answerable iff the convex hulls of R and of the other documents are disjoint. A
  linear programme decides this (Mangasarian 1965). A solution of the dual programme is a certificate: weights
  α on R and β on the other documents with Σ α d = Σ β d, so that both sides have the same score for any q.
- Maximum over a document's tokens, one query token (ME-BERT): a query is answerable iff, for some choice of
  one token from each document in R, the chosen tokens are separable from all tokens of the other documents
  (finitely many linear programmes).
- Maxima summed over query tokens (ColBERT): a document's score is Σ_j σ(q_j), where σ is the support function
  of the hull K of the document's tokens. A query is shown to be answerable by a Q that answers it, found with
  a single token or by optimisation. Conversely, no Q of any number of tokens ranks document a first if K_a
  lies in Σ_c β_c K_c, the mean of the other documents' hulls for some weights β ≥ 0, Σ β = 1. Finding β is
  also a linear programme. For |R| = 1, this is the only obstacle: by Farkas' lemma, if no such β exists, some
  Q with at most as many tokens as there are rivals answers the query.
- The same sum, where a query token is compared only with tokens of the same kind (COIL, whose kinds are token
  ids): K_a lies in Σ_c β_c K_c for each kind, with common weights β. A document without a token of some kind
  has a zero vector for this kind.
- A mean of the maxima, weighted by the saliences of the tokens that attain them (ALIGNER, k = 1): the mean is
  unweighted for documents whose tokens have equal saliences, so that the condition for the sum applies among
  them. Nothing is shown for other documents: a query token near 0 adds nothing to the numerator, but it adds
  the salience of a token in any direction to the denominator, which can favour a.

Other documents (rivals) that violate the solution of a programme are added to the programme, the hardest
first. The final solution is checked against all rivals.
"""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.optimize import linprog

from theory import checks
from theory.checks import Array

# rivals added to a linear programme per round; maximum number of rounds
_ADDED = 64
_ROUNDS = 200
_ZERO = 1e-7  # margin that HiGHS cannot distinguish from 0, for numbers scaled to at most 1
# steps and random starts of the optimisation of several query tokens
_STEPS = 200
_DRAWN = 2
# limits of `sum_of_maxima`: programmes for a single token, variables of the one for domination
_PROGRAMMES = 10
_VARIABLES = 60_000
Indices = NDArray[np.int64]


class Answer(NamedTuple):
    """The decision whether some query vectors answer the query (None if undecided), with its evidence.

    query: vectors that answer the query, [N, h]. relevant, rivals: rows whose weights (α, β) certify that no
    query vectors answer the query. residual: ‖Σ α d − Σ β d‖₁, twice the largest margin of a query with |q| ≤
    1. For a dominated document, `weights` is None and `residual` is the linear programme's largest residual.
    """

    answerable: bool | None
    query: Array | None = None
    relevant: Indices | None = None
    rivals: Indices | None = None
    weights: tuple[Array, Array] | None = None
    residual: float = 0.0


def one_vector(documents: ArrayLike, relevant: ArrayLike) -> Answer:
    """Decide whether some q scores the documents in `relevant` above all others.

    documents: [n, h]. relevant: row indices of the relevant documents, [r]. The answer is exact up to
    rounding: a returned query separates the documents in float64, and a certificate has a residual of at most
    2e-7 times the largest absolute value in `documents`. `verified` checks queries and certificates in
    rational arithmetic.
    """
    D = checks.vector(documents, "documents", axes=2, nonzero=False)
    rows = _rows(relevant, len(D))
    return _separate(_Rivals(D, np.setdiff1d(np.arange(len(D)), rows)), rows)


def max_over_tokens(
    tokens: ArrayLike, owners: ArrayLike, relevant: ArrayLike, *, programmes: int = 200
) -> Answer:
    """Decide whether some q gives each relevant document a larger max_i ⟨q, d_i⟩ than all other documents.

    tokens: [t, h]. owners: for each token, the document 0 … n−1 that contains it, [t]. Choices of one token
    per relevant document are tried depth first, starting with those nearest to a solution; a choice that
    fails for some relevant documents fails for every larger set, too. programmes: maximum number of linear
    programmes; if these do not decide, the answer is None. A certificate refers to the last choice tried.
    """
    T, owner, rows = _tokens(tokens, owners, relevant)
    rivals = _Rivals(T, np.flatnonzero(~np.isin(owner, rows)))

    def options(row: int, q: Array) -> Indices:
        """Return a document's tokens in ascending order of score."""
        of_document = np.flatnonzero(owner == row)
        return of_document[np.argsort(-(T[of_document] @ q), kind="stable")[::-1]]

    centre = np.mean([T[owner == row].mean(0) for row in rows], axis=0) - rivals.mean
    stack = [[token] for token in options(rows[0], centre)]
    failed = Answer(False)
    while stack:
        if programmes == 0:
            return Answer(None)
        programmes -= 1
        chosen = stack.pop()
        answer = _separate(rivals, np.array(chosen))
        if answer.query is None:
            failed = answer if failed.answerable is not None else failed
            continue
        q = answer.query[0]
        if min(np.max(T[owner == row] @ q) for row in rows) > rivals.scores(q).max():
            return answer
        if len(chosen) < len(rows):
            stack += [[*chosen, token] for token in options(rows[len(chosen)], q)]
    return failed


def sum_of_maxima(
    tokens: ArrayLike,
    owners: ArrayLike,
    relevant: ArrayLike,
    *,
    query_tokens: int = 8,
    start: ArrayLike | None = None,
    kinds: ArrayLike | None = None,
    asked: ArrayLike | None = None,
    salience: ArrayLike | None = None,
) -> Answer:
    """Decide whether some Q of `query_tokens` vectors ranks `relevant` first by Σ_j max_i ⟨q_j, d_i⟩.

    kinds [t], asked [N]: query token j is compared only with tokens of kind asked[j]. Every document has at
    least one token of each asked kind, and tokens of other kinds must not occur. By default, all tokens are
    of one kind. salience [t] ≥ 0: the score is the mean of the maxima, weighted by the saliences of the
    tokens that attain them. The answer True assumes query tokens of equal salience; False holds for any
    saliences, and requires that the tokens of some relevant document have equal saliences.

    The answer is True if such a Q is found with one token, or by optimisation from `start` [N, h] or random
    starts. The answer is False if a relevant document is dominated (module docstring), which rules out every
    Q. Domination is tested against the rivals that score highest under the first starting Q, as many as a
    linear programme of at most `_VARIABLES` variables admits. The answer is None if neither test decides. See
    `max_over_tokens` for the other arguments.
    """
    T, owner, rows = _tokens(tokens, owners, relevant)
    u = None if salience is None else _relative(salience, owner)
    if kinds is None or asked is None:
        kind = np.zeros(len(T), np.int64)
        query_kinds = np.zeros(query_tokens, np.int64)
        lower = max_over_tokens(T, owner, rows, programmes=_PROGRAMMES)
    else:
        kind, query_kinds = _kinds(kinds, asked, owner)
        lower = _single(T, owner, rows, kind, query_kinds)
    if lower.query is not None and (
        u is None or separates(maxima(T, owner, lower.query, salience=u)[0], rows)
    ):
        return lower
    rng = np.random.default_rng(0)
    starts = [] if start is None else [checks.vector(start, "start", axes=2, nonzero=False)]
    options = [np.flatnonzero(np.isin(owner, rows) & (kind == each)) for each in query_kinds]
    mean = T.mean(0) if kinds is None else 0.0
    starts += [T[[rng.choice(choices) for choices in options]] - mean for _ in range(_DRAWN)]
    for Q in starts:
        query = _optimised(T, owner, rows, Q, kind, query_kinds, u)
        if query is not None:
            return Answer(True, query=query)
    scores, _, _ = maxima(T, owner, starts[0], kind, query_kinds, u)
    hardest = np.setdiff1d(np.argsort(-scores, kind="stable"), rows, assume_unique=True)
    firsts = np.flatnonzero(np.diff(owner, prepend=-1))
    even = np.full(len(firsts), True) if u is None else np.minimum.reduceat(u, firsts) == 1
    hardest = hardest[even[hardest]]
    for row in rows[even[rows]]:
        own_tokens = np.flatnonzero(owner == row)
        # For each document, the programme has a variable for each pair of tokens of a kind, and β.
        names, counts = np.unique(kind[own_tokens], return_counts=True)
        each = np.bincount(owner, weights=(kind[:, None] == names) @ counts) + 1
        taken = hardest[np.cumsum(each[hardest]) <= _VARIABLES]
        others = np.flatnonzero(np.isin(owner, taken))
        residual = _dominated(T, owner, own_tokens, others, kind) if len(others) else None
        if residual is not None:
            return Answer(False, relevant=own_tokens, rivals=others, residual=residual)
    return Answer(None)


def maxima(
    tokens: Array,
    owners: Indices,
    query: Array,
    kinds: Indices | None = None,
    asked: Indices | None = None,
    salience: Array | None = None,
    query_salience: Array | float = 1.0,
) -> tuple[Array, Indices, Array]:
    """Compute Σ_j max_i ⟨q_j, d_i⟩, [n], the token that attains each maximum, and its weight, [n, N].

    Tokens must be sorted by owner. kinds, asked: see `sum_of_maxima`. All weights are 1, unless salience [t]
    is given: then a document's weights are proportional to the products of the two tokens' saliences and sum
    to N, or are all 0 if every product is 0.
    """
    S = tokens @ query.T
    if kinds is not None and asked is not None:
        S = np.where(kinds[:, None] == asked, S, -np.inf)
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    best = np.maximum.reduceat(S, starts, axis=0)
    where = np.where(best[owners] == S, np.arange(len(tokens))[:, None], len(tokens))
    chosen = np.minimum.reduceat(where, starts, axis=0)
    if salience is None:
        return best.sum(1), chosen, np.ones_like(best)
    u = salience[chosen] * query_salience
    total = u.sum(1, keepdims=True)
    weights = len(query) * np.divide(u, total, out=np.zeros_like(u), where=total > 0)
    return (weights * best).sum(1), chosen, weights


def separates(scores: Array, rows: Indices) -> bool:
    """Return whether every document in `rows` scores strictly above all other documents."""
    return bool(np.min(scores[rows]) > np.max(np.delete(scores, rows)))


def verified(
    vectors: ArrayLike, answer: Answer, relevant: ArrayLike | None = None, rivals: ArrayLike | None = None
) -> bool:
    """Check whether an answer of `one_vector` or `max_over_tokens` holds in exact rational arithmetic.

    A query holds if each row of `vectors` [t, h] in `relevant` scores above all rows in `rivals`, by default
    all other rows. For tokens, pass one row of each relevant document, and the rows of the rivals' tokens. A
    certificate holds if the linear system for the weights in its support has an exact nonnegative solution.
    Returns False if the answer has neither a query nor a certificate.
    """
    X = checks.vector(vectors, "vectors", axes=2, nonzero=False)
    if answer.answerable and answer.query is not None and relevant is not None:
        rows = _rows(relevant, len(X))
        q = [Fraction(x) for x in answer.query[0]]
        scores = X @ answer.query[0]
        low = min(sum(a * Fraction(b) for a, b in zip(q, X[row], strict=True)) for row in rows)
        every = np.arange(len(X))
        others = np.setdiff1d(every, rows) if rivals is None else every[np.asarray(rivals, np.int64)]
        # Rounding of a float64 sum is far below this; only rows within it need rationals.
        doubt = 1e-9 * max(X.max(), -X.min()) * np.abs(answer.query).sum()
        doubtful = others[scores[others] >= float(low) - doubt]
        return all(sum(a * Fraction(b) for a, b in zip(q, X[row], strict=True)) < low for row in doubtful)
    if answer.answerable or answer.weights is None or answer.relevant is None or answer.rivals is None:
        return False
    alpha, beta = (np.flatnonzero(w > 1e-9) for w in answer.weights)
    first = X[answer.relevant[alpha]]
    second = X[answer.rivals[beta]]
    ones = np.ones(len(first)), np.ones(len(second))
    system = np.block([[first.T, -second.T], [ones[0], 0 * ones[1]], [0 * ones[0], ones[1]]])
    solution = _solved(system, np.append(np.zeros(X.shape[1]), [1, 1]))
    return solution is not None and min(solution) >= 0


class _Rivals:
    """Rows of X that must score below the relevant rows. X may take gigabytes, so it is not copied."""

    def __init__(self, X: Array, rows: Indices) -> None:
        self.all, self.rows = X, rows
        self.scale = float(max(X.max(), -X.min())) or 1.0
        weights = np.zeros(len(X))
        weights[rows] = 1 / len(rows)
        self.mean = weights @ X

    def scores(self, q: Array) -> Array:
        """Return the scores of the rivals' rows for the query vector q."""
        return (self.all @ q)[self.rows]

    def hardest(self, scores: Array, count: int) -> Indices:
        """Return the positions of the `count` largest scores."""
        return np.argpartition(-scores, count - 1)[:count] if count < len(scores) else np.arange(len(scores))


def _separate(rivals: _Rivals, relevant: Indices) -> Answer:
    """Maximise γ with ⟨q, x⟩ ≥ b + γ on `relevant`, ≤ b − γ on rivals, |q| ≤ 1, adding violated rows."""
    scale = rivals.scale
    h = rivals.all.shape[1]
    first = rivals.all[relevant] / scale
    active = rivals.hardest(rivals.scores(first.mean(0) - rivals.mean / scale), max(_ADDED, h))
    for _ in range(_ROUNDS):
        hard = rivals.all[rivals.rows[active]] / scale
        A = np.vstack([-first, hard])
        offset = np.repeat([1.0, -1.0], [len(first), len(active)])
        rows = np.column_stack([A, offset, np.ones(len(A))])
        cost = np.append(np.zeros(h + 1), -1.0)
        bounds = [(-1, 1)] * h + [(None, None), (0, None)]
        solved: Any = linprog(cost, rows, np.zeros(len(A)), bounds=bounds, method="highs")
        if solved.status != 0:
            return Answer(None)
        q = solved.x[:h]
        margin = solved.x[-1]
        if margin <= _ZERO:
            weights = np.maximum(-2 * solved.ineqlin.marginals, 0)
            alpha = weights[: len(first)]
            beta = weights[len(first) :]
            residual = float(np.abs(alpha @ first - beta @ hard).sum())
            return Answer(False, None, relevant, rivals.rows[active], (alpha, beta), residual * scale)
        scores = rivals.scores(q) / scale
        least = np.min(first @ q)
        violated = scores >= least - 0.5 * margin
        violated[active] = False
        new = np.flatnonzero(violated)
        if not len(new) or scores.max() < least - 1e-12:
            return Answer(True, query=q[None]) if scores.max() < least else Answer(None)
        active = np.append(active, new[rivals.hardest(scores[new], _ADDED)])
    return Answer(None)


def _single(T: Array, owner: Indices, rows: Indices, kind: Indices, query_kinds: Indices) -> Answer:
    """Look for an answer that uses only kinds with one token per document, whose vectors are concatenated."""
    count = owner[-1] + 1
    first = [int(np.flatnonzero(query_kinds == each)[0]) for each in np.unique(query_kinds)]
    alone = [j for j in first if (kind == query_kinds[j]).sum() == count]
    if not alone:
        return Answer(None)
    joined = one_vector(np.hstack([T[kind == query_kinds[j]] for j in alone]), rows)
    if joined.query is None:
        return joined
    Q = np.zeros((len(query_kinds), T.shape[1]))
    Q[alone] = joined.query.reshape(len(alone), -1)
    scores, _, _ = maxima(T, owner, Q, kind, query_kinds)
    return Answer(True, query=Q) if separates(scores, rows) else Answer(None)


def _optimised(
    T: Array,
    owner: Indices,
    rows: Indices,
    Q: Array,
    kind: Indices,
    query_kinds: Indices,
    salience: Array | None,
) -> Array | None:
    """Search from Q, by subgradient ascent, for a query that ranks `rows` first; None if none is found."""
    pool = np.arange(owner.max() + 1)
    Q = Q / max(float(np.linalg.norm(Q, axis=1).max()), 1e-300)
    for step in range(_STEPS):
        if step % 25 == 0:  # find the hardest rivals among all documents
            scores, _, _ = maxima(T, owner, Q, kind, query_kinds, salience)
            others = np.setdiff1d(np.argsort(-scores, kind="stable"), rows, assume_unique=True)
            if scores[rows].min() > scores[others].max() + 1e-12:
                return Q
            pool = np.append(rows, others[np.argsort(-scores[others], kind="stable")[:100]])
            of_pool = np.flatnonzero(np.isin(owner, pool))
            part = T[of_pool]
            of_kind = kind[of_pool]
            place = np.searchsorted(np.sort(pool), owner[of_pool])
            inside = np.isin(np.sort(pool), rows)
            of_part = None if salience is None else salience[of_pool]
        scores, chosen, shares = maxima(part, place, Q, of_kind, query_kinds, of_part)
        low = np.where(inside, scores, np.inf)
        high = np.where(inside, -np.inf, scores)
        temperature = max(0.02, 0.3 * 0.99**step)
        up = np.where(inside, np.exp(-(low - low.min()) / temperature), 0)
        down = np.where(inside, 0, np.exp((high - high.max()) / temperature))
        weights = up / up.sum() - down / down.sum()
        gradient = np.einsum("dj,djh->jh", weights[:, None] * shares, part[chosen])
        Q = Q + 0.3 * 0.99**step * gradient / max(float(np.linalg.norm(gradient)), 1e-300)
    return None


def _dominated(T: Array, owner: Indices, tokens: Indices, others: Indices, kind: Indices) -> float | None:
    """Find common weights β ≥ 0 such that each of a document's tokens lies in Σ_c β_c K_c for its kind.

    tokens, others: indices of the document's tokens and of the rivals' tokens. Returns the residual of the
    solution, or None if the linear programme has no solution.
    """
    rivals = np.unique(owner[others])
    h = T.shape[1]
    count = len(rivals)

    def hulls(token: int) -> sparse.sparray:
        """Stack the rivals' tokens of the token's kind above an indicator matrix of their documents."""
        same = others[kind[others] == kind[token]]
        places = np.searchsorted(rivals, owner[same]), np.arange(len(same))
        sums = sparse.csr_array((np.ones(len(same)), places), (count, len(same)))
        return sparse.vstack([sparse.csr_array(T[same].T), sums])

    blocks = sparse.block_diag([hulls(token) for token in tokens])
    one = sparse.vstack([sparse.csr_array((h, count)), -sparse.eye_array(count)])
    shared = sparse.vstack([one] * len(tokens))
    total = np.append(np.zeros(blocks.shape[1]), np.ones(count))
    rows: Any = sparse.vstack([sparse.hstack([blocks, shared]), sparse.csr_array(total[None])])
    right = np.append(np.concatenate([np.append(T[token], np.zeros(count)) for token in tokens]), 1)
    solved: Any = linprog(np.zeros(rows.shape[1]), A_eq=rows, b_eq=right, bounds=(0, None), method="highs")
    if solved.status != 0:
        return None
    return float(np.abs(rows @ np.maximum(solved.x, 0) - right).max())


def _solved(system: Array, right: Array) -> list[Fraction] | None:
    """Return the rational solution of a linear system of floats, or None unless exactly one exists."""
    rows = [
        [*map(Fraction, row), Fraction(b)] for row, b in zip(system.tolist(), right.tolist(), strict=True)
    ]
    size = system.shape[1]
    for column in range(size):
        pivot = next((r for r in range(column, len(rows)) if rows[r][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        top = [x / rows[column][column] for x in rows[column]]
        rows[column] = top
        for r, row in enumerate(rows):
            if r != column and row[column]:
                rows[r] = [x - row[column] * y for x, y in zip(row, top, strict=True)]
    return [row[-1] for row in rows[:size]] if not any(row[-1] for row in rows[size:]) else None


def _tokens(tokens: ArrayLike, owners: ArrayLike, relevant: ArrayLike) -> tuple[Array, Indices, Indices]:
    T = checks.vector(tokens, "tokens", axes=2, nonzero=False)
    owner = checks.whole(owners, "owners", least=0).astype(np.int64)
    if owner.shape != T.shape[:1] or np.any(np.diff(owner) < 0) or len(np.unique(owner)) != owner[-1] + 1:
        raise ValueError(
            f"owners has shape {owner.shape}; allowed: the document of each of {len(T)} tokens, rising from 0"
        )
    return T, owner, _rows(relevant, int(owner[-1]) + 1)


def _relative(salience: ArrayLike, owner: Indices) -> Array | None:
    """Divide saliences by their document's largest, which cancels in scores; None if all quotients are 1."""
    u = checks.vector(salience, "salience", axes=1, nonzero=False)
    if u.shape != owner.shape or u.min() < 0:
        raise ValueError(
            f"salience has shape {u.shape} and minimum {u.min():g}; allowed: a number of at least 0 for each "
            f"of {len(owner)} tokens"
        )
    largest = np.maximum.reduceat(u, np.flatnonzero(np.diff(owner, prepend=-1)))[owner]
    relative = np.divide(u, largest, out=np.zeros_like(u), where=largest > 0)
    return None if relative.min() == 1 else relative


def _kinds(kinds: ArrayLike, asked: ArrayLike, owner: Indices) -> tuple[Indices, Indices]:
    kind = checks.whole(kinds, "kinds", least=-np.inf).astype(np.int64)
    query_kinds = checks.whole(asked, "asked", least=-np.inf).astype(np.int64)
    if kind.shape != owner.shape or query_kinds.ndim != 1:
        raise ValueError(f"kinds has shape {kind.shape}; allowed: a kind for each of {len(owner)} tokens")
    pairs = len(np.unique(np.column_stack([owner, kind]), axis=0))
    names = np.unique(query_kinds)
    if not np.array_equal(np.unique(kind), names) or pairs != (owner[-1] + 1) * len(names):
        raise ValueError("kinds: every document needs a token of each asked kind, and no other tokens")
    return kind, query_kinds


def _rows(relevant: ArrayLike, documents: int) -> Indices:
    rows = np.unique(checks.whole(relevant, "relevant", least=0, most=documents - 1).astype(np.int64))
    if not 0 < len(rows) < documents:
        raise ValueError(f"relevant names {len(rows)} of {documents} documents; allowed: some, not all")
    return rows
