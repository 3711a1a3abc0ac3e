"""Encoder settings, which determine how text becomes D or Q, and in which paradigms' encoders differ."""

import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from paradigms.io.checks import Range, check_types

Side = Literal["query", "document"]
# A text's vectors: one pooled vector; the states of all tokens; or m vectors: the states of [CLS] and the
# first m − 1 tokens, the means of m equal spans, or a learned pooling of the tokens (`encoder/layers.py`).
Vectors = Literal["pooled", "all", "first", "spans", "learned"]
Salience = Literal["none", "entropic", "hard", "relu"]
SIDES: tuple[Side, Side] = ("query", "document")
LONGEST = 1 << 17  # tokens of a text
# Settings without a choice where an encoder's own heads make the vectors (SPLADE, BGE-M3)
FIXED: dict[str, Any] = {
    "dim": None,
    "layer_norm": False,
    "pooled_dim": 0,
    "salience": "none",
    "truncate": None,
    "query_vectors": "all",
    "document_vectors": "all",
}


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """Settings for computing D and Q. Lengths are in tokens and include special tokens and marker tokens."""

    # Fields besides query_… that do not change documents' vectors: they belong to queries or training, or are
    # recorded as weights (`projection_bias`, adapters) or as the vectors' dimension (`truncate`).
    NOT_OF_DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "attend_augmentation",
        "salience_l1",
        "lora_rank",
        "lora_targets",
        "dora",
        "projection_bias",
        "truncate",
    )

    encoder: str = "text"  # key of text.ENCODERS
    query_vectors: Vectors = "all"  # vectors of Q
    document_vectors: Vectors = "all"  # vectors of D
    # m of "first", "spans" and "learned"; a text of fewer tokens has fewer vectors
    vectors: Annotated[int, Range(1, 4096)] = 8
    pooling: Literal["cls", "mean", "max", "last"] = "cls"
    # h; None = the backbone's width, without a projection, which would start at random
    dim: Annotated[int | None, Range(1, 1 << 14)] = None
    # h' < h: first coordinates of each vector that are kept (`Paradigm.truncated`); None = all
    truncate: Annotated[int | None, Range(1, 1 << 14)] = None
    projection_bias: bool = False
    activation: Literal["identity", "tanh", "relu"] = "identity"  # after the projection
    layer_norm: bool = False  # trained layer norm after the projection
    normalize: bool = True  # L2-normalise vectors: similarities are cosines
    # COIL: width of the pooled vector that is added to the tokens; 0 = none
    pooled_dim: Annotated[int | None, Range(0, 1 << 14)] = 0
    query_length: Annotated[int, Range(1, LONGEST)] = 48
    document_length: Annotated[int, Range(1, LONGEST)] = 128
    query_marker: str = ""  # a token of the vocabulary that comes after [CLS]
    document_marker: str = ""
    query_prompt: str = ""  # a text that comes before the text, and is tokenised with it
    document_prompt: str = ""
    query_augmentation: bool = False  # pad queries with [MASK] tokens that count
    attend_augmentation: bool = False  # let the other tokens attend to these [MASK] tokens
    skip: str = ""  # document tokens that consist of one of these characters do not count
    skip_tokens: str = ""  # nor do these tokens of the vocabulary; spaces separate them
    special_tokens: bool = True  # whether [CLS], [SEP], </s> and one-token markers count
    salience: Salience = "none"  # gate λ of ALIGNER's salience head
    # weight γ of the mean salience in the training loss (train/contrastive.py)
    salience_l1: Annotated[float, Range(0, 1e6)] = 0.0
    # α^q: the gate's budget, as a share of the query tokens
    query_ratio: Annotated[float, Range(0, 1, above=True)] = 0.5
    document_ratio: Annotated[float, Range(0, 1, above=True)] = 0.4  # α^d
    eps: Annotated[float, Range(0, 1e6, above=True)] = 0.002  # ε of the entropic gate
    iterations: Annotated[int | None, Range(1, 1000)] = None  # iterations of Eq. 5; None = exact solution
    # rank of low-rank adapters, trained in place of the backbone's weights; 0 = none
    lora_rank: Annotated[int, Range(0, 1024)] = 0
    lora_targets: str = "all-linear"  # or a regular expression that matches full names of modules
    dora: bool = False  # learn magnitude and direction of weights separately

    def __post_init__(self) -> None:
        check_types(self)
        if self.pooled_dim != 0:
            if self.dim is None or (self.pooled_dim or 0) % self.dim != 0:
                raise ValueError(f"pooled_dim={self.pooled_dim} must be a multiple of dim={self.dim}")
            if not {self.query_vectors, self.document_vectors} <= {"all", "first"}:
                raise ValueError("pooled_dim joins a pooled vector to token vectors; these are pooled")
            if self.truncate is not None:
                raise ValueError("pooled_dim joins vectors that stay whole: leave out truncate or pooled_dim")
            if self.layer_norm:
                raise ValueError("layer_norm takes vectors of width dim; the pooled one has pooled_dim")
        if self.dim is None and (self.projection_bias or self.activation != "identity"):
            raise ValueError("projection_bias and activation belong to the projection that dim adds: set dim")
        if self.attend_augmentation and not self.query_augmentation:
            raise ValueError("attend_augmentation needs query_augmentation")
        if self.lora_rank == 0 and (self.dora or self.lora_targets != "all-linear"):
            raise ValueError("dora and lora_targets configure adapters: set lora_rank above 0")
        if self.salience_l1 > 0 and not self.weighs:
            raise ValueError(f"salience_l1={self.salience_l1} needs a salience: set salience to 'relu'")

    def changed(self, values: Mapping[str, Any]) -> list[str]:
        return [name for name, value in values.items() if getattr(self, name) != value]

    @property
    def pools(self) -> bool:
        """Return whether a text has a pooled vector, alone or beside its tokens."""
        return "pooled" in (self.query_vectors, self.document_vectors) or self.pooled_dim != 0

    @property
    def idle(self) -> set[str]:
        """Return the names of settings that other settings switch off."""
        several = {self.query_vectors, self.document_vectors} & {"first", "spans", "learned"}
        return {name for name, used in (("pooling", self.pools), ("vectors", several)) if not used}

    @property
    def single(self) -> bool:
        return self.query_vectors == self.document_vectors == "pooled" and self.pooled_dim == 0

    @property
    def weighs(self) -> bool:
        return self.salience != "none"

    def of_documents(self) -> dict[str, Any]:
        """Return the fields that change documents' vectors, if the weights are the same.

        A field that another one switches off is left out, such as `pooling` if no vector is pooled.
        """
        left_out = set(self.NOT_OF_DOCUMENTS)
        if self.document_vectors not in ("first", "spans", "learned"):
            left_out.add("vectors")
        if self.document_vectors != "pooled" and not self.pooled_dim:
            left_out.add("pooling")
        if self.salience in ("none", "relu"):
            left_out |= {"document_ratio", "eps", "iterations"}
        if not self.weighs:
            left_out.add("salience")
        values = asdict(self).items()
        return {n: value for n, value in values if n not in left_out and not n.startswith("query_")}


@dataclass(frozen=True, kw_only=True)
class TokenSettings(EncoderSettings):
    """Settings shared by ColBERT and XTR, which both skip punctuation in documents.

    ColBERT skips punctuation (Khattab & Zaharia 2020, §3.2); Lee et al. 2023 do not mention such a filter for
    XTR. With the same tokens, the two paradigms differ only in the alignment A and the normaliser Z.
    """

    skip: str = string.punctuation


class InputFormat(NamedTuple):
    """How to tokenise queries, or documents."""

    length: int  # most tokens, with prompt and marker
    prompt: str  # the text before the input
    marker: list[int]  # the marker's id; empty without a marker
    at: int  # position of the marker: after [CLS] or <s>
