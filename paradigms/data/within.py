"""Divide queries within documents: every relevant document of a test query also has training queries.

This is the setting of generative retrieval: NQ320K has 307,373 training pairs for 109,739 documents, and its
test queries ask for these documents (Wu et al. 2024, §6.1). Other collections are split by article or module.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace

from paradigms.data import near
from paradigms.data.collection import Collection, Digest, Split, all_queries, some_documents
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
    relevant = {q: [d for d, grade in grades.items() if grade > 0] for q, grades in judged.items()}
    corpus = collection.corpus
    left = Counter(d for documents in relevant.values() for d in documents)  # queries in train
    held: dict[str, str] = {}  # dev and test queries
    for draw, query in sorted((uniform(query), query) for query in queries if relevant[query]):
        if draw >= TEST + DEV:
            break
        phrase = near.phrase(queries[query])
        if min(left[d] for d in relevant[query]) > 1 and not any(
            phrase in near.phrase(corpus[corpus.position(d)]) for d in relevant[query]
        ):
            held[query] = "test" if draw < TEST else "dev"
            left.subtract(relevant[query])
    if not held:
        raise ValueError(f"{collection.name}: no document has two queries, so none can be a test query")
    train = [query for query in queries if query not in held]
    texts = [queries[q] for q in (*train, *held)]
    copies = near.near_copies(texts, NEAR, originals=len(train))[len(train) :]
    problems = deepcopy(collection.problems)
    chosen: dict[str, list[str]] = {"train": train, "dev": [], "test": []}
    learned = {near.phrase(queries[query]) for query in train}  # some are too short for triples
    for (query, name), copy in zip(held.items(), copies, strict=True):
        if copy or near.phrase(queries[query]) in learned:
            problems.add("near copy of a training query (left out)", query)
        else:
            chosen[name].append(query)
    whole = Split(queries, judged)
    digest = Digest()
    digest.add(WITHIN, collection.fingerprint)
    for name, ids in chosen.items():
        digest.add(name, *ids, *(queries[q] for q in ids))
    return replace(
        collection,
        name=f"{collection.name}, {WITHIN}",
        splits={name: whole.only(sorted(ids)) for name, ids in chosen.items()},
        problems=problems,
        fingerprint=digest.hexdigest(),
    )


def most_asked(collection: Collection, documents: int) -> Collection:
    """Restrict a collection to the documents with the most queries, and to the queries for them.

    documents: how many to keep, at least 1. A hash of ids breaks ties between documents with equally many
    queries.
    """
    if documents < 1:
        raise ValueError(f"documents must be at least 1, got {documents}")
    judged = all_queries(collection)[1].values()
    asked = Counter(d for grades in judged for d, grade in grades.items() if grade > 0)
    kept = set(sorted(collection.corpus.ids, key=lambda id: (-asked[id], uniform(id)))[:documents])
    judgements = {
        name: (
            (query, id, grade)
            for query, grades in split.judgements.items()
            for id, grade in grades.items()
            if id in kept and any(grades[d] > 0 for d in grades.keys() & kept)
        )
        for name, split in collection.splits.items()
    }
    name = f"{collection.name}, {len(kept):,} documents with the most queries"
    return some_documents(collection, name, kept, judgements)


def learned_share(train: Split, test: Split) -> float:
    """Return the share of test queries whose relevant documents all have training queries."""
    learned = {d for judged in train.judgements.values() for d, grade in judged.items() if grade > 0}
    wanted = [{d for d, grade in judged.items() if grade > 0} for judged in test.judgements.values()]
    return sum(documents <= learned for documents in wanted) / max(1, len(wanted))


def _add_parameters(
    collection: Collection, queries: dict[str, str], judged: dict[str, dict[str, int]]
) -> None:
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
