"""Define requests to the service, one dataclass per POST path, with field checks and OpenAPI schemas."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import MISSING, dataclass, fields
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from paradigms.align import NORMALISERS, as_alignment
from paradigms.io.checks import Most, Range, check_known, check_types, json_object
from paradigms.serve.systems import View

MOST_BYTES = 1 << 20  # maximum size of a request
MOST_TEXTS = 256  # maximum number of texts in a request
MOST_CHARACTERS = 100_000  # maximum length of a text
MOST_DOCUMENTS = 1000  # maximum number of documents that a search returns for a query

Parsed = TypeVar("Parsed", bound="Request")  # not Self, which beartype does not accept here

TEXTS = Most(MOST_TEXTS, "entries")
CHARACTERS = Most(MOST_CHARACTERS, "characters")
TYPES = {int: "integer", bool: "boolean", float: "number", NoneType: "null"}
Text = Annotated[str, CHARACTERS]
Texts = Annotated[dict[Text, Text], TEXTS]
Optional = Annotated[str | None, CHARACTERS]


@dataclass(frozen=True)
class Request:
    """The body of a request, a JSON object. Raises ValueError, with a one-sentence message, if invalid."""

    def __post_init__(self) -> None:
        check_types(self)

    @classmethod
    def read(cls: type[Parsed], body: bytes) -> Parsed:
        """Parse a request from its JSON body."""
        values = cls.renamed(json_object(body, "the request"))
        check_known(cls, values, "the request has unknown entries")
        missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in values]
        if missing:
            raise ValueError(f"the request lacks {' and '.join(missing)}")
        return cls(**values)

    @classmethod
    def renamed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return a request's entries under the names of the fields."""
        return values


@dataclass(frozen=True, kw_only=True)
class Viewed(Request):
    """A request that selects systems and may override their alignment A, normaliser Z and salience."""

    systems: Annotated[list[Text] | None, TEXTS] = None
    align: Optional = None
    normalise: Optional = None
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

    queries: Texts
    k: Annotated[int, Range(1, MOST_DOCUMENTS)] = 10
    characters: Annotated[int, Range(0, MOST_CHARACTERS)] = 0


@dataclass(frozen=True, kw_only=True)
class Rerank(Viewed):
    """Score each query's documents. run: {query id: [document id, …]}."""

    queries: Texts
    run: Annotated[dict[Text, list[Text]], TEXTS]


@dataclass(frozen=True, kw_only=True)
class Explain(Viewed):
    """Explain one document's score by similarities S, alignment A and normaliser Z; also return its rank.

    text: an edited text to use instead of the document's text."""

    query: Text
    document: Text
    text: Optional = None


@dataclass(frozen=True, kw_only=True)
class Encode(Request):
    """Encode texts to token vectors with one system."""

    system: Text
    texts: Annotated[list[Text], TEXTS]
    side: Literal["query", "document"] = "query"


@dataclass(frozen=True, kw_only=True)
class Differences(Request):
    """List judged queries by the difference in nDCG@10 between two systems, with the largest first."""

    systems: Annotated[list[Text], TEXTS]


class Foreign(Request):
    """A request in the shape of another API, whose entries that have no meaning here are ignored."""

    @classmethod
    def renamed(cls, values: dict[str, Any]) -> dict[str, Any]:
        names = {field.name for field in fields(cls)}
        return {name: value for name, value in values.items() if name in names}


@dataclass(frozen=True, kw_only=True)
class RerankTexts(Foreign):
    """Score texts, which need not be in the corpus, in the shape of Cohere, Jina and vLLM.

    model: name of a system; may be left out if there is one. documents: texts, or objects with the entry
    text. top_n: number of results; null means all."""

    query: Text
    documents: Annotated[list[Text], Most(MOST_DOCUMENTS, "entries")]
    model: Text = ""
    top_n: Annotated[int | None, Range(1, 1 << 31)] = None
    return_documents: bool = False

    @classmethod
    def renamed(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = super().renamed(values)
        documents = values.get("documents")
        if isinstance(documents, list):
            texts = [one["text"] if isinstance(one, dict) and "text" in one else one for one in documents]
            values["documents"] = texts
        return values


@dataclass(frozen=True, kw_only=True)
class Embeddings(Foreign):
    """Encode texts to one vector each, in the shape of OpenAI.

    model: name of a system with one vector per text; may be left out if there is one system. input: a text or
    a list of texts. dimensions: must be the width of the system's vectors. input_type: side of the texts."""

    input: Annotated[list[Text], Most(MOST_TEXTS, "entries")]
    model: Text = ""
    encoding_format: Literal["float", "base64"] = "float"
    input_type: Literal["query", "document"] = "document"
    dimensions: int | None = None

    @classmethod
    def renamed(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = super().renamed(values)
        if isinstance(values.get("input"), str):
            values["input"] = [values["input"]]
        return values


def schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type; numbers have the bounds of their `Range`.

    >>> schema(dict[str, Annotated[int, Range(1, 9)]])
    {'type': 'object', 'additionalProperties': {'type': 'integer', 'minimum': 1, 'maximum': 9}}
    """
    arguments = get_args(kind)
    if get_origin(kind) is Annotated:
        plain, bounds = arguments
        limits = {"minimum": bounds.least, "maximum": bounds.most} if isinstance(bounds, Range) else {}
        return schema(plain) | limits
    if get_origin(kind) is Literal:
        return {"type": "string", "enum": list(arguments)}
    if get_origin(kind) is list:
        return {"type": "array", "items": schema(arguments[0])}
    if get_origin(kind) is dict:
        return {"type": "object", "additionalProperties": schema(arguments[1])}
    if arguments:  # of a union
        parts = list(map(schema, arguments))
        return dict(ChainMap(*parts)) | {"type": [part["type"] for part in parts]}
    return {"type": TYPES.get(kind, "string")}


def schema_of(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a dataclass: of a request, or of an alignment's settings."""
    hints = get_type_hints(kind, include_extras=True)
    properties = {
        field.name: schema(hints[field.name])
        | ({} if field.default is MISSING else {"default": field.default})
        for field in fields(kind)
    }
    required = [field.name for field in fields(kind) if field.default is MISSING]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
