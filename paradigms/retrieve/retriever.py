"""The interface of everything that searches."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from paradigms.data import Run
from paradigms.explanation import Explanation


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds and scores the documents of one corpus.

    Queries map ids to texts. Documents are ranked best first; of equal scores the smaller id comes first.
    """

    def size_in_bytes(self) -> int:
        """Bytes that are kept to answer queries."""

    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        """Rank the k best documents for each query, or fewer where fewer match."""

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        """Score the documents that the run lists for each query.

        KeyError names a query without a text or an unknown document.
        """

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        """Break the score of a document down by token, once for each system that takes part.

        query: a text. document: an id. others: ids of the query's other candidates, which the A of some
        systems reads (XTR). Empty where A is not defined.
        """
