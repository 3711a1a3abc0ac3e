"""Define requests to the service, one dataclass per POST path, with field checks and OpenAPI schemas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from paradigms.align import NORMALISERS, as_alignment
from paradigms.io.checks import Range, check_known, check_text, check_types, parse_json
from paradigms.serve.systems import View

MOST_BYTES = 1 << 20  # maximum size of a request
MOST_TEXTS = 256  # maximum number of texts in a request
MOST_CHARACTERS = 100_000  # maximum length of a text
MOST_DOCUMENTS = 1000  # maximum number of documents that a search returns for a query
Asked = TypeVar("Asked", bound="Request")


@dataclass(frozen=True)
class Request:
    """The body of a request, a JSON object. Raises ValueError, with a one-sentence message, if invalid."""

    def __post_init__(self) -> None:
        check_types(self)
        for field in fields(self):
            value = getattr(self, field.name)
            texts = [value] if isinstance(value, str) else value if isinstance(value, list | dict) else []
            if len(texts) > MOST_TEXTS:
                raise ValueError(f"{field.name} has {len(texts):,} entries, more than {MOST_TEXTS}")
            if isinstance(texts, dict):
                check_texts(f"an id in {field.name}", texts.keys())
                texts = list(texts.values())
            if not isinstance(self, Rerank) or field.name != "run":
                check_texts(field.name, texts)

    @classmethod
    def read(cls: type[Asked], body: bytes) -> Asked:
        """Parse a request from its JSON body."""
        values = parse_json(body, "the request")
        if not isinstance(values, dict):
            raise ValueError("the request must be a JSON object")
        check_known(cls, values, "the request has unknown entries")
        missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in values]
        if missing:
            raise ValueError(f"the request lacks {' and '.join(missing)}")
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Viewed(Request):
    """A request that selects systems and may override their alignment A, normaliser Z and salience."""

    systems: list[str] | None = None
    align: str | None = None
    normalise: str | None = None
    salience: bool = True

    @property
    def view(self) -> View:
        if self.normalise is not None and self.normalise not in NORMALISERS:
            raise ValueError(f"unknown Z {self.normalise!r:.80}; there are {', '.join(NORMALISERS)}")
        align = None if self.align is None else as_alignment(self.align)
        return View(align, self.normalise, self.salience)


@dataclass(frozen=True, kw_only=True)
class Search(Viewed):
    """Return the k best documents for each query.

    queries: {id: text}. If the request sets the alignment A, the normaliser Z or salience, each system
    reranks its first 100 documents. characters: number of characters of each document's text to return, after
    the title."""

    queries: dict[str, str]
    k: Annotated[int, Range(1, MOST_DOCUMENTS)] = 10
    characters: Annotated[int, Range(0, 100_000)] = 0


@dataclass(frozen=True, kw_only=True)
class Rerank(Viewed):
    """Score each query's documents. run: {query id: [document id, …]}."""

    queries: dict[str, str]
    run: dict[str, list[str]]

    def __post_init__(self) -> None:
        super().__post_init__()
        for query, documents in self.run.items():
            if not isinstance(documents, list):
                raise ValueError(f"run of {query!r:.80} must be a list of document ids")
            check_texts(f"run of {query!r:.80}", documents)


@dataclass(frozen=True, kw_only=True)
class Explain(Viewed):
    """Explain one document's score by similarities S, alignment A and normaliser Z; also return its rank.

    text: an edited text to use instead of the document's text."""

    query: str
    document: str
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class Encode(Request):
    """Encode texts to token vectors with one system."""

    system: str
    texts: list[str]
    side: Literal["query", "document"] = "query"


@dataclass(frozen=True, kw_only=True)
class Differences(Request):
    """List judged queries by the difference in nDCG@10 between two systems, with the largest first."""

    systems: list[str]


def check_texts(name: str, texts: Iterable[Any]) -> None:
    """Raise ValueError unless all values are strings of at most `MOST_CHARACTERS` characters."""
    for text in texts:
        try:
            check_text(text, name)
        except TypeError as error:
            raise ValueError(str(error)) from None
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"{name} has {len(text):,} characters, more than {MOST_CHARACTERS:,}")


def schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a field's type.

    >>> schema(list[str])
    {'type': 'array', 'items': {'type': 'string'}}
    """
    if get_origin(kind) is Annotated:
        plain, bounds = get_args(kind)
        return schema(plain) | {"minimum": bounds.least, "maximum": bounds.most}
    if get_origin(kind) is Literal:
        return {"type": "string", "enum": list(get_args(kind))}
    if get_origin(kind) is list:
        return {"type": "array", "items": schema(get_args(kind)[0])}
    if get_origin(kind) is dict:
        return {"type": "object", "additionalProperties": schema(get_args(kind)[1])}
    if NoneType in get_args(kind):
        (plain,) = (part for part in get_args(kind) if part is not NoneType)
        return {"anyOf": [schema(plain), {"type": "null"}]}
    return {"type": {str: "string", int: "integer", bool: "boolean", float: "number"}[kind]}


def schema_of(kind: type[Request]) -> dict[str, Any]:
    """Return the JSON schema of a request class."""
    hints = get_type_hints(kind, include_extras=True)
    properties = {}
    for field in fields(kind):
        default = {} if field.default is MISSING else {"default": field.default}
        properties[field.name] = schema(hints[field.name]) | default
    required = [field.name for field in fields(kind) if field.default is MISSING]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
