"""A run and judgements -> one value per judged query and measure, and intervals for their means.

The measures are those of ir_measures (nDCG as in trec_eval and BEIR). Here every judged query counts, ties
are ordered alike for every measure, and intervals come from resampling queries (and training seeds).
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import ir_measures
import numpy as np
import regex  # type: ignore[import-untyped]
from jaxtyping import Float

from paradigms.data import Corpus, Judgements, Run, Split
from paradigms.data.collection import best_first, body, ranked

MEASURES = ("nDCG@10", "RR@10", "R@1", "R@10", "R@100")
TAILS = (0.025, 0.975)  # of 95% intervals
CUTOFFS = (1, 2, 5, 10, 20, 50, 100)
RESAMPLES = 10_000


@dataclass(frozen=True)
class PerQuery:
    """measure -> value of each query: `values[measure][x]` belongs to `queries[x]`.

    missing: queries that are not in the run (they score 0). without_relevant: judged queries left out as no
    document is relevant. groups: of each query; means are then means over groups of their means. seeds: the
    values of each training seed, where `values` are their mean.
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
        """The values times queries / (groups · size of the group): their mean is the macro-average."""
        return self.values[measure] * self._weights()

    def _weights(self) -> float | Float[np.ndarray, " queries"]:
        if self.groups is None:
            return 1.0
        _, group, sizes = np.unique(self.groups, return_inverse=True, return_counts=True)
        return len(self.queries) / (len(sizes) * sizes[group])

    def intervals(self, seed: int = 0) -> "dict[str, Interval]":
        """measure -> the bootstrap interval of its mean, over queries, and over seeds where there are any."""
        options: dict[str, Any] = {"groups": self.groups, "seed": seed}
        if self.seeds is not None:
            weights = self._weights()
            return {name: seeds_interval(of * weights, **options) for name, of in self.seeds.items()}
        rows = np.stack([self.weighted(measure) for measure in self.values])
        return dict(zip(self.values, bootstrap_intervals(rows, **options), strict=True))


def over_seeds(results: Sequence[PerQuery]) -> PerQuery:
    """The mean of one system's results with several training seeds, on the same queries."""
    first = results[0]
    if len(results) == 1:
        return first
    seeds = {measure: np.stack([result.values[measure] for result in results]) for measure in first.values}
    missing = max(result.missing for result in results)
    return replace(first, values={m: of.mean(0) for m, of in seeds.items()}, seeds=seeds, missing=missing)


class Interval(NamedTuple):
    """A mean and the limits of its interval."""

    mean: float
    low: float
    high: float


def candidates(run: Run, judgements: Judgements, depth: int) -> Run:
    """The documents that rerank mode scores: the first `depth` of each query, then the relevant others."""
    result: Run = {}
    for query, scores in run.items():
        top = best_first(scores, depth)
        worst = min(top.values(), default=0.0)
        gold = [d for d, grade in sorted(judgements.get(query, {}).items()) if grade > 0 and d not in top]
        result[query] = top | {d: worst - 1 - n for n, d in enumerate(gold)}
    return result


def per_query(
    run: Run,
    judgements: Judgements,
    measures: Sequence[str] = MEASURES,
    *,
    groups: Mapping[str, str] | None = None,
    every: bool = False,
) -> PerQuery:
    """value[measure][q] for each judged query q that has a relevant document, in the order of `judgements`.

    Queries that are not in the run score 0. Documents are ordered by falling score, then by id; ir_measures
    reads ranks, as its providers break ties differently.

    measures: names of ir_measures, such as "nDCG@10" or "RR@10". groups: query -> group, to average over
    groups. every: whether queries without a relevant document count too, as 0. ValueError for an unknown
    measure, a NaN, a query without a group, or no query to measure.
    """
    parsed = {name: _parse(name) for name in measures}
    judged = {
        query: grades
        for query, grades in judgements.items()
        if every or any(grade > 0 for grade in grades.values())
    }
    if not judged:
        raise ValueError(
            f"none of the {len(judgements)} judged queries has a relevant document: nothing to measure"
        )
    if groups and not groups.keys() >= judged.keys():
        raise ValueError(f"query {next(q for q in judged if q not in groups)!r} has no group, others do")
    ranked = {query: _ranks(query, run[query]) for query in judged if query in run}
    row = {query: x for x, query in enumerate(judged)}
    arrays = {measure: np.zeros(len(judged)) for measure in parsed.values()}
    for query, measure, value in ir_measures.iter_calc(list(arrays), judged, ranked):
        arrays[measure][row[query]] = value
    return PerQuery(
        queries=list(judged),
        values={name: arrays[measure] for name, measure in parsed.items()},
        missing=len(judged) - len(ranked),
        without_relevant=len(judgements) - len(judged),
        groups=[groups[query] for query in judged] if groups else None,
    )


def on_split(run: Run, split: Split, measures: Sequence[str] = MEASURES) -> PerQuery:
    """`per_query` on a split, macro-averaged over its groups; in a split with answers all questions count."""
    return per_query(run, split.judgements, measures, groups=split.groups, every=bool(split.answers))


def cutoff_curve(
    run: Run, split: Split, measure: str = "R", cutoffs: Sequence[int] = CUTOFFS
) -> dict[int, float]:
    """k -> mean of `measure`@k on the split: with "R", Recall@k."""
    results = on_split(run, split, [f"{measure}@{k}" for k in cutoffs])
    return {k: results.mean(f"{measure}@{k}") for k in cutoffs}


def bootstrap_intervals(
    values: Float[np.ndarray, "rows queries"], *, groups: Sequence[str] | None = None, seed: int = 0
) -> list[Interval]:
    """95% percentile bootstrap interval of the mean of each row, with queries drawn with replacement.

    All rows (such as measures) share the same resampled queries. groups: of each query; resamples draw within
    groups, and `values` are those of `PerQuery.weighted`. ValueError without values or with NaN.
    """
    means = _resampled_means(values, RESAMPLES, seed, groups)
    low, high = np.quantile(means, TAILS, axis=0)
    return [Interval(*map(float, row)) for row in zip(values.mean(axis=1), low, high, strict=True)]


def seeds_interval(
    values: Float[np.ndarray, "seeds queries"],
    *,
    groups: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """As `bootstrap_intervals`, of the mean over training seeds and queries, both drawn with replacement.

    All drawn seeds are measured on the same drawn queries. S seeds show (S − 1)/S of the variance between
    seeds: for very few, the interval is too narrow.
    """
    seeds = len(values)
    means = _resampled_means(values, resamples, seed, groups)
    drawn = np.random.default_rng([seed, 1]).multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    low, high = np.quantile((means * drawn).sum(axis=1) / seeds, TAILS)
    return Interval(float(values.mean()), float(low), float(high))


def _parse(name: str) -> ir_measures.Measure:
    try:
        return ir_measures.parse_measure(name)
    except (NameError, ValueError, KeyError) as error:
        known = ", ".join(MEASURES)
        raise ValueError(
            f"{name!r} is not a measure of ir_measures ({error}); known are, for example, {known}"
        ) from None


def _ranks(query: str, scores: dict[str, float]) -> dict[str, float]:
    """document -> a score that falls by 1 with each rank, which single precision represents exactly."""
    return {document: float(len(scores) - rank) for rank, document in enumerate(ranked(query, scores))}


def _resampled_means(
    values: Float[np.ndarray, "rows queries"], resamples: int, seed: int, groups: Sequence[str] | None = None
) -> Float[np.ndarray, "resamples rows"]:
    """Mean of each row over each resample, which draws queries within each group."""
    rows, queries = values.shape
    if not rows or not queries:
        raise ValueError(f"no values to resample: shape {values.shape}")
    if np.isnan(values).any():
        raise ValueError("a value is NaN: the mean is not defined")
    generator = np.random.default_rng(seed)
    group = np.zeros(queries) if groups is None else np.unique(groups, return_inverse=True)[1]
    sums = np.zeros((resamples, rows))
    for stratum in np.unique(group):
        of = values[:, group == stratum]
        sums += np.concatenate([counts @ of.T for counts in _draws(of.shape[1], resamples, generator)])
    return sums / queries


def _draws(
    queries: int, resamples: int, generator: np.random.Generator
) -> Iterator[Float[np.ndarray, "chunk queries"]]:
    """How often each resample draws each query, in chunks of about 8 MB."""
    chunk = max(1, 1_000_000 // queries)
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        drawn = generator.integers(queries, size=(count, queries)) + queries * np.arange(count)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=count * queries)
        yield counts.reshape(count, queries).astype(np.float64)


# A run of letters, digits and marks, or any other visible character by itself.
TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def has_answer(text: str, answers: Iterable[str]) -> bool:
    """Whether the tokens of one of the answers are consecutive tokens of the text (NFD, lower case).

    The relevance of open-domain question answering: Karpukhin et al., EMNLP 2020 (DPR), and its code. An
    answer without tokens is in no text; in DPR's code it is in every text.
    """
    tokens = _spaced(text)
    return any(answer.strip() and answer in tokens for answer in map(_spaced, answers))


def with_judgements(split: Split, corpus: Corpus, runs: Iterable[Run]) -> Split:
    """The split with grade 1 for each document of the runs that contains an answer to the query.

    A split without answers is returned unchanged. Only measures of retrieved documents, such as Success@k,
    are correct under these judgements; recall is not.
    """
    if not split.answers:
        return split
    runs = list(runs)
    judgements = {}
    for query in split.queries:
        retrieved = sorted({document for run in runs for document in run.get(query, {})})
        positions = [corpus.position(document) for document in retrieved]
        answers = split.answers.get(query, [])
        judgements[query] = {
            corpus.ids[i]: 1 for i in positions if has_answer(body(corpus.titles[i], corpus[i]), answers)
        }
    return replace(split, judgements=judgements)


def _spaced(text: str) -> str:
    """The text's tokens with a space around each, so that substrings are runs of tokens."""
    tokens = TOKEN.findall(unicodedata.normalize("NFD", text))
    return f" {' '.join(token.lower() for token in tokens)} "
