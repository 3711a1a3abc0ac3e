"""What makes a paradigm besides its encoder, as plain data: A, Z, how an index scores, τ."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any, Literal, get_type_hints

from paradigms.align import ALIGNMENTS, NORMALISERS, UNBOUNDED, Alignment
from paradigms.core import Align, Normalise
from paradigms.impute import IMPUTATIONS
from paradigms.io.typed import check_type, check_types


@dataclass(frozen=True)
class Recipe:
    """What makes a paradigm besides its encoder: plain data, saved beside the weights."""

    name: str
    align: str  # a key of align.ALIGNMENTS
    normalise: str  # a key of align.NORMALISERS
    align_knobs: Mapping[str, Any] = field(default_factory=dict)
    # How an index scores: "gather" loads every token of a candidate and computes rel; "impute" has only
    # the tokens that a token search retrieved and fills in the missing similarities (XTR).
    search: Literal["gather", "impute"] = "gather"
    search_tokens: int = 1000  # k': corpus tokens retrieved per query token, to impute or for candidates
    imputation: str = "kth"  # a key of impute.IMPUTATIONS, where search = "impute"
    temperature: float = 0.05  # of the softmax over rel in training

    def __post_init__(self) -> None:
        check_types(self)
        for kind, name, known in (
            ("alignment", self.align, ALIGNMENTS),
            ("normaliser", self.normalise, NORMALISERS),
            ("imputation", self.imputation, IMPUTATIONS),
        ):
            if name not in known:
                raise ValueError(f"unknown {kind} {name!r} of {self.name}; there are {', '.join(known)}")
        if self.search_tokens < 1:
            raise ValueError(f"search_tokens of {self.name} must be at least 1, got {self.search_tokens}")
        if self.search == "impute" and self.align not in ("pool_top_k", "query_to_document"):
            raise ValueError(
                f"search of {self.name} is 'impute', which fills in maxima over a document's tokens; the "
                f"alignment {self.align} takes none: set search to 'gather'"
            )
        function = self.alignment.function
        try:
            signature(function).bind(*[None] * 4, **self.align_knobs)
        except TypeError as error:
            raise ValueError(f"align_knobs of {self.name}, alignment {self.align}: {error}") from error
        kinds = get_type_hints(function)
        for knob, value in self.align_knobs.items():
            check_type(f"{self.align}'s {knob}", value, kinds[knob])

    @property
    def alignment(self) -> Alignment:
        """The entry of `align.ALIGNMENTS`."""
        return ALIGNMENTS[self.align]

    @property
    def align_function(self) -> Align:
        """A, with its knobs."""
        return partial(self.alignment.function, **self.align_knobs)

    @property
    def normalise_function(self) -> Normalise:
        """Z."""
        return NORMALISERS[self.normalise]

    @property
    def reads_pool(self) -> bool:
        """Whether the score of a document depends on which other candidates there are."""
        return self.search == "impute" or "pool" in self.alignment.reads

    def is_maximum(self, longest: int = UNBOUNDED) -> bool:
        """Whether A is one argmax over i for each j, in documents of at most `longest` tokens."""
        return self.alignment.is_maximum(longest, **self.align_knobs)

    def is_maxsim(self, longest: int = UNBOUNDED) -> bool:
        """`is_maximum`, over all tokens of a document whatever their ids."""
        return self.is_maximum(longest) and "ids" not in self.alignment.reads
