"""Training examples (query, relevant document, hard negatives) from a collection, runs and a teacher."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from paradigms.data import Corpus, Problems, Run, Split, best_first
from paradigms.data.identical import own_documents, without_own
from paradigms.train.negatives import FalseNegatives, ScorePairs, teacher_scores


@dataclass(frozen=True)
class Example:
    query: str
    positive: int  # positions in the corpus; of documents with equal texts, that of the first one
    negatives: tuple[int, ...]
    relevant: tuple[int, ...]  # judged or presumed relevant to the query; never negatives
    teacher: tuple[float, ...] = ()  # the teacher's scores of the positive and of each negative


class Query(NamedTuple):
    """Training queries with equal texts, whose judgements are joined."""

    id: str  # the first of `ids`
    ids: list[str]
    text: str
    relevant: list[str]  # documents without copies


def build_examples(
    corpus: Corpus,
    split: Split,
    run: Run | None = None,
    negatives: int = 0,
    depth: int = 100,
    seed: int = 0,
    *,
    suspects: FalseNegatives | None = None,
    teacher: ScorePairs | None = None,
    problems: Problems | None = None,
) -> list[Example]:
    """Build one example per (query, relevant document) pair, with `negatives` hard negatives from `run`.

    Queries with equal texts are one query, whose judgements and rankings are joined; documents with equal
    texts are one document. A query that is itself a document (`own_documents`) is not its own negative.
    Negatives are drawn without replacement from the non-relevant documents in the first `depth` ranks, then
    from the corpus; the same arguments give the same result. suspects: detects false negatives by their
    scores; these become neither hard nor in-batch negatives, and are counted in `problems`. teacher: scores
    each example's documents. Raises ValueError if a pair has no score.
    """
    if negatives and run is None:
        raise ValueError(f"{negatives} hard negatives per query were requested, but no run to mine them from")
    problems = Problems() if problems is None else problems
    queries = _distinct_queries(corpus, split)
    self_documents = own_documents(corpus, split)
    ranked = _ranked(without_own(run or {}, self_documents), queries, corpus, depth)
    suspect_scores: Run = {}
    if suspects is not None:
        judged = {q.id: list(dict.fromkeys((*q.relevant, *ranked[q.id]))) for q in queries}
        suspect_scores = _joined(suspects.scores(judged), queries, corpus)
    ids: list[str] = []
    examples: list[Example] = []
    for query in queries:
        self_ids = [corpus.ids[corpus.first(id)] for id in query.ids if id in self_documents]
        for document in query.relevant:
            presumed: list[str] = []
            if suspects is not None:
                above = suspects.of(query.id, document, ranked[query.id], suspect_scores)
                presumed = sorted(above.difference(query.relevant))
            for dropped in presumed:
                problems.add("hard negative that may be relevant (left out)", f"{query.id} -> {dropped}")
            positive = corpus.position(document)
            relevant = [corpus.position(d) for d in (*query.relevant, *self_ids, *presumed)]
            avoided = set(relevant)
            hard = [p for p in map(corpus.position, ranked[query.id]) if p not in avoided]
            if suspects is not None and len(hard) < negatives:
                problems.add("example with too few hard negatives left (others drawn at random)", query.id)
            rng = random.Random(f"{seed} {query.id} {positive}")
            others = draw(hard, avoided, negatives, corpus, rng, query.id)
            ids.append(query.id)
            examples.append(Example(query.text, positive, tuple(others), tuple(relevant)))
    if teacher is None:
        return examples
    documents = [[corpus.ids[p] for p in (example.positive, *example.negatives)] for example in examples]
    scores = teacher_scores(
        list(zip(ids, documents, strict=True)), lambda pairs: _joined(teacher(pairs), queries, corpus)
    )
    return [replace(example, teacher=row) for example, row in zip(examples, scores, strict=True)]


def _distinct_queries(corpus: Corpus, split: Split) -> list[Query]:
    """Join queries with equal texts and a relevant document. Raises ValueError if there is none."""
    ids_of: dict[str, list[str]] = {}
    for query, judged in sorted(split.judgements.items()):
        if any(grade > 0 for grade in judged.values()):
            ids_of.setdefault(split.queries[query], []).append(query)
    if not ids_of:
        raise ValueError("the training split has no relevant document: nothing to train on")
    queries = []
    for text, ids in ids_of.items():
        relevant = sorted({d for id in ids for d, grade in split.judgements[id].items() if grade > 0})
        originals = dict.fromkeys(corpus.ids[corpus.first(document)] for document in relevant)
        queries.append(Query(ids[0], ids, text, list(originals)))
    return queries


def _ranked(run: Run, queries: Sequence[Query], corpus: Corpus, depth: int) -> dict[str, list[str]]:
    """Return the first `depth` documents of each query, without copies."""
    first = {id: best_first(run.get(id, {}), depth) for query in queries for id in query.ids}
    return {id: list(best_first(scores, depth)) for id, scores in _joined(first, queries, corpus).items()}


def _joined(run: Mapping[str, Mapping[str, float]], queries: Sequence[Query], corpus: Corpus) -> Run:
    """Join the scores of equal queries and of equal documents; the larger score counts."""
    joined: Run = {}
    for query in queries:
        scores = joined[query.id] = {}
        for id in query.ids:
            for document, score in run.get(id, {}).items():
                name = corpus.copies.get(document, document)
                scores[name] = max(score, scores.get(name, score))
    return joined


def draw(
    hard: Sequence[int], never: set[int], count: int, corpus: Corpus, rng: random.Random, query: str
) -> list[int]:
    """Draw `count` positions from `hard`, then from all positions except `never` and copies.

    hard, never: positions of documents that are not copies (`Corpus.first`). Raises ValueError, which names
    the query, if the corpus has too few documents.
    """
    positions = rng.sample(hard, min(count, len(hard)))
    different = len(corpus) - len(corpus.copies)
    if different - len(never.union(positions)) < count - len(positions):
        raise ValueError(f"query {query!r}: {different} different documents hold no {count} negatives")
    while len(positions) < count:
        p = rng.randrange(len(corpus))
        if p not in never and p not in positions and corpus.ids[p] not in corpus.copies:
            positions.append(p)
    return positions
