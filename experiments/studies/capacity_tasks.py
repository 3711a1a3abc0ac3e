"""The two tasks of capacity.py at every passage length, and what a random projection of BM25 does on them.

containing: the passage in which the words of the query stand (Luan et al., TACL 2021, §5), by RR@10.
answers: whether the first passages, a fixed number of tokens together, contain an answer (§6).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from studies.containing_passage import containing_passages
from studies.lexical_vectors import count_terms
from studies.projection_runs import exact_thresholds, make_problem

from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Corpus, Problems, Run, Split, hold_out
from paradigms.data.collection import body
from paradigms.data.passages import articles, cut
from paradigms.encoder.backbone import offline_encoder
from paradigms.evaluate import has_answer, on_split, with_judgements
from paradigms.io.gzipped import numbered_lines
from paradigms.train.dev import candidates
from paradigms.train.job import NEGATIVES_DEPTH
from paradigms.train.mining import with_random
from theory.recall import required_dimension_recall_exact

if TYPE_CHECKING:
    from capacity import Settings

UNI, BI = "BM25-uni", "BM25-bi"
NGRAMS = {UNI: 1, BI: 2}
BETA = 0.05  # of the k* at which a random projection keeps BM25's first document with probability 1 − β


@dataclass(frozen=True)
class Bench:
    """Passages of at most `length` tokens, and what every system is given of them."""

    length: int
    collection: Collection  # with the splits train, dev and test
    measure: str
    bm25: dict[str, BM25]
    mined: Run  # of the training queries, which negatives are drawn from: half BM25's, half random
    pool: Run  # of the test queries, to rerank: likewise

    def judged(self, run: Run, split: str = "test") -> Split:
        """The split; where it has answers, judged are the passages of the run that contain one."""
        return with_judgements(self.collection.split(split), self.collection.corpus, [run])

    def values(self, run: Run) -> list[float]:
        """The measure of every test query."""
        return on_split(run, self.judged(run), (self.measure,)).values[self.measure].tolist()


def containing_benches(settings: Settings, collection: Collection, tokenizer: Any) -> list[Bench]:
    """The containing-passage task at every length; BM25-bi ranks the candidates, as in the paper."""
    counts = {"train": settings.train_queries, "dev": settings.dev_queries, "test": settings.test_queries}
    made = containing_passages(
        articles(by_module(collection)),
        counts,
        lengths=settings.lengths,
        passages=settings.passages or None,
        distractors=settings.distractors,
        tokenizer=tokenizer,
        seed=settings.data_seed,
    )
    return [_bench(length, task, "RR@10", BI, settings) for length, task in made.items()]


def answer_benches(settings: Settings, collection: Collection, tokenizer: Any) -> list[Bench]:
    """Questions over articles cut at every length; BM25-uni ranks the candidates, as in the paper.

    A passage is relevant in training if it holds an answer within the question's own paragraph, and in dev
    and test if it holds one anywhere. A training question whose answers are cut in two has none.
    """
    answers = read_answers(Path(settings.collection))
    wanted = {"train": settings.train_queries, "dev": settings.dev_queries, "test": settings.test_queries}
    splits: dict[str, Split] = {}
    for name, count in wanted.items():
        split = collection.split(name)
        unknown = next((query for query in split.queries if query not in answers), None)
        if unknown is not None:
            raise ValueError(f"{settings.collection}: the query {unknown!r} of {name} has no answers")
        share = min(1.0, count / max(1, len(split.queries)))
        splits[name] = hold_out(split, share, settings.data_seed)[1]
    source = articles(collection.corpus)
    benches = []
    for length in settings.lengths:
        passages = cut(source, length, tokenizer)
        of_article: dict[str, list[int]] = {}
        for i, id in enumerate(passages.ids):
            of_article.setdefault(id.rpartition(":")[0], []).append(i)
        article = _articles_of(collection.corpus, source)
        parts = {}
        for name, split in splits.items():
            own = {query: answers[query] for query in split.queries}
            judged = {
                query: {
                    passages.ids[i]: 1
                    for gold in (split.judgements[query] if name == "train" else ())
                    for i in of_article.get(article[gold], [])
                    if _answers_within(passages[i], collection.corpus, gold, own[query])
                }
                for query in split.queries
            }
            parts[name] = Split(split.queries, judged, {} if name == "train" else own)
        name = f"{collection.name}-{length}"
        task = Collection(name, passages, parts, Problems(), f"{collection.fingerprint}-{length}")
        benches.append(_bench(length, task, f"Success@{settings.tokens // length}", UNI, settings))
    return benches


# task -> how to make it of a collection, at every length
TASKS: dict[str, Callable[[Settings, Collection, Any], list[Bench]]] = {
    "containing": containing_benches,
    "answers": answer_benches,
}


def backbone_of(settings: Settings) -> str | Path:
    """The backbone's hub name or folder."""
    return offline_encoder() if settings.backbone == "offline" else settings.backbone


def by_module(collection: Collection) -> Corpus:
    """The corpus under titles that join it to long texts: in pydocs, whose titles all differ, by module."""
    corpus = collection.corpus
    if collection.name != "pydocs":
        return corpus
    return Corpus(corpus.ids, corpus, [id.partition(":")[0] for id in corpus.ids])


def read_answers(folder: Path) -> dict[str, list[str]]:
    """query id -> answers, of answers.jsonl or answers.jsonl.gz: {"_id", "answers"} in every line."""
    files = [folder / "answers.jsonl", folder / "answers.jsonl.gz"]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{folder} has no answers.jsonl or answers.jsonl.gz, which the task needs")
    answers = {}
    for number, line in numbered_lines(file):
        try:
            row = json.loads(line)
            answers[str(row["_id"])] = [str(answer) for answer in row["answers"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: no JSON object with _id and answers") from error
    return answers


def _articles_of(corpus: Corpus, source: Corpus) -> dict[str, str]:
    """The article that each document of the corpus went into: articles are named by their first document."""
    firsts, found, article = set(source.ids), {}, ""
    for id in corpus.ids:
        article = id if id in firsts else article
        found[id] = article
    return found


def _answers_within(passage: str, corpus: Corpus, gold: str, answers: list[str]) -> bool:
    """Whether a line of the passage is of the document `gold` and holds an answer: documents are lines."""
    position = corpus.position(gold)
    paragraph = body(corpus.titles[position], corpus[position])
    return any(line in paragraph and has_answer(line, answers) for line in passage.split("\n"))


def _bench(length: int, task: Collection, measure: str, first: str, settings: Settings) -> Bench:
    """first: which BM25 ranks the candidates. Passages that are judged relevant are always among them."""
    corpus, half = task.corpus, settings.depth // 2
    pieces = backbone_of(settings) if settings.terms == "pieces" else None
    bm25 = {
        name: BM25.build(corpus, corpus.ids, ngrams=ngrams, tokenizer=pieces)
        for name, ngrams in NGRAMS.items()
    }
    train, test = task.split("train"), task.split("test")
    mined = bm25[first].search(train.queries, NEGATIVES_DEPTH // 2)
    pool = candidates(bm25[first].search(test.queries, half), test.judgements, half)
    return Bench(
        length,
        task,
        measure,
        bm25,
        with_random(mined, corpus, NEGATIVES_DEPTH - NEGATIVES_DEPTH // 2, settings.data_seed),
        with_random(pool, corpus, settings.depth - half, settings.data_seed),
    )


# --- what theory predicts ---------------------------------------------------------------------------


def predict(bench: Bench, dimensions: Sequence[int], queries: int, samples: int, seed: int) -> dict[str, Any]:
    """What BM25-uni's vectors do on the test queries under one random projection to k dimensions, for each k.

    margin: median over queries of the smallest margin of BM25's first passage; k*: dimensions that keep it
    first in 1 − β of the queries, by the exact law of `theory.recall`; values: k -> the measure of each
    query, by the same law for all passages at once (`projected`). BM25's terms are words here.
    """
    counts, _ = count_terms(bench.collection, "test", queries, seed)
    problem = make_problem(counts, "bm25", "query", [np.arange(len(bench.collection.corpus))])
    margins = [problem.margins(0, query)[2] for query in range(len(counts.query_ids))]
    thresholds = exact_thresholds(problem, [1], samples, seed, lambda: None)[1][0]
    required, error = required_dimension_recall_exact(thresholds, BETA)
    corpus, ids = bench.collection.corpus, counts.query_ids
    every = {query: dict.fromkeys(corpus.ids, 0.0) for query in ids}
    judged = with_judgements(bench.collection.split("test").only(ids), corpus, [every]).judgements
    relevant = [np.array([corpus.position(d) for d, g in judged[q].items() if g > 0], int) for q in ids]
    values: dict[int, list[float]] = {k: [] for k in dimensions}
    rng = np.random.default_rng([seed, 1])
    for query, gold in enumerate(relevant):
        ranks = projected(
            problem.documents, problem.queries[[query]].toarray().ravel(), gold, dimensions, samples, rng
        )
        for k, row in zip(dimensions, ranks, strict=True):
            values[k].append(float(worth(row, bench.measure).mean()))
    return {
        "margin": float(np.median([np.min(found) for found in margins if len(found)])),
        "k*": required,
        "error of k*": error,
        "values": {str(k): found for k, found in values.items()},
    }


def projected(
    documents: Any,
    query: np.ndarray,
    relevant: np.ndarray,
    dimensions: Sequence[int],
    samples: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Samples of the rank of the best of the `relevant` documents under a random projection: [k, samples].

    documents [n, v], query [v]. As under explicit Gaussian k × v matrices, without one: up to a common
    positive factor the scores of all documents are χ_k ⟨q̄, d⟩ + ⟨z, d⟩ with z ⊥ q (`theory.recall`). With no
    document relevant the rank is infinite.
    """
    if not len(relevant):
        return np.full((len(dimensions), samples), np.inf)
    unit = query / np.linalg.norm(query)
    gaussians = rng.standard_normal((len(unit), samples))
    gaussians -= unit[:, None] * (unit @ gaussians)
    along, across = (documents @ unit)[:, None], documents @ gaussians
    ranks = []
    for k in dimensions:
        scores = along * np.sqrt(rng.chisquare(k, samples)) + across
        ranks.append(1.0 + (scores > scores[relevant].max(0)).sum(0))
    return np.array(ranks)


def worth(ranks: np.ndarray, measure: str) -> np.ndarray:
    """RR@n or Success@n of the rank of the first relevant document."""
    name, n = measure.split("@")
    inside = ranks <= int(n)
    return inside / ranks if name == "RR" else inside.astype(float)
