"""What makes a generative paradigm besides its backbone and its identifiers: plain data, saved with them."""

from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

import numpy as np

from paradigms.generative.identifiers import Identifiers
from paradigms.generative.outputs import PLACES, ScoreName
from paradigms.io.typed import check_types

# How a small decoder over a frozen encoder is trained in a comparison: settings of `train.loop`.
TRAINING: dict[str, Any] = {"steps": 400, "batch_size": 64, "learning_rate": 2e-3, "warmup": 0.05}


@dataclass(frozen=True)
class GenerativeSettings:
    """Settings of `model.Generative`. Lengths are in tokens."""

    name: str
    # Of the decoder with random weights that an encoder without one gets; T5 and BART have their own.
    decoder_layers: int = 2
    frozen: bool = False  # the encoder is not trained: sources are encoded once (`Generative.keep_states`)
    query_length: int = 48  # of what the encoder reads: queries, and the passages it trains on in their place
    document_length: int = 128  # of a document's text: in its spans, its embedding (DSI), its context (NP)
    # Where the vectors of identifier tokens come from. "backbone": its own vocabulary; "own": new tables, for
    # identifiers that are no text; "clusters": NP-decoding, contextual vectors of the corpus's tokens.
    tokens: Literal["backbone", "own", "clusters"] = "backbone"
    pawa_rank: int = 0  # > 0: PAWA, with E_v ∈ R^{h×rank}
    pawa_layers: int = 1
    clusters: int = 5  # of each surface token at most, where tokens are "clusters"
    # Steps of training after which tokens are clustered anew, by the encoder as it then is (ASYNC); 0: never.
    refresh: int = 0
    # What p(token | prefix, q) is normalised over: the vocabulary (for a new decoder over an encoder `build`
    # takes "identifiers" instead), the tokens of all identifiers, or those that stand at this place of some
    # identifier. Never the tokens that may follow the prefix: beams would no longer be comparable.
    softmax: Literal["vocabulary", "identifiers", "place"] = "vocabulary"
    score: ScoreName = "log_probability"  # what ranks in rerank mode
    span: int = 10  # tokens of a generated n-gram, and of a document's windows, where identifiers are text
    beams: int = 20

    def __post_init__(self) -> None:
        check_types(self)
        for name, kind in get_type_hints(type(self)).items():
            least = 0 if name in ("pawa_rank", "refresh") else 1
            if kind is int and getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.refresh and self.tokens != "clusters":
            raise ValueError(f"refresh={self.refresh} renews the clusters of NP-decoding: tokens='clusters'")
        if self.tokens == "clusters" and self.document_length < 2:
            raise ValueError("NP-decoding reads tokens and </s>: document_length must be at least 2")
        if self.pawa_rank and self.tokens == "clusters":
            raise ValueError("PAWA and NP-decoding both replace the output vectors: choose one")


def check_places(settings: GenerativeSettings, identifiers: Identifiers) -> None:
    """ValueError where identifiers do not fit what the settings do by place."""
    if settings.softmax == "place" and identifiers.end is None:
        raise ValueError(
            f"softmax='place' does not go with {identifiers.kind} identifiers: every substring names a "
            "document, so any token may stand at any place; set softmax='vocabulary'"
        )
    if settings.pawa_rank and identifiers.longest > PLACES:
        owner = identifiers.owners[np.diff(identifiers.offsets).argmax()]
        raise ValueError(
            f"PAWA tells {PLACES} places apart, and the identifier of document "
            f"{identifiers.documents[owner]!r} has {identifiers.longest} tokens: shorten titles "
            "(title_length) or texts (document_length)"
        )
