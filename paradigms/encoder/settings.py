"""What of a text becomes D or Q, as data: the settings by which the paradigms' encoders differ."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from paradigms.io.typed import check_types

Side = Literal["query", "document"]
SIDES: tuple[Side, Side] = ("query", "document")


@dataclass(frozen=True)
class EncoderSettings:
    """Where D and Q come from. Lengths are in tokens, special tokens and markers included."""

    encoder: str = "text"  # a key of text.ENCODERS: the class that makes D and Q
    query_vectors: Literal["pooled", "first", "all"] = "all"  # what of the text becomes Q
    document_vectors: Literal["pooled", "first", "all"] = "all"  # what of the text becomes D
    first: int = 8  # m of ME-BERT: vectors kept by "first"
    pooling: Literal["cls", "mean", "max", "last"] = "cls"
    dim: int | None = 128  # h; None keeps the encoder's own width and adds no projection
    projection_bias: bool = False
    activation: Literal["identity", "tanh", "relu"] = "identity"  # of the projection
    layer_norm: bool = False  # of every vector, after the projection, with a trained gain and bias
    normalize: bool = True  # L2: similarities are cosines
    pooled_dim: int = 0  # COIL: width of the pooled vector that joins the tokens; 0 = none
    query_length: int = 48
    document_length: int = 128
    query_marker: str = ""  # put first; one token if the vocabulary holds it, else a text prefix
    document_marker: str = ""
    query_augmentation: bool = False  # fill queries up with [MASK] tokens that count
    attend_augmentation: bool = False  # and let the other tokens attend to them
    skip: str = ""  # document tokens that are one of these characters do not count
    skip_exact: bool = False  # only as the vocabulary has them: not after a space, nor inside a word
    special_tokens: bool = True  # whether [CLS], [SEP], </s> and one-token markers count
    salience: Literal["none", "entropic", "hard", "relu"] = "none"  # ALIGNER's head, and its gate λ
    salience_sides: Literal["both", "query", "document"] = "both"  # the other side's tokens weigh 1
    salience_l1: float = 0.0  # weight of the mean salience in the training loss: see train/contrastive.py
    query_ratio: float = 0.5  # α^q: share of query tokens that the gate has room for
    document_ratio: float = 0.4  # α^d
    eps: float = 0.002  # ε of the entropic gate
    iterations: int | None = None  # its Eq. 5 steps; None = exact
    lora_rank: int = 0  # > 0 trains low-rank adapters in place of the encoder's weights
    lora_targets: str = "all-linear"  # or a regular expression that names of adapted modules match whole
    dora: bool = False  # adapters that learn the lengths of a weight's rows apart from their directions

    def __post_init__(self) -> None:
        check_types(self)
        if self.pooled_dim and (self.dim is None or self.pooled_dim % self.dim):
            raise ValueError(f"pooled_dim={self.pooled_dim} must be a multiple of dim={self.dim}")
        if self.pooled_dim and "pooled" in (self.query_vectors, self.document_vectors):
            raise ValueError("pooled_dim joins a pooled vector to token vectors; these vectors are pooled")
        if self.dim is None and (self.projection_bias or self.activation != "identity"):
            raise ValueError("projection_bias and activation are of the projection, which dim makes: set dim")
        if self.attend_augmentation and not self.query_augmentation:
            raise ValueError("attend_augmentation needs query_augmentation")
        if self.skip_exact and not self.skip:
            raise ValueError("skip_exact says how skip is meant: set skip")
        if self.pooled_dim and self.layer_norm:
            raise ValueError("layer_norm is of vectors of width dim; the pooled vector has pooled_dim")
        for name in ("query_length", "document_length", "first", "dim", "iterations"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("pooled_dim", "lora_rank", "salience_l1"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("query_ratio", "document_ratio"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")
        if self.eps <= 0:
            raise ValueError(f"eps must be positive, got {self.eps}")
        if not self.lora_rank and (self.dora or self.lora_targets != "all-linear"):
            raise ValueError("dora and lora_targets are settings of adapters: set lora_rank above 0")
        if self.salience_l1 and self.salience == "none":
            raise ValueError(f"salience_l1={self.salience_l1} needs a salience; relu is what it is meant for")

    def weighs(self, side: Side) -> bool:
        """Whether tokens of that side carry a salience."""
        return self.salience != "none" and self.salience_sides in ("both", side)


class Layout(NamedTuple):
    """How a side's texts become tokens."""

    length: int
    prefix: str  # a marker that goes before the text, or
    marker: list[int]  # the id of a marker that is one token, or none
    at: int  # its place: after [CLS]
