"""Queries that are documents: by default each query's own document is left out, and no other."""

import pytest

from paradigms.data import Corpus, Split
from paradigms.data.identical import own_documents

CORPUS = Corpus(["a", "b", "c"], ["Ships  Ships sail far", "boats sail", "a cat"], ["Ships", "", ""])


@pytest.mark.parametrize(
    ("queries", "choice", "own"),
    [
        ({"a": "ships sail far", "q": "a cat"}, "auto", {"a"}),  # ArguAna: the text without its title
        ({"a": "a cat", "b": "stars", "q": "boats sail"}, "auto", set()),  # ids that are equal by chance
        ({"a": "a cat", "b": "stars"}, "leave_out", {"a", "b"}),
        ({"a": "ships sail far"}, "keep", set()),
    ],
)
def test_which_documents_are_queries(queries: dict[str, str], choice: str, own: set[str]):
    assert own_documents(CORPUS, Split(queries, {}), choice) == own


def test_a_document_that_is_relevant_to_itself_is_kept():
    split = Split({"a": "ships sail far", "b": "boats sail"}, {"a": {"a": 1}, "b": {"a": 1}})
    assert own_documents(CORPUS, split) == {"b"}
    assert own_documents(CORPUS, split, "leave_out") == {"a", "b"}
    with pytest.raises(ValueError, match="identical_ids must be one of auto, leave_out, keep, got 'yes'"):
        own_documents(CORPUS, split, "yes")
