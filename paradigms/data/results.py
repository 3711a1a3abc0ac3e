"""A `search` that takes one text, several texts, or texts by id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, cast, overload, runtime_checkable

from paradigms.explanation import Result
from paradigms.io.checks import as_sequence

if TYPE_CHECKING:
    from paradigms.data.collection import Run


@runtime_checkable
class Search(Protocol):
    """The `search` of a retriever. Documents are ranked best first, with ties broken by id.

    A dict, id → text, is answered by a `Run`; one text by a list of results; several texts by a list for
    each. k: number of documents for each query.
    """

    @overload
    def __call__(self, queries: str, k: int = 100, *, progress: bool = False) -> list[Result]: ...
    @overload
    def __call__(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run: ...
    @overload
    def __call__(
        self, queries: list[str] | tuple[str, ...], k: int = 100, *, progress: bool = False
    ) -> list[list[Result]]: ...


def any_queries(search: Callable[..., Run]) -> Search:
    """Let a retriever's method, whose queries are a dict, also take one text or several.

    A result has the text that the retriever's `corpus` has for the id.
    """

    @wraps(search)
    def searching(retriever: Any, queries: Any, k: int = 100, *, progress: bool = False) -> Any:
        if queries is None or isinstance(queries, Mapping):
            return search(retriever, queries, k, progress=progress)
        texts = [queries] if isinstance(queries, str) else as_sequence(queries, "queries")
        run = search(retriever, {str(n): text for n, text in enumerate(texts)}, k, progress=progress)
        corpus = getattr(retriever, "corpus", None)

        def text_of(id: str) -> str:
            return corpus[corpus.position(id)] if corpus is not None and corpus.has(id) else ""

        rankings = [[Result(id, score, text_of(id)) for id, score in one.items()] for one in run.values()]
        return rankings[0] if isinstance(queries, str) else rankings

    return cast(Search, searching)
