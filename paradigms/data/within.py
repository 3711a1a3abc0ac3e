"""Divide queries within documents: every relevant document of a test query also has training queries.

This is the setting of generative retrieval: NQ320K has 307,373 training pairs for 109,739 documents, and its
test queries ask for these documents (Wu et al. 2024, §6.1).
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace

from paradigms.data import near
from paradigms.data.assembly import Digest, some_documents
from paradigms.data.collection import Collection, Judgements, Split, all_queries
from paradigms.data.pydocs import MOST, parameters, uniform

WITHIN = "within documents"
TEST, DEV = 0.25, 0.1  # shares of the queries, if their documents keep a training query
NEAR = 0.5  # minimum Jaccard similarity of near copies' word triples


def within_documents(collection: Collection) -> Collection:
    """Divide a collection's queries into new train, dev and test splits over the same documents.

    Dev and test queries are drawn by a hash of their ids. Each relevant document keeps a training query and
    does not contain its dev or test queries word for word. Near-duplicates of training queries are left out
    and counted in `problems`. In pydocs, a training query is added for each parameter that a document
    describes. Raises ValueError if an id has two different queries, or if no document has two queries.
    """
    queries, judged = all_queries(collection)
    if collection.built_in:
        _add_parameters(collection, queries, judged)
    splits = _draw_splits(collection, queries, judged)
    if not splits:
        raise ValueError(f"{collection.name}: no document has two queries, so none can be a test query")
    train = [query for query in queries if query not in splits]
    problems = deepcopy(collection.problems)
    chosen: dict[str, list[str]] = {"train": train, "dev": [], "test": []}
    copies = _near_train([queries[query] for query in train], [queries[query] for query in splits])
    for (query, split), copy in zip(splits.items(), copies, strict=True):
        if copy:
            problems.add("near copy of a training query (left out)", query)
        else:
            chosen[split].append(query)
    merged = Split(queries, judged)
    digest = Digest()
    digest.add(WITHIN, collection.fingerprint)
    for split, ids in chosen.items():
        digest.add(split, *ids, *(queries[query] for query in ids))
    return replace(
        collection,
        name=f"{collection.name}, {WITHIN}",
        splits={split: merged.only(sorted(ids)) for split, ids in chosen.items()},
        problems=problems,
        fingerprint=digest.hexdigest(),
    )


def _draw_splits(collection: Collection, queries: dict[str, str], judged: Judgements) -> dict[str, str]:
    """Draw dev and test queries by a hash of their ids; return query id -> split."""
    corpus = collection.corpus
    relevant = {query: _relevant(grades) for query, grades in judged.items()}
    left = Counter(document for documents in relevant.values() for document in documents)
    splits: dict[str, str] = {}
    for place, query in sorted((uniform(query), query) for query in queries if relevant[query]):
        if place >= TEST + DEV:
            break
        phrase = near.phrase(queries[query])
        texts = (corpus[corpus.position(document)] for document in relevant[query])
        if min(left[document] for document in relevant[query]) > 1 and not any(
            phrase in near.phrase(text) for text in texts
        ):
            splits[query] = "test" if place < TEST else "dev"
            left.subtract(relevant[query])
    return splits


def _near_train(train: list[str], others: list[str]) -> list[bool]:
    """Return whether each of the other texts is nearly a training text; some are too short for triples."""
    phrases = set(map(near.phrase, train))
    copies = near.near_copies([*train, *others], NEAR, originals=len(train))[len(train) :]
    return [copy or near.phrase(text) in phrases for text, copy in zip(others, copies, strict=True)]


def _relevant(grades: dict[str, int]) -> list[str]:
    return [document for document, grade in grades.items() if grade > 0]


def most_asked(collection: Collection, documents: int) -> Collection:
    """Restrict a collection to the `documents` with the most queries, and to the queries for them.

    A hash of ids breaks ties. Raises ValueError if `documents` is below 1.
    """
    if documents < 1:
        raise ValueError(f"documents must be at least 1, got {documents}")
    counts = Counter(d for grades in all_queries(collection)[1].values() for d in _relevant(grades))
    ids = sorted(collection.corpus.ids, key=lambda id: (-counts[id], uniform(id)))
    remaining = set(ids[:documents])
    judgements = {
        name: (
            (query, id, grade)
            for query, grades in split.judgements.items()
            for id, grade in grades.items()
            if id in remaining and any(grades[d] > 0 for d in grades.keys() & remaining)
        )
        for name, split in collection.splits.items()
    }
    name = f"{collection.name}, {len(remaining):,} documents with the most queries"
    return some_documents(collection, name, remaining, judgements)


def learned_share(train: Split, test: Split) -> float:
    """Return the share of test queries whose relevant documents all have training queries."""
    learned = {document for grades in train.judgements.values() for document in _relevant(grades)}
    relevant = [_relevant(grades) for grades in test.judgements.values()]
    return sum(learned.issuperset(documents) for documents in relevant) / max(1, len(relevant))


def _add_parameters(collection: Collection, queries: dict[str, str], judged: Judgements) -> None:
    """Replace the parameter queries by one query for each parameter description in any document."""
    for query in [query for query in queries if query.startswith("p:")]:
        del queries[query], judged[query]
    holders: dict[str, dict[str, str]] = {}  # words -> document -> its sentence
    for id, text in zip(collection.corpus.ids, collection.corpus, strict=True):
        for sentence in parameters(text):
            holders.setdefault(near.phrase(sentence), {}).setdefault(id, sentence)
    for number, sentences in enumerate(holders.values()):
        if len(sentences) <= MOST:
            id, sentence = next(iter(sentences.items()))
            queries[f"p{number}:{id}"] = sentence
            judged[f"p{number}:{id}"] = dict.fromkeys(sentences, 1)
