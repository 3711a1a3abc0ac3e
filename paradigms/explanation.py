"""The results of a search, and of `explain`: S, A and Z for one query and one document."""

from dataclasses import dataclass
from typing import NamedTuple

from paradigms.rooms import Entry


class Result(NamedTuple):
    """A document and its score for a query. text: "" if the retriever does not keep texts."""

    id: str
    score: float
    text: str = ""


@dataclass
class Picture:
    """A document that is an image, cut into columns × rows patches.

    source: the image as a data: URL. width, height: its size in pixels. tokens: the document token of each
    patch, row by row.
    """

    source: str
    width: int
    height: int
    columns: int
    rows: int
    tokens: list[int]


@dataclass
class Explanation:
    """One model's alignment A for one document and query: the terms that `rel` sums, by token.

    links: the nonzero entries of A as (i, j, s, a): document token, query token, S[i, j], A[i, j]. rel = 1/Z
    Σ s·a + rest. reads: the inputs on which A may depend. Saliences are one weight per token, or None.
    """

    system: str
    reads: str
    query_tokens: list[str]
    document_tokens: list[str]
    links: list[tuple[int, int, float, float]]
    Z: float
    rel: float
    query_salience: list[float] | None = None
    document_salience: list[float] | None = None
    rest: float = 0.0  # the part of rel that belongs to no pair
    picture: Picture | None = None  # the document, if it is one

    def _repr_html_(self) -> str:
        """Render the explanation as a card for a notebook."""
        html: str = Entry("framed")([self])
        return html
