"""Open capacity.py's tasks at each passage length, and predict results for projections of BM25's vectors.

containing: find the passage that contains the query's words (Luan et al., TACL 2021, §5); RR@10.
answers: check whether the first passages, with a fixed total number of tokens, contain an answer (§6).
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from papers.luan2021.passages import articles, cut
from studies.model_runs import shared_bm25, some_queries

from paradigms.baselines.bm25 import BM25
from paradigms.baselines.lexical_vectors import count_terms, weigh
from paradigms.data import Collection, Corpus, Problems, Run, Split
from paradigms.data.collection import body
from paradigms.evaluate import candidates, has_answer, on_split, with_judgements
from paradigms.io.gzipped import existing, numbered_lines
from paradigms.train.fit import DEV_DEPTH
from paradigms.train.negatives import NEGATIVES_DEPTH
from theory.collection import Draw, Problem, exact_thresholds, projected_dimension

UNI = "BM25-uni"
BI = "BM25-bi"
NGRAMS = {UNI: 1, BI: 2}


@dataclass(frozen=True)
class PassageTask:
    """A collection of passages of at most `length` tokens, with BM25 and candidates for all systems."""

    length: int
    collection: Collection  # with the splits train, dev and test
    measure: str
    bm25: dict[str, BM25]
    mined: Run  # candidates for negatives of training queries: half BM25's, half random
    dev_run: Run  # BM25's first passages of each dev query
    pool: Run  # candidates for reranking of test queries: BM25's and the relevant ones, and as many random

    def judged(self, run: Run, split: str = "test") -> Split:
        """Return the split; in a task with answers, the run's passages with an answer become relevant."""
        return with_judgements(self.collection.split(split), self.collection.corpus, [run])

    def values(self, run: Run) -> list[float]:
        """Return the task's measure for each test query."""
        return on_split(run, self.judged(run), (self.measure,)).values[self.measure].tolist()


def open_task(
    length: int, collection: Collection, measure: str, first: str, depth: int, folder: Path
) -> PassageTask:
    """Open a collection of passages. first: the BM25 that ranks candidates, beside all relevant passages."""
    corpus = collection.corpus
    half = depth // 2
    each = NEGATIVES_DEPTH // 2
    bm25 = {name: shared_bm25(corpus, folder / f"bm25-{length}-{n}", n) for name, n in NGRAMS.items()}
    train = collection.split("train")
    test = collection.split("test")
    mined = with_random(bm25[first].search(train.queries, each), corpus, each)
    dev_run = bm25[first].search(collection.split("dev").queries, DEV_DEPTH)
    run = bm25[first].search(test.queries, half)
    pool = candidates(run, half, with_relevant=test.judgements)
    return PassageTask(
        length, collection, measure, bm25, mined, dev_run, with_random(pool, corpus, depth - half)
    )


def with_random(run: Run, corpus: Corpus, count: int) -> Run:
    """Append `count` random documents to each ranking, as Luan et al. 2021 do (§4.2, §5)."""
    joined: Run = {}
    for query, scores in run.items():
        sample = random.Random(f"0 {query}").sample(corpus.ids, min(len(corpus), count + len(scores)))
        additions = [id for id in sample if id not in scores][:count]
        last = min(scores.values(), default=0.0)
        joined[query] = scores | {id: last - 1 - n for n, id in enumerate(additions)}
    return joined


def question_passages(
    collection: Collection,
    answers: Mapping[str, list[str]],
    counts: Mapping[str, int],
    lengths: Sequence[int],
    tokenizer: Any,
) -> dict[int, Collection]:
    """Return {length: questions over articles cut into passages of this length}.

    counts: split -> number of questions. In training, a passage is relevant if it contains an answer within
    the question's paragraph; in dev and test, if it contains an answer anywhere. A training question whose
    answers are all cut in two has no relevant passage.
    """
    splits = {name: some_queries(collection.split(name), count) for name, count in counts.items()}
    queries = {query for split in splits.values() for query in split.queries}
    if unknown := sorted(queries - answers.keys()):
        raise ValueError(f"{collection.name}: the query {unknown[0]!r} has no answers")
    source = articles(collection.corpus)
    corpus = collection.corpus
    firsts = set(source.ids)  # articles are named by their first document
    named = accumulate(corpus.ids, lambda article, id: id if id in firsts else article)
    article_of = dict(zip(corpus.ids, named, strict=True))
    tasks = {}
    for length in lengths:
        passages = cut(source, length, tokenizer)
        places: dict[str, list[int]] = {}
        for i, id in enumerate(passages.ids):
            places.setdefault(id.rpartition(":")[0], []).append(i)
        parts = {}
        for name, split in splits.items():
            answers_of = {query: answers[query] for query in split.queries}
            judged: dict[str, dict[str, int]] = {query: {} for query in answers_of}
            for query in answers_of if name == "train" else ():
                for gold in split.judgements[query]:
                    paragraph = body(corpus.titles[corpus.position(gold)], corpus[corpus.position(gold)])
                    for i in places.get(article_of[gold], []):  # documents are lines of an article
                        lines = [line for line in passages[i].split("\n") if line in paragraph]
                        if any(has_answer(line, answers_of[query]) for line in lines):
                            judged[query][passages.ids[i]] = 1
            parts[name] = Split(split.queries, judged, {} if name == "train" else answers_of)
        name = f"{collection.name}-{length}"
        fingerprint = f"{collection.fingerprint}-{length}"
        tasks[length] = Collection(name, passages, parts, Problems(), fingerprint)
    return tasks


def read_answers(folder: Path) -> dict[str, list[str]]:
    """Read {query id: answers} from answers.jsonl or answers.jsonl.gz, with {"_id", "answers"} per line."""
    file = existing(folder, "answers.jsonl")
    answers = {}
    for number, line in numbered_lines(file):
        try:
            row = json.loads(line)
            answers[str(row["_id"])] = [str(answer) for answer in row["answers"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: not a JSON object with _id and answers") from error
    return answers


def predict(task: PassageTask, dimensions: Sequence[int], queries: int, samples: int) -> dict[str, Any]:
    """Predict BM25-uni's measures on the test queries after a random projection to each number of dimensions.

    The result has two keys. "k*" is the number of dimensions at which BM25's first passage stays first for
    95% of the queries by the exact law of `theory.recall`, with an interval over queries. "values" maps each
    k in `dimensions` to the measure of each query, by this law applied to all passages together.
    """
    test = task.collection.split("test")
    counts = count_terms(task.collection.corpus, test.queries, queries)
    problem = Problem.of(*weigh(counts))
    required = projected_dimension(exact_thresholds(problem, [1], samples, 0)[0, 0])
    corpus = task.collection.corpus
    ids = counts.query_ids
    rng = np.random.default_rng(1)
    every = {query: dict.fromkeys(corpus.ids, 0.0) for query in ids}
    judged = with_judgements(test.only(ids), corpus, [every]).judgements
    draw = problem.draw(samples, rng)
    rows = []
    for query, id in enumerate(ids):
        relevant = np.array([corpus.position(d) for d, grade in judged[id].items() if grade > 0], int)
        ranks = projected_ranks(problem, query, relevant, dimensions, draw, rng)
        rows.append([float(worth(column, task.measure).mean()) for column in ranks])
    values = {str(k): list(column) for k, column in zip(dimensions, zip(*rows, strict=True), strict=True)}
    return {"k*": list(required), "values": values}


def projected_ranks(
    problem: Problem, query: int, relevant: np.ndarray, dimensions: Sequence[int], draw: Draw, rng: Any
) -> np.ndarray:
    """Sample the best rank of the `relevant` under projections, [k, samples]; infinite without any."""
    samples = draw.products.shape[1]
    if not len(relevant):
        return np.full((len(dimensions), samples), np.inf)
    along, across = problem.scores_projected(query, draw)
    ranks = []
    for k in dimensions:
        scores = along[:, None] * np.sqrt(rng.chisquare(k, samples)) + across
        ranks.append(1.0 + (scores > scores[relevant].max(0)).sum(0))
    return np.array(ranks)


def worth(ranks: np.ndarray, measure: str) -> np.ndarray:
    """Return RR@n or Success@n for each rank of the first relevant document."""
    name, n = measure.split("@")
    inside = ranks <= int(n)
    return inside / ranks if name == "RR" else inside.astype(float)
