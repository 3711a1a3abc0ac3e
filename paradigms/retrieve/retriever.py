"""`Retriever`, the interface of everything that searches."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from paradigms.data import Run
from paradigms.explanation import Explanation


@runtime_checkable
class Retriever(Protocol):
    """Anything that retrieves and scores the documents of one corpus.

    queries: id → text. Documents are ranked best first, with ties broken by id.
    """

    def size_in_bytes(self) -> int:
        """Return the number of bytes that the retriever stores to answer queries."""

    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        """Return the k best documents for each query, or fewer if fewer match."""

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        """Rescore and rerank the documents that the run lists for each query.

        Raises KeyError if a query has no text or a document is unknown.
        """

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        """Explain a document's score by its tokens; return an explanation for each model with an alignment.

        others: ids of the query's other candidates, on which XTR's alignment depends.
        """
