"""The interface of everything that searches."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from paradigms.data import Run
from paradigms.explanation import Explanation


@runtime_checkable
class Retriever(Protocol):
    """Anything that retrieves and scores the documents of one corpus.

    queries: id → text. Documents are ranked best first, equal scores by id.
    """

    def size_in_bytes(self) -> int:
        """The number of bytes kept to answer queries."""

    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        """Rank the k best documents for each query, or fewer if fewer match."""

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        """Score the documents that the run lists for each query.

        Raises KeyError for a query without a text or an unknown document.
        """

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        """Explain a document's score by its tokens; return one explanation per model that has an A.

        query: the query's text. document: the document's id. others: ids of the other candidates, which XTR's
        A reads.
        """
