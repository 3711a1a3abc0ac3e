"""Queries that are documents: their own document is left out by default, and only theirs."""

import pytest

from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus, Split
from paradigms.data.identical import own_documents, searching_others, without_own

CORPUS = Corpus(["a", "b", "c"], ["Ships  Ships sail far", "boats sail", "a cat"], ["Ships", "", ""])


@pytest.mark.parametrize(
    ("queries", "choice", "own"),
    [
        ({"a": "ships sail far", "q": "a cat"}, "auto", {"a"}),  # ArguAna: the text without its title
        ({"a": "a cat", "b": "stars", "q": "boats sail"}, "auto", set()),  # ids that are equal by chance
        ({"a": "a cat", "b": "stars"}, "leave_out", {"a", "b"}),
        ({"a": "ships sail far"}, "keep", set()),
        ({"q": "ships sail far"}, "leave_out", set()),
    ],
)
def test_which_documents_are_queries(queries: dict[str, str], choice: str, own: set[str]):
    assert own_documents(CORPUS, Split(queries, {}), choice) == own


def test_a_document_that_is_relevant_to_itself_is_kept():
    split = Split({"a": "ships sail far", "b": "boats sail"}, {"a": {"a": 1}, "b": {"a": 1}})
    assert own_documents(CORPUS, split) == {"b"}
    assert own_documents(CORPUS, split, "leave_out") == {"a", "b"}


def test_k_other_documents_are_found():
    queries = {"a": "ships sail far", "q": "ships sail far"}
    bm25 = BM25.build(CORPUS, CORPUS.ids)
    run = searching_others(bm25.search, own_documents(CORPUS, Split(queries, {})))(queries, 1)
    assert {query: list(found) for query, found in run.items()} == {"a": ["b"], "q": ["a"]}
    assert without_own({"a": {"a": 2.0, "b": 1.0}}, {"a"}) == {"a": {"b": 1.0}}


def test_an_unknown_choice_is_refused():
    with pytest.raises(ValueError, match="identical_ids must be one of auto, leave_out, keep, got 'yes'"):
        own_documents(CORPUS, Split({}, {}), "yes")
