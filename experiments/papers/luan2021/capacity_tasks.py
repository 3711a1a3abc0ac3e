"""Open capacity.py's task at each passage length, and predict results for projections of BM25's vectors.

The task is to find the passage that contains the query's words (Luan et al., TACL 2021, §5).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from studies.model_runs import shared_bm25

from paradigms.baselines.bm25 import BM25
from paradigms.baselines.lexical_vectors import count_terms, weigh
from paradigms.data import Collection, Corpus, Run
from paradigms.evaluate import candidates, on_split
from paradigms.train.fit import DEV_DEPTH
from paradigms.train.negatives import NEGATIVES_DEPTH
from theory.collection import Draw, Problem, exact_thresholds, projected_dimension

UNI = "BM25-uni"
BI = "BM25-bi"
RR = "RR@10"
NGRAMS = {UNI: 1, BI: 2}


@dataclass(frozen=True)
class PassageTask:
    """A collection of passages of at most `length` tokens, with BM25 and candidates for all systems."""

    length: int
    collection: Collection  # with the splits train, dev and test
    bm25: dict[str, BM25]
    mined: Run  # candidates for negatives of training queries: half BM25's, half random
    dev_run: Run  # BM25's first passages of each dev query
    pool: Run  # candidates for reranking of test queries: BM25's and the relevant ones, and as many random

    def values(self, run: Run) -> list[float]:
        """Return RR@10 of each test query."""
        return on_split(run, self.collection.split("test"), (RR,)).values[RR].tolist()


def open_task(length: int, collection: Collection, depth: int, folder: Path) -> PassageTask:
    """Open a collection of passages. BM25-bi ranks the candidates, beside all relevant passages."""
    corpus = collection.corpus
    half = depth // 2
    each = NEGATIVES_DEPTH // 2
    bm25 = {name: shared_bm25(corpus, folder / f"bm25-{length}-{n}", n) for name, n in NGRAMS.items()}
    test = collection.split("test")
    mined = with_random(bm25[BI].search(collection.split("train").queries, each), corpus, each)
    dev_run = bm25[BI].search(collection.split("dev").queries, DEV_DEPTH)
    pool = candidates(bm25[BI].search(test.queries, half), half, with_relevant=test.judgements)
    return PassageTask(length, collection, bm25, mined, dev_run, with_random(pool, corpus, depth - half))


def with_random(run: Run, corpus: Corpus, count: int) -> Run:
    """Append `count` random documents to each ranking, as Luan et al. 2021 do (§4.2, §5)."""
    joined: Run = {}
    for query, scores in run.items():
        sample = random.Random(f"0 {query}").sample(corpus.ids, min(len(corpus), count + len(scores)))
        additions = [id for id in sample if id not in scores][:count]
        last = min(scores.values(), default=0.0)
        joined[query] = scores | {id: last - 1 - n for n, id in enumerate(additions)}
    return joined


def predict(task: PassageTask, dimensions: Sequence[int], queries: int, samples: int) -> dict[str, Any]:
    """Predict BM25-uni's RR@10 on the test queries after a random projection to each number of dimensions.

    The result has two keys. "k*" is the number of dimensions at which BM25's first passage stays first for
    95% of the queries by the exact law of `theory.recall`, with an interval over queries. "values" maps each
    k in `dimensions` to RR@10 of each query, by this law applied to all passages together.
    """
    test = task.collection.split("test")
    counts = count_terms(task.collection.corpus, test.queries, queries)
    problem = Problem.of(*weigh(counts))
    required = projected_dimension(exact_thresholds(problem, [1], samples, 0)[0, 0])
    corpus = task.collection.corpus
    ids = counts.query_ids
    rng = np.random.default_rng(1)
    draw = problem.draw(samples, rng)
    rows = []
    for query, id in enumerate(ids):
        relevant = np.array([corpus.position(d) for d in test.judgements[id]])
        ranks = projected_ranks(problem, query, relevant, dimensions, draw, rng)
        rows.append([float(((column <= 10) / column).mean()) for column in ranks])
    values = {str(k): list(column) for k, column in zip(dimensions, zip(*rows, strict=True), strict=True)}
    return {"k*": list(required), "values": values}


def projected_ranks(
    problem: Problem, query: int, relevant: np.ndarray, dimensions: Sequence[int], draw: Draw, rng: Any
) -> np.ndarray:
    """Sample the best rank of the `relevant` under projections, [k, samples]."""
    samples = draw.products.shape[1]
    along, across = problem.scores_projected(query, draw)
    ranks = []
    for k in dimensions:
        scores = along[:, None] * np.sqrt(rng.chisquare(k, samples)) + across
        ranks.append(1.0 + (scores > scores[relevant].max(0)).sum(0))
    return np.array(ranks)
