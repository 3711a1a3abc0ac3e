"""Measure a run by judgements: one value per judged query and measure, and intervals for the means.

ir_measures computes the measures (nDCG as in trec_eval and BEIR). Every judged query counts, ties are
ordered alike for every measure, and intervals come from resampling queries (and training seeds).
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, NamedTuple

import ir_measures
import numpy as np
import regex  # type: ignore[import-untyped]
from jaxtyping import Float, UInt8

from paradigms.data import Corpus, Judgements, Run, Split
from paradigms.data.collection import best_first, body, ranked
from paradigms.io.checks import Range, check_type

MEASURES = ("nDCG@10", "RR@10", "R@1", "R@10", "R@100")
CUTOFFS = (1, 2, 5, 10, 20, 50, 100)
RESAMPLES = 10_000
TAILS = (0.025, 0.975)  # quantiles of a 95% interval
# Up to so many, draws are kept for the next interval or test of as many queries, in at most 150 MB.
KEPT_QUERIES = 1500
COUNTED = {"cutoff", "rel"}  # parameters of measures that compiled code reads unchecked


@dataclass(frozen=True)
class PerQuery:
    """The value of each measure for each query: `values[measure][x]` belongs to `queries[x]`.

    missing: number of queries missing from the run (they score 0). without_relevant: number of judged queries
    left out because they have no relevant document. groups: each query's group; means are then macro-averages
    over groups. seeds: values per training seed; `values` is the mean over seeds.
    """

    queries: list[str]
    values: dict[str, Float[np.ndarray, " queries"]]
    missing: int = 0
    without_relevant: int = 0
    groups: list[str] | None = None
    seeds: dict[str, Float[np.ndarray, "seeds queries"]] | None = None

    def mean(self, measure: str) -> float:
        return float(self.weighted(measure).mean())

    def weighted(self, measure: str) -> Float[np.ndarray, " queries"]:
        """Return a measure's values, weighted so that their mean is the macro-average over groups."""
        return self.values[measure] * self._weights()

    def by_seed(self, measure: str) -> Float[np.ndarray, "seeds queries"]:
        """Return `weighted` for each training seed."""
        values = self.values[measure][None] if self.seeds is None else self.seeds[measure]
        return values * self._weights()

    def _weights(self) -> float | Float[np.ndarray, " queries"]:
        if self.groups is None:
            return 1.0
        _, group, sizes = np.unique(self.groups, return_inverse=True, return_counts=True)
        return len(self.queries) / (len(sizes) * sizes[group])

    def intervals(self) -> "dict[str, Interval]":
        """Map each measure to its mean's bootstrap interval, over queries and over any training seeds."""
        if self.seeds is not None:
            return {m: seeds_interval(self.by_seed(m), groups=self.groups) for m in self.seeds}
        rows = np.stack([self.weighted(measure) for measure in self.values])
        return dict(zip(self.values, bootstrap_intervals(rows, groups=self.groups), strict=True))


def over_seeds(results: Sequence[PerQuery]) -> PerQuery:
    """Average a system's results over several training seeds, measured on the same queries."""
    first = results[0]
    if len(results) == 1:
        return first
    seeds = {measure: np.stack([result.values[measure] for result in results]) for measure in first.values}
    missing = max(result.missing for result in results)
    return replace(first, values={m: v.mean(0) for m, v in seeds.items()}, seeds=seeds, missing=missing)


class Interval(NamedTuple):
    """A mean and its interval."""

    mean: float
    low: float
    high: float


def candidates(run: Run, depth: int, with_relevant: Judgements | None = None) -> Run:
    """Return each query's first `depth` documents, for reranking.

    with_relevant: judgements whose other relevant documents follow. Such a pool is not what a first stage
    retrieves: it makes every system better, the first stage too.
    """
    result: Run = {}
    for query, scores in run.items():
        top = best_first(scores, depth)
        worst = min(top.values(), default=0.0)
        judged = sorted((with_relevant or {}).get(query, {}).items())
        missed = [document for document, grade in judged if grade > 0 and document not in top]
        result[query] = top | {document: worst - 1 - n for n, document in enumerate(missed)}
    return result


def undecided(pool: Run, judgements: Judgements) -> int:
    """Count the judged queries whose candidates are all of one grade: every order of these is as good."""
    return sum(
        len({judged.get(document, 0) for document in pool.get(query, {})}) < 2
        for query, judged in _with_relevant(judgements).items()
    )


def per_query(
    run: Run,
    judgements: Judgements,
    measures: Sequence[str] = MEASURES,
    *,
    groups: Mapping[str, str] | None = None,
    every: bool = False,
) -> PerQuery:
    """Measure each judged query that has a relevant document, in the order of `judgements`.

    Queries that are not in the run score 0. Documents are ordered by descending score, then by id;
    ir_measures receives ranks, because its providers break ties differently.

    measures: names of measures in ir_measures, such as "nDCG@10" or "RR@10". groups: query -> group, to
    average over groups. every: also count queries without a relevant document, as 0. Raises ValueError if a
    measure is unknown, a score is NaN, a query has no group, or there are no queries to measure.
    """
    parsed = {name: _parse(name) for name in measures}
    judged = judgements if every else _with_relevant(judgements)
    if not judged:
        raise ValueError(f"none of the {len(judgements)} judged queries has a relevant document")
    if groups and not groups.keys() >= judged.keys():
        raise ValueError(f"query {next(q for q in judged if q not in groups)!r} has no group, others do")
    ranked = {query: _ranks(query, run[query]) for query in judged if run.get(query)}
    row = {query: x for x, query in enumerate(judged)}
    arrays = {measure: np.zeros(len(judged)) for measure in parsed.values()}
    for query, measure, value in ir_measures.iter_calc(list(arrays), judged, ranked):
        arrays[measure][row[query]] = value
    return PerQuery(
        queries=list(judged),
        values={name: arrays[measure] for name, measure in parsed.items()},
        missing=len(judged.keys() - run.keys()),
        without_relevant=len(judgements) - len(judged),
        groups=[groups[query] for query in judged] if groups else None,
    )


def on_split(run: Run, split: Split, measures: Sequence[str] = MEASURES) -> PerQuery:
    """Measure a run on a split (`per_query`), macro-averaged over any groups.

    If the split has answers, all queries count.
    """
    return per_query(run, split.judgements, measures, groups=split.groups, every=bool(split.answers))


def cutoff_curve(run: Run, split: Split, measure: str) -> dict[int, float]:
    """Map each k of `CUTOFFS` to the mean of `measure`@k on the split; "R" is recall."""
    results = on_split(run, split, [f"{measure}@{k}" for k in CUTOFFS])
    return {k: results.mean(f"{measure}@{k}") for k in CUTOFFS}


def bootstrap_intervals(
    values: Float[np.ndarray, "rows queries"], *, groups: Sequence[str] | None = None
) -> list[Interval]:
    """Return the interval of each row's mean, as `seeds_interval` does; all rows share the drawn queries."""
    low, high = np.quantile(_resampled_means(values, RESAMPLES, groups), TAILS, axis=0)
    return [Interval(*map(float, row)) for row in zip(values.mean(axis=1), low, high, strict=True)]


def seeds_interval(
    values: Float[np.ndarray, "seeds queries"],
    *,
    groups: Sequence[str] | None = None,
    clusters: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the 95% bootstrap interval of the mean over training seeds and queries, drawn with replacement.

    groups: each query's group; queries are drawn within groups, and `values` are `PerQuery.weighted`.
    clusters: each query's cluster, such as the article that the query asks about. Whole clusters are drawn,
    because queries within a cluster are not independent. All drawn seeds share the drawn queries. With S
    seeds, resampling reflects only (S − 1)/S of the variance between seeds, so with very few seeds the
    interval is too narrow. Raises ValueError if a value is NaN or there are no values.
    """
    seeds = len(values)
    means = _resampled_means(values, resamples, groups, clusters)
    counts = np.random.default_rng([0, 1]).multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    low, high = np.quantile((means * counts).sum(axis=1) / seeds, TAILS)
    return Interval(float(values.mean()), float(low), float(high))


def _with_relevant(judgements: Judgements) -> Judgements:
    """Return the judgements of queries that have a relevant document."""
    return {
        query: grades for query, grades in judgements.items() if any(grade > 0 for grade in grades.values())
    }


def _parse(name: str) -> ir_measures.Measure:
    try:
        measure = ir_measures.parse_measure(name)
        measure.validate_params()
        for limit in COUNTED & measure.params.keys():
            check_type(limit, measure.params[limit], Annotated[int, Range(1, 1 << 31)])
    except (NameError, ValueError, KeyError, AssertionError) as error:
        names = ", ".join(MEASURES)
        raise ValueError(f"{name!r} is not a measure of ir_measures ({error}), such as {names}") from None
    return measure


def _ranks(query: str, scores: dict[str, float]) -> dict[str, float]:
    """Map documents to scores that decrease by 1 per rank and are exact in single precision."""
    return {document: float(len(scores) - rank) for rank, document in enumerate(ranked(query, scores))}


def _resampled_means(
    values: Float[np.ndarray, "rows queries"],
    resamples: int,
    groups: Sequence[str] | None = None,
    clusters: Sequence[str] | None = None,
) -> Float[np.ndarray, "resamples rows"]:
    """Return each row's mean in each resample, which draws queries within their groups, or whole clusters."""
    if not values.size:
        raise ValueError(f"no values to resample: shape {values.shape}")
    if np.isnan(values).any():
        raise ValueError("a value is NaN: the mean is not defined")
    if clusters is not None:
        cluster = np.unique(clusters, return_inverse=True)[1]
        totals = np.stack([np.bincount(cluster, row) for row in values], axis=1)
        counts = np.concatenate(list(_first_draws(len(totals), resamples)))
        return counts @ totals / (counts @ np.bincount(cluster))[:, None]
    rows, queries = values.shape
    if groups is None:
        return np.concatenate([counts @ values.T for counts in _first_draws(queries, resamples)]) / queries
    generator = np.random.default_rng(0)
    group = np.unique(groups, return_inverse=True)[1]
    sums = np.zeros((resamples, rows))
    for number in np.unique(group):
        inside = values[:, group == number]
        draws = _draws(inside.shape[1], resamples, generator)
        sums += np.concatenate([counts @ inside.T for counts in draws])
    return sums / queries


def _first_draws(queries: int, resamples: int) -> Iterator[Float[np.ndarray, "chunk queries"]]:
    """Yield the `_draws` of a new generator, which are the same for all intervals of as many queries."""
    if queries > KEPT_QUERIES:
        return _draws(queries, resamples, np.random.default_rng(0))
    return (counts.astype(np.float64) for counts in _kept_draws(queries, resamples))


@lru_cache(maxsize=2)
def _kept_draws(queries: int, resamples: int) -> list[UInt8[np.ndarray, "_ _"]]:
    draws = _draws(queries, resamples, np.random.default_rng(0))
    return [counts.astype(np.uint8) for counts in draws]


def _draws(
    queries: int, resamples: int, generator: np.random.Generator
) -> Iterator[Float[np.ndarray, "chunk queries"]]:
    """Yield how often each resample draws each query, in chunks of about 8 MB."""
    chunk = max(1, 1_000_000 // queries)
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        places = generator.integers(queries, size=(count, queries)) + queries * np.arange(count)[:, None]
        counts = np.bincount(places.ravel(), minlength=count * queries)
        yield counts.reshape(count, queries).astype(np.float64)


# A word of letters, digits and marks, or any other visible character.
TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def has_answer(text: str, answers: Iterable[str]) -> bool:
    """Return whether any answer's tokens are consecutive tokens of the text (NFD, lower case).

    This is relevance in open-domain question answering, as in Karpukhin et al., EMNLP 2020 (DPR), and in
    DPR's code, with one difference: here, an answer without tokens is found in no text; there, in every text.
    """
    tokens = _spaced(text)
    return any(answer.strip() and answer in tokens for answer in map(_spaced, answers))


def with_judgements(split: Split, corpus: Corpus, runs: Iterable[Run]) -> Split:
    """Judge a split by its answers: each document in the runs that contains an answer has grade 1.

    A split without answers is returned unchanged. Under these judgements, only measures of retrieved
    documents, such as Success@k, are correct; recall is not.
    """
    if not split.answers:
        return split
    runs = list(runs)
    judgements = {}
    for query in split.queries:
        retrieved = sorted({document for run in runs for document in run.get(query, {})})
        answers = split.answers.get(query, [])
        documents = map(corpus.document, retrieved)
        judgements[query] = {id: 1 for id, title, text in documents if has_answer(body(title, text), answers)}
    return replace(split, judgements=judgements)


def _spaced(text: str) -> str:
    """Join the text's tokens with surrounding spaces, so that substrings are consecutive tokens."""
    tokens = TOKEN.findall(unicodedata.normalize("NFD", text))
    return f" {' '.join(token.lower() for token in tokens)} "
