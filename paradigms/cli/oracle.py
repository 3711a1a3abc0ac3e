"""`paradigms oracle INDEX --split test`: is the index the limit, or the query encoder?

For each judged query, the command determines whether any query vectors could rank the relevant documents
above all others, and whether the model's vectors do. Document vectors are used as stored in the index
(`theory.answerable`).
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import binomtest

from paradigms.align import Alignment, PoolTopK
from paradigms.cli.indexed import open_folder
from paradigms.core import Tokens
from paradigms.data import Split, load_collection
from paradigms.evaluate import seeds_interval
from paradigms.io.progress import progress_bar
from paradigms.model import Paradigm
from paradigms.retrieve import Indexed
from paradigms.store import Store
from theory.answerable import Answer, max_over_tokens, maxima, one_vector, separates, sum_of_maxima, verified

QUERIES = 100  # maximum number of judged queries, drawn at random
FEW = 100  # below this number of queries, the bootstrap interval of R-precision is too narrow near 0 and 1
SAMPLED = 1000  # tokens whose lengths tell whether an index has unit vectors
ROUNDED = 0.01  # error of a stored unit vector's length
VERIFIED, LARGEST = 5, 64  # answers of each kind to verify rationally; maximum dimensions of their vectors


class Stored(NamedTuple):
    """All tokens in an index, in float64, sorted by document. ids, salience: None if the index has none.

    axes [h, k]: all vectors, queries' too, are projected onto these axes; None means no projection. unit:
    whether the index's vectors have length 1. Projected vectors then have length 1 (`Paradigm.truncated`).
    """

    vectors: np.ndarray  # [t, h]
    owners: np.ndarray  # [t], the document of each token
    documents: list[str]  # ids of the documents that have a token
    ids: np.ndarray | None = None
    salience: np.ndarray | None = None
    axes: np.ndarray | None = None
    unit: bool = False


@dataclass(frozen=True)
class Question:
    """One query and the tokens it is scored against.

    kinds, asked: as in `theory.answerable.sum_of_maxima`.
    """

    tokens: np.ndarray
    owners: np.ndarray
    query: np.ndarray  # [N, h], from the model
    kinds: np.ndarray | None = None
    asked: np.ndarray | None = None
    salience: tuple[np.ndarray, np.ndarray] | None = None  # of the tokens and of the query tokens

    def scores(self, query: np.ndarray, salience: np.ndarray | None = None) -> np.ndarray:
        """Return all documents' rel, up to a positive factor per query.

        salience: the query tokens' salience, by default from the model.
        """
        of_tokens, of_query = (None, 1.0) if self.salience is None else self.salience
        of_query = of_query if salience is None else salience
        return maxima(self.tokens, self.owners, query, self.kinds, self.asked, of_tokens, of_query)[0]

    def answer(self, rows: np.ndarray, start: np.ndarray | None = None) -> Answer:
        """Return whether some query vectors rank the documents `rows` above all others.

        start [N, h]: query vectors to try after the model's, with equal saliences.
        """
        if separates(self.scores(self.query), rows):
            return Answer(True, query=self.query)
        if start is not None and separates(self.scores(start, np.ones(len(start))), rows):
            return Answer(True, query=start)
        if self.kinds is not None and not len(self.query):
            return Answer(False)  # no document has a token of the query: all scores are 0
        if self.kinds is None and self.salience is None and len(self.query) <= 1:
            if len(self.tokens) == self.owners[-1] + 1:
                return one_vector(self.tokens, rows)
            return max_over_tokens(self.tokens, self.owners, rows)
        return sum_of_maxima(
            self.tokens,
            self.owners,
            rows,
            query_tokens=len(self.query),
            start=self.query,
            kinds=self.kinds,
            asked=self.asked,
            salience=None if self.salience is None else self.salience[0],
        )

    def verify(self, answer: Answer, rows: np.ndarray) -> bool | None:
        """Check an answer in rational arithmetic; None: it has no rational form, or h > `LARGEST`."""
        if self.salience is not None or self.kinds is not None:
            return None
        if answer.query is not None and len(answer.query) == 1:
            _, chosen, _ = maxima(self.tokens, self.owners, answer.query)
            others = np.flatnonzero(~np.isin(self.owners, rows))
            return verified(self.tokens, answer, chosen[rows, 0], others)
        if answer.weights is not None and self.tokens.shape[1] <= LARGEST:
            return verified(self.tokens, answer)
        return None


class Outcome(NamedTuple):
    """The result for one query: the `Answer`, whether the model's vectors succeed, and their R-precision."""

    answer: Answer
    reached: bool
    precision: float
    verified: bool | None  # in rational arithmetic; None: not tried


def run_oracle(settings: argparse.Namespace) -> None:
    """Print for how many queries some vectors, and the model's, rank the relevant documents first."""
    if not settings.split:
        raise ValueError("oracle needs judged queries: give --split, such as test")
    opened = open_folder(settings.folder, pickled=settings.pickled)
    if opened.origin.passages:
        raise ValueError(f"{settings.folder} holds passages, and judgements name documents: index them whole")
    if not isinstance(opened.index, Indexed):
        raise ValueError(f"{settings.folder} is an index of {opened.origin.engine}: index without --engine")
    model = opened.index.model
    store = opened.index.index.store
    check(model, store.longest)
    split = load_collection(opened.origin.source).split(settings.split)
    tokens = stored(store)
    queries = drawn(split, tokens.documents)
    if not queries:
        raise ValueError(f"{settings.split}: no query has a relevant document in {settings.folder}")
    with progress_bar() as bar:
        results = list(bar.track(outcomes(tokens, model, queries), description="oracle", total=len(queries)))
    for line in summary(results, opened.origin.model):
        print(line)
    print(f"The index has {store.bytes_per_document:,.0f} bytes per document.")


def check(model: Paradigm, longest: int) -> None:
    """Raise ValueError unless each query token is aligned with one token of a `longest`-token document."""
    align = model.recipe.align
    aligned = align.kept(torch.tensor(longest))
    if not isinstance(align, PoolTopK) and (aligned is None or int(aligned) > 1):
        raise ValueError(
            f"{model.name} aligns by {align}: oracle supports alignments of each query token with one token "
            "of a document (dpr, me_bert, colbert, coil, aligner with TopK(k=1), and xtr with all tokens "
            "retrieved)"
        )


def stored(store: Store, axes: np.ndarray | None = None) -> Stored:
    """Return the tokens of all documents with at least one token. axes: as in `Stored`."""
    rows = np.flatnonzero(store.living & (np.diff(store.offsets) > 0))
    lengths = np.diff(store.offsets)[rows]
    vectors = np.empty((lengths.sum(), store.dim if axes is None else axes.shape[1]))
    sample = store.decoded(slice(0, SAMPLED))["vectors"].astype(np.float64)  # one encoder made them all
    unit = np.allclose(np.linalg.norm(sample, axis=1), 1, atol=ROUNDED)
    others = []
    for row, end, length in zip(rows, np.cumsum(lengths), lengths, strict=True):
        part = store.decoded(slice(store.offsets[row], store.offsets[row + 1]))
        of_document = projected(part.pop("vectors").astype(np.float64), axes, unit)
        rounded = of_document if axes is None else of_document.astype(np.float16)  # as a store rounds
        vectors[end - length : end] = rounded
        others.append(part)
    fields = {name: np.concatenate([part[name] for part in others]) for name in (others[0] if others else ())}
    owners = np.repeat(np.arange(len(rows)), lengths)
    return Stored(vectors, owners, store.names(rows), fields.get("ids"), fields.get("salience"), axes, unit)


def projected(vectors: np.ndarray, axes: np.ndarray | None, unit: bool) -> np.ndarray:
    """Project vectors [t, h] onto axes [h, k], or return them if axes is None. unit: to length 1."""
    if axes is None:
        return vectors
    vectors = vectors @ axes
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True) if unit else 1.0
    return vectors / np.maximum(lengths, np.finfo(np.float64).tiny)


def drawn(
    split: Split, documents: Sequence[str], most: int = QUERIES, fewest: int = 1
) -> list[tuple[str, np.ndarray]]:
    """Draw at most `most` judged queries; return (text, rows of the relevant documents) for each.

    A query is skipped unless the index contains `fewest` relevant documents, and others. One relevant
    document of length 1 is always found by its own vector.
    """
    place = {id: n for n, id in enumerate(documents)}
    relevant = {
        query: sorted(place[id] for id, grade in judged.items() if grade > 0 and id in place)
        for query, judged in split.judgements.items()
    }
    names = sorted(query for query, rows in relevant.items() if fewest <= len(rows) < len(place))
    chosen = np.random.default_rng(0).permutation(len(names))[:most]
    return [(split.queries[names[n]], np.array(relevant[names[n]])) for n in sorted(chosen)]


def outcomes(
    tokens: Stored,
    model: Paradigm,
    queries: Sequence[tuple[str, np.ndarray]],
    starts: Sequence[np.ndarray | None] = (),
) -> Iterator[Outcome]:
    """Yield the outcome of each query from `drawn`.

    starts: full-width query vectors to try for each query, such as solutions found on fewer axes.
    """
    encoded = model.encode_queries([text for text, _ in queries])
    left = {True: VERIFIED, False: VERIFIED}  # answers to verify
    for n, (_, rows) in enumerate(queries):
        question = question_of(tokens, encoded, n, model.recipe.align)
        scores = question.scores(question.query)
        best = np.argsort(-scores, kind="stable")[: len(rows)]
        start = starts[n] if starts else None
        if start is not None:
            start = projected(start, tokens.axes, tokens.unit)
        answer = question.answer(rows, start)
        checked = question.verify(answer, rows) if left[bool(answer.answerable)] else None
        left[bool(answer.answerable)] -= checked is not None
        yield Outcome(answer, separates(scores, rows), float(np.isin(best, rows).mean()), checked)


def question_of(tokens: Stored, queries: Tokens, n: int, align: Alignment) -> Question:
    """Build the `Question` for the n-th query.

    Exact matches depend only on the tokens with the query's ids. A document without such tokens has a zero
    vector instead. If the alignment `align` drops non-positive similarities, every document also has one.
    """
    mask = queries.mask[n, 0]

    def field(values: torch.Tensor | None) -> np.ndarray | None:
        return None if values is None else values[n, 0][mask].cpu().numpy()

    query = field(queries.vectors.double())
    ids = field(queries.ids)
    weights = field(queries.salience)
    assert query is not None
    query = projected(query, tokens.axes, tokens.unit)
    if "ids" not in align.reads:
        both = None if weights is None or tokens.salience is None else (tokens.salience, weights)
        return Question(tokens.vectors, tokens.owners, query, salience=both)
    assert ids is not None
    assert tokens.ids is not None
    indexed = np.isin(ids, tokens.ids)
    query, ids = query[indexed], ids[indexed]
    same = np.flatnonzero(np.isin(tokens.ids, ids))
    names = np.unique(ids) if len(ids) else np.zeros(1, ids.dtype)  # only zero vectors, and no query token
    missing = np.ones((len(tokens.documents), len(names)), bool)
    missing[tokens.owners[same], np.searchsorted(names, tokens.ids[same])] = False
    if align.positive:
        missing[:, names >= 0] = True
    without, kind = np.nonzero(missing)
    owners = np.concatenate([tokens.owners[same], without])
    order = np.argsort(owners, kind="stable")
    vectors = np.concatenate([tokens.vectors[same], np.zeros((len(without), query.shape[1]))])
    kinds = np.concatenate([tokens.ids[same], names[kind]])
    return Question(vectors[order], owners[order], query, kinds[order].astype(np.int64), ids.astype(np.int64))


def summary(results: Sequence[Outcome], name: str) -> Iterator[str]:
    """Yield for how many queries some vectors, and the model's, rank the relevant documents first."""

    def share(values: Sequence[bool]) -> str:
        return "{:.0%} [{:.0%}, {:.0%}]".format(*proportion(values))

    possible = [one.answer.answerable is True for one in results]
    impossible = [one.answer.answerable is False for one in results]
    undecided = [one.answer.answerable is None for one in results]
    reached = [one.reached for one in results]
    lost = [can and not does for can, does in zip(possible, reached, strict=True)]
    yield (
        f"Of {len(results)} judged queries, some query vectors rank every relevant document above all others "
        f"for {share(possible)}, and no query vectors do for {share(impossible)} [95% intervals over "
        "queries]."
    )
    if any(undecided):
        yield f"For {share(undecided)} neither was found: the limit lies between."
    mean, low, high = seeds_interval(np.array([[one.precision for one in results]]))
    yield (
        f"The query vectors of {name} do for {share(reached)}, so the query encoder loses {share(lost)}; "
        f"their R-precision is {mean:.2f} [{low:.2f}, {high:.2f}]."
    )
    if len(results) < FEW and not 0.2 < mean < 0.8:
        yield (
            f"With fewer than {FEW} queries, the interval of an R-precision near 0 or 1 contains the value "
            "for all queries less often than 95%."
        )
    counts = []
    for value in (True, False):
        checks = [one.verified for one in results if one.answer.answerable is value]
        counts.append(f"{checks.count(True)} of {len(checks) - checks.count(None)}")
    residual = max((one.answer.residual for one in results if one.answer.relevant is not None), default=0.0)
    yield (
        f"In rational arithmetic {counts[0]} queries and {counts[1]} certificates hold; the largest residual "
        f"of a certificate is {residual:.0e}."
    )


def proportion(values: Sequence[bool]) -> tuple[float, float, float]:
    """Return the share of True with Wilson's 95% interval; a bootstrap interval at 0 or 1 has no width."""
    low, high = binomtest(sum(values), len(values)).proportion_ci(method="wilson")
    return sum(values) / len(values), low, high
