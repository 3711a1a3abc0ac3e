"""The division within documents: what each side may know of a document; no query is lost silently."""

import random
from dataclasses import replace

import pytest

from paradigms.data.assembly import assemble
from paradigms.data.within import learned_share, most_asked, within_documents

WORDS = ["river", "stone", "cloud", "tree", "bird", "fish", "lamp", "door", "wheel", "grass", "snow", "iron"]


def question(document: int, number: int) -> str:
    """Make a question that differs from all others."""
    return " ".join(random.Random(f"{document} {number}").sample(WORDS, 6))


def collection(documents: int = 40, each: int = 5, name: str = "made"):
    says = "says what no query asks in these words"
    texts = [(f"d{n}", "", f"document number {n} {says}") for n in range(documents)]
    queries = [(f"q{n}.{m}", f"{question(n, m)} {n}") for n in range(documents) for m in range(each)]
    judged = {"train": [], "test": []}
    for n in range(documents):
        judged["test" if n % 2 else "train"] += [(f"q{n}.{m}", f"d{n}", 1) for m in range(each)]
    return assemble(name, texts, queries, {name: iter(rows) for name, rows in judged.items()})


def test_every_test_document_has_training_queries_and_no_query_is_in_two_splits():
    full = collection()
    divided = within_documents(full)
    train, dev, test = (divided.split(name) for name in ("train", "dev", "test"))
    learned = {d for grades in train.judgements.values() for d in grades}
    assert learned == set(full.corpus.ids)
    assert learned_share(full.split("train"), full.split("test")) == 0
    left_out = sum(divided.problems.counts.values())
    assert len(train.queries) + len(dev.queries) + len(test.queries) + left_out == 200
    assert not train.queries.keys() & (dev.queries.keys() | test.queries.keys())
    assert len(test.queries) > len(dev.queries) > 0
    assert 20 < len(test.queries) < 80
    assert divided.fingerprint != full.fingerprint
    assert within_documents(full).splits == divided.splits  # drawn by ids alone


def test_the_documents_with_the_most_queries_are_kept_with_these():
    full = collection(documents=6, each=3)
    asked = full.split("train")
    fewer = asked.only(q for q in asked.queries if q not in ("q0.0", "q2.1", "q2.2"))
    results = most_asked(replace(full, splits={**full.splits, "train": fewer}), 4)
    assert results.corpus.ids == ["d1", "d3", "d4", "d5"]  # d0 and d2 have fewer than three queries
    assert results.split("train").queries.keys() == {"q4.0", "q4.1", "q4.2"}
    assert results.split("test") == full.split("test")
    assert results.fingerprint != full.fingerprint
    with pytest.raises(ValueError, match="at least 1, got 0"):
        most_asked(full, 0)


def test_near_copies_of_training_queries_and_words_of_a_document_are_no_test_queries():
    full = collection()
    train = within_documents(full).split("train")
    copied, quoted, *_ = within_documents(full).split("test").queries
    queries = {q: text for split in full.splits.values() for q, text in split.queries.items()}
    queries[copied] = next(iter(train.queries.values())).upper() + "!"
    queries[quoted] = "Document number " + quoted[1:].split(".")[0]
    of = {name: {q: queries[q] for q in split.queries} for name, split in full.splits.items()}
    full = replace(full, splits={name: replace(full.split(name), queries=of[name]) for name in of})
    divided = within_documents(full)
    assert all(copied not in split.queries for split in divided.splits.values())
    assert "near copy of a training query (left out)" in divided.problems.counts
    assert quoted in divided.split("train").queries


@pytest.mark.parametrize("built_in", [True, False])
def test_descriptions_of_parameters_train_and_summaries_test(built_in):
    text = "Some words that describe what it does at length.\n\nParameters\n----------\nsize : int\n    "
    kept = "that are kept in the result of call"
    sentences = [f"The number of {word} {kept} {n}." for n, word in enumerate(WORDS)]
    texts = [(f"d{n}", "", text + sentence) for n, sentence in enumerate(sentences)]
    queries = [(f"q:d{n}", f"{question(n, 2)} {n}") for n in range(len(WORDS))]
    judged = {"test": iter([(f"q:d{n}", f"d{n}", 1) for n in range(len(WORDS))])}
    full = assemble("pydocs-x", texts, queries, judged)
    if not built_in:  # a folder of this name
        with pytest.raises(ValueError, match="no document has two queries"):
            within_documents(full)
        return
    divided = within_documents(replace(full, built_in=True))
    held = {**divided.split("dev").queries, **divided.split("test").queries}
    assert held
    assert all(query.startswith("q:") for query in held)
    assert set(sentences) <= set(divided.split("train").queries.values())
