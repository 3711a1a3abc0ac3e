"""The parts of a paradigm besides its encoder, as plain data: alignment A, normaliser Z, search and τ."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from paradigms.align import NORMALISERS, Alignment, PoolExcess, PoolTopK, QueryToDocument, as_alignment
from paradigms.core import Normalise, Tokens
from paradigms.impute import IMPUTATIONS
from paradigms.io.checks import OneLine, Range, check_types


@dataclass(frozen=True)
class Recipe:
    """The parts of a paradigm besides its encoder; `described` gives their saved form."""

    name: Annotated[str, OneLine()]
    align: Alignment
    normalise: str  # a key of align.NORMALISERS
    # How an index scores: "gather" loads every token of a candidate and computes rel; "impute" has only
    # the tokens that a token search retrieved and fills in the missing similarities (XTR).
    search: Literal["gather", "impute"] = "gather"
    # k': corpus tokens retrieved per query token, to impute or for candidates
    search_tokens: Annotated[int, Range(1, 1 << 31)] = 1000
    imputation: str = "kth"  # a key of impute.IMPUTATIONS, where search = "impute"
    temperature: float = 0.05  # of the softmax over rel in training

    def __post_init__(self) -> None:
        check_types(self)
        for kind, name, table in (
            ("normaliser", self.normalise, NORMALISERS),
            ("imputation", self.imputation, IMPUTATIONS),
        ):
            if name not in table:
                raise ValueError(f"unknown {kind} {name!r} of {self.name}; there are {', '.join(table)}")
        if self.search == "impute" and not isinstance(self.align, PoolTopK | PoolExcess | QueryToDocument):
            raise ValueError(
                f"search of {self.name} is 'impute', which fills in maxima over a document's tokens; the "
                f"alignment {self.align} has none: set search to 'gather'"
            )

    def described(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return vars(self) | {"align": str(self.align)}

    @property
    def normalise_function(self) -> Normalise:
        """Return the function that computes the normaliser Z."""
        return NORMALISERS[self.normalise]

    def with_salience(self, queries: Tokens) -> tuple["Recipe", Tokens]:
        """Return an equivalent recipe and queries; see `Alignment.with_salience`."""
        align, queries = self.align.with_salience(queries)
        return self if align is self.align else replace(self, align=align), queries

    @property
    def reads_pool(self) -> bool:
        """Return whether a document's score depends on the other candidates."""
        return self.search == "impute" or "pool" in self.align.reads


def recipe_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the output of `described` to recipe fields."""
    return dict(values) | ({"align": as_alignment(values["align"])} if "align" in values else {})
