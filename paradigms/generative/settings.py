"""Settings for generative paradigms, saved with the backbone and the identifiers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from paradigms.generative.identifiers import Identifiers
from paradigms.generative.outputs import PLACES, ScoreName
from paradigms.io.checks import OneLine, Range, check_types


@dataclass(frozen=True)
class GenerativeSettings:
    """Settings for `model.Generative`. Lengths are in tokens."""

    name: Annotated[str, OneLine()]
    # Layers of the new decoder that an encoder-only backbone gets; T5 and BART bring their decoders.
    decoder_layers: Annotated[int, Range(1, 64)] = 2
    frozen: bool = False  # the encoder is not trained: sources are encoded once (`Generative.keep_states`)
    # Length of the encoder's input: queries, and training passages used as queries.
    query_length: Annotated[int, Range(1, 1 << 13)] = 48
    # Length of a document's text, for spans, embeddings (DSI) and contexts (NP-decoding).
    document_length: Annotated[int, Range(1, 1 << 17)] = 128
    # Source of the identifier tokens' vectors. "backbone": the backbone's vocabulary; "own": new tables, for
    # identifiers that are not text; "clusters": contextual vectors of the corpus's tokens (NP-decoding).
    tokens: Literal["backbone", "own", "clusters"] = "backbone"
    pawa_rank: Annotated[int, Range(0, 1 << 13)] = 0  # > 0: PAWA, with E_v ∈ R^{h×rank}, at most h wide
    pawa_layers: Annotated[int, Range(1, 64)] = 1
    clusters: Annotated[int, Range(1, 1 << 12)] = 5  # maximum per surface token, if tokens = "clusters"
    # Cluster the tokens again with the current encoder after this many training steps (ASYNC); 0: never.
    refresh: Annotated[int, Range(0, 1 << 31)] = 0
    # Tokens over which p(token | prefix, q) is normalised: the vocabulary (a new decoder over an encoder uses
    # "identifiers" instead), the tokens of all identifiers, or the tokens at this position of any identifier.
    # It is never the set of tokens that may follow the prefix: beams would not be comparable.
    softmax: Literal["vocabulary", "identifiers", "place"] = "vocabulary"
    # Score used for reranking and search; if identifiers are texts, a search uses log-probabilities.
    score: ScoreName = "log_probability"
    # Tokens of a generated n-gram and of a document's windows, if identifiers are text.
    span: Annotated[int, Range(1, 1 << 10)] = 10
    beams: Annotated[int, Range(1, 1 << 12)] = 20

    def __post_init__(self) -> None:
        check_types(self)
        if self.refresh and self.tokens != "clusters":
            raise ValueError(f"refresh={self.refresh} renews NP-decoding's clusters: set tokens='clusters'")
        if self.tokens == "clusters" and self.document_length < 2:
            raise ValueError("document_length must be at least 2: NP-decoding reads tokens and </s>")
        if self.pawa_rank and self.tokens == "clusters":
            raise ValueError("PAWA and NP-decoding both replace the output vectors: choose one")


def without_sets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the setting of PAG's sets if it is 0: earlier versions wrote it for every model."""
    return {name: value for name, value in values.items() if (name, value) != ("set_size", 0)}


def check_places(settings: GenerativeSettings, identifiers: Identifiers) -> None:
    """Raise ValueError if the identifiers rule out a setting that depends on a token's position."""
    if settings.softmax == "place" and identifiers.end is None:
        raise ValueError(
            f"softmax='place' cannot be used with {identifiers.kind} identifiers: every substring names a "
            "document, so any token may occur at any position; set softmax='vocabulary'"
        )
    if settings.pawa_rank and identifiers.longest > PLACES:
        document = identifiers.documents[np.diff(identifiers.offsets).argmax()]
        raise ValueError(
            f"PAWA distinguishes {PLACES} positions, but the identifier of document {document!r} has "
            f"{identifiers.longest} tokens: shorten titles (title_length) or texts (document_length)"
        )
