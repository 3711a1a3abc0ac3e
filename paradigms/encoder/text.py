"""text → D or Q: any Hugging Face encoder, pooling, projection, salience.

One `TextEncoder` serves queries and documents; what differs between paradigms is data: `EncoderSettings`.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from paradigms.core import Tokens
from paradigms.encoder.backbone import (
    add_adapters,
    load_backbone,
    load_heads,
    load_tokenizer,
    orthogonal,
    packaged,
    quiet,
    salience_head,
    without_adapters,
)
from paradigms.encoder.batches import Batch, in_parts, insert, keep_freed_memory
from paradigms.encoder.frozen import LowerStates, Split
from paradigms.encoder.settings import SIDES, EncoderSettings, Layout, Side
from paradigms.io.files import write_json
from paradigms.io.typed import check_several, check_text, json_or_empty, read_settings, require
from paradigms.relax import entropic_topk, hard_topk, token_budget

# Padded tokens at once on a processor, whose cache then holds a layer's activations. On a GPU: all.
TOKENS = {"cpu": 1536}
POOLED = -1  # ids of the tokens that a pooled vector is cut into: -1, -2, ...; no vocabulary has them


class TextEncoder(nn.Module):
    """One transformer for both sides. backbone: name or folder of a Hugging Face encoder, or "offline"."""

    Settings: ClassVar[type[EncoderSettings]] = EncoderSettings  # a subclass may have settings of its own

    def __init__(self, backbone: str | Path, settings: EncoderSettings) -> None:
        super().__init__()
        own = (name for name, kind in ENCODERS.items() if kind is type(self))
        self.settings = settings = replace(settings, encoder=next(own, type(self).__name__))
        self.tokens = TOKENS  # of one pass at most, by kind of device
        self.split: Split | None = None  # of a backbone of which some layers alone are trained: `freeze`
        backbone = packaged(backbone)
        self.backbone: Any = self._load_backbone(backbone)
        self.tokenizer = load_tokenizer(backbone, self.backbone.config.vocab_size)
        width: int = self.backbone.config.hidden_size
        # Rows orthonormal: a random projection, which keeps the pretrained geometry up to the error that
        # theory/projections.py bounds, so training starts from similarities that already mean something.
        bias = settings.projection_bias
        self.projection = orthogonal(width, settings.dim, bias) if settings.dim else None
        self.layer_norm = nn.LayerNorm(settings.dim or width) if settings.layer_norm else None
        pooled = settings.pooled_dim
        self.pooled_projection = orthogonal(width, pooled, bias) if pooled else None
        self.salience_heads = nn.ModuleDict(
            {side: salience_head(settings.dim or width) for side in SIDES if settings.weighs(side)}
        )
        self._skip = torch.tensor(self._ids_of(settings.skip), dtype=torch.long)
        self._layouts = {side: self._layout(side) for side in SIDES}
        if settings.query_augmentation and self.tokenizer.mask_token_id is None:
            raise ValueError(f"query_augmentation needs a mask token; the tokenizer of {backbone} has none")
        if settings.lora_rank:
            self.backbone = add_adapters(
                self.backbone, settings.lora_rank, settings.lora_targets, dora=settings.dora
            )

    @property
    def dim(self) -> int:
        return self.settings.dim or self.backbone.config.hidden_size

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def tokenize(self, texts: Sequence[str], side: Side) -> Batch:
        """Pad and cut to the side's length; texts without tokens of their own get an all-False mask.

        TypeError for one string, or what is no string; ValueError for half a character.
        """
        check_several(texts, f"{side} texts")
        for n, text in enumerate(texts):
            check_text(text, f"{side} text {n}")
        s, layout = self.settings, self._layouts[side]
        augment = side == "query" and s.query_augmentation
        rows = self.tokenizer(
            [layout.prefix + text for text in texts],
            padding="max_length" if augment else True,
            truncation=True,
            max_length=layout.length - len(layout.marker),
            return_special_tokens_mask=True,
            return_token_type_ids=False,
            return_tensors="pt",
        )
        ids, attention = rows["input_ids"], rows["attention_mask"]
        own = rows["special_tokens_mask"] == 0  # neither added by the tokenizer nor padding
        blank = torch.tensor([not text.strip() for text in texts]) | ~own.any(-1)
        counts = attention.bool() if s.special_tokens else own
        for marker in layout.marker:
            ids, attention = (insert(t, layout.at, v) for t, v in ((ids, marker), (attention, 1)))
            counts = insert(counts, layout.at, s.special_tokens)
        if side == "document" and len(self._skip):
            counts = counts & ~torch.isin(ids, self._skip)
        if augment:
            fill = attention == 0
            ids, counts = ids.masked_fill(fill, self.tokenizer.mask_token_id), counts | fill
            attention = attention | fill if s.attend_augmentation else attention
        return Batch(ids, attention, counts & ~blank[:, None])

    @property
    def skipped(self) -> list[str]:
        """The tokens of documents that do not count."""
        return list(self.tokenizer.convert_ids_to_tokens(self._skip.tolist()))

    def _layout(self, side: Side) -> Layout:
        length, marker = (getattr(self.settings, f"{side}_{name}") for name in ("length", "marker"))
        ids = [i for token, i in self.tokenizer.get_vocab().items() if token == marker and marker]
        prefix = "" if ids else marker
        around = self.tokenizer(prefix)["input_ids"]
        needed, limit = len(around) + len(ids), getattr(self.backbone.config, "max_position_embeddings", None)
        if length <= needed:
            raise ValueError(f"{side}_length={length} leaves no room for text beside {needed} special tokens")
        if limit is not None and length > limit:
            raise ValueError(f"{side}_length={length} is beyond the {limit} positions of the backbone")
        at = int(around[:1] == [self.tokenizer.cls_token_id])
        return Layout(length, prefix, ids, at)

    def layout(self, side: Side) -> str:
        """All of the settings by which a side's texts become token ids and attention."""
        s = self.settings
        augment = (s.query_augmentation, s.attend_augmentation) if side == "query" else ()
        return repr((self._layouts[side], augment))

    def labels(self, text: str, side: Side) -> list[str]:
        """A readable name for each place of the Tokens that this text becomes."""
        if self._vectors(side) == "pooled":
            return ["[pooled]"]
        ids = self.tokenize([text], side).input_ids[0, : self._kept(side)].tolist()
        return [*["[pooled]"] * self._pooled_tokens, *self.tokenizer.convert_ids_to_tokens(ids)]

    def forward(self, batch: Batch, side: Side, chunk: int = 0) -> Tokens:
        """Tokens of x texts with axes [1, x, l, h] for documents and [x, 1, l, h] for queries.

        chunk: texts encoded at once with gradients cached (`batches.in_parts`); 0 = none are cached.
        """
        axis = 1 if side == "document" else 0
        device = batch.input_ids.device.type
        if device == "cpu":
            keep_freed_memory()
        tokens = self.tokens.get(device)
        return in_parts(partial(self._together, side=side), batch, axis, tokens=tokens, rows=chunk or None)

    def _load_backbone(self, name: str | Path) -> Any:
        return load_backbone(name)

    def _hidden(self, batch: Batch) -> Float[Tensor, "x l w"]:
        """The backbone's first output: the last hidden states."""
        if self.split is None:
            return self.backbone(**batch.inputs())[0]
        return self.split.upper(self.split.lower(batch), batch)

    def _together(self, batch: Batch, side: Side) -> Tokens:
        hidden = self._hidden(batch)
        pooled = self._pool(hidden, batch.attention_mask)
        counts, ids = batch.counts.any(-1, keepdim=True), None
        if self._vectors(side) == "pooled":
            vectors = self._finish(self._project(pooled))
        else:
            kept = self._kept(side)
            vectors = self._finish(self._project(hidden[:, :kept]))
            counts, ids = batch.counts[:, :kept], batch.input_ids[:, :kept]
        salience = self._salience(vectors, counts, side) if self.settings.weighs(side) else None
        axis = 1 if side == "query" else 0
        places = [None if t is None else t.unsqueeze(axis) for t in (ids, salience)]
        tokens = Tokens(vectors.unsqueeze(axis), counts.unsqueeze(axis), *places)
        return self._join_pooled(pooled.unsqueeze(axis), tokens) if self._pooled_tokens else tokens

    def freeze(self, trained_layers: int) -> None:
        """Train the heads and the `trained_layers` upper layers alone, the rest without dropout; 0 = all.

        ValueError as of `frozen.Split`.
        """
        if trained_layers == (self.split.trained if self.split else 0):
            return
        if self.split is not None:
            self.split.release()
            self.split = None  # where the next one cannot be made, all layers are trained
        probe = self.tokenize(["what the layers give", "in one part or in two"], "document").to(self.device)
        self.split = Split(self.backbone, trained_layers, probe) if trained_layers else None

    def keep_states(self, folder: Path) -> LowerStates:
        """Take what the frozen layers give from `folder`, as far as `LowerStates.add` has put it there."""
        assert self.split is not None, "freeze comes first"
        adapted = self.settings.lora_rank > 0
        weights = without_adapters(self.backbone.get_base_model()) if adapted else self.backbone.state_dict()
        kept = folder / self.split.fingerprint(weights)
        if self.split.store is None or self.split.store.folder != kept:
            self.split.store = LowerStates(kept)
        return self.split.store

    def _vectors(self, side: Side) -> str:
        return self.settings.query_vectors if side == "query" else self.settings.document_vectors

    def _kept(self, side: Side) -> int | None:
        return self.settings.first if self._vectors(side) == "first" else None

    def _pool(self, hidden: Float[Tensor, "x l w"], attention: Int[Tensor, "x l"]) -> Float[Tensor, "x 1 w"]:
        if self.settings.pooling == "cls":
            return hidden[:, :1]
        if self.settings.pooling == "last":
            return hidden[torch.arange(len(hidden)), attention.sum(-1) - 1][:, None]
        if self.settings.pooling == "max":
            return hidden.masked_fill(attention[..., None] == 0, -torch.inf).amax(1, keepdim=True)
        weight = attention[..., None].float()  # half precision would lose a mean over many tokens
        return (hidden * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)

    def _project(self, vectors: Tensor) -> Tensor:
        vectors = vectors if self.projection is None else self.projection(vectors)
        if self.settings.activation != "identity":
            vectors = getattr(torch, self.settings.activation)(vectors)
        return vectors if self.layer_norm is None else self.layer_norm(vectors)

    def _finish(self, vectors: Tensor) -> Tensor:
        vectors = vectors if vectors.dtype == torch.float64 else vectors.float()  # similarities in float32
        return nn.functional.normalize(vectors, dim=-1) if self.settings.normalize else vectors

    @property
    def _pooled_tokens(self) -> int:
        s = self.settings
        return s.pooled_dim // s.dim if s.pooled_dim and s.dim else 0

    def _join_pooled(self, pooled: Float[Tensor, "x n 1 w"], tokens: Tokens) -> Tokens:
        """⟨cls_q, cls_d⟩ + Σ token matches as one rel: COIL-full (Gao et al. 2021, Eq. 5).

        The pooled vector of width c·h is cut into c tokens with ids −1 … −c: as only equal ids align, their
        matches add up to the inner product of the two pooled vectors.
        """
        assert self.pooled_projection is not None
        assert tokens.ids is not None
        parts = self._finish(self.pooled_projection(pooled)).unflatten(-1, (-1, self.dim)).squeeze(-3)
        shape = parts.shape[:-1]
        there = tokens.mask.any(-1, keepdim=True).expand(shape)
        ids = POOLED - torch.arange(shape[-1], device=parts.device).expand(shape)
        salience = None
        if tokens.salience is not None:
            salience = torch.cat([parts.new_ones(shape), tokens.salience], -1)
        return Tokens(
            torch.cat([parts, tokens.vectors], -2),
            torch.cat([there, tokens.mask], -1),
            torch.cat([ids, tokens.ids], -1),
            salience,
        )

    def _salience(self, vectors: Tensor, counts: Tensor, side: Side) -> Tensor:
        """u_i = λ_i · relu(W d_i + b) with 1ᵀλ = ⌈α · length⌉ (Qian et al. 2022, Eq. 3 and 4).

        λ is the entropic gate, its hard limit, whose ties share the budget, or (relu) 1. A text without a
        score above 0 has no salience; its rel is 0 where Z = Σ A.
        """
        s = self.settings
        with torch.autocast(vectors.device.type, enabled=False):  # bfloat16 cannot tell scores ε apart
            scores = self.salience_heads[side](vectors).squeeze(-1).relu().where(counts, 0)
        if s.salience == "relu":
            return scores
        budget = token_budget(s.query_ratio if side == "query" else s.document_ratio, counts)
        if s.salience == "hard":
            return scores * hard_topk(scores, budget, counts)
        return scores * entropic_topk(scores, budget, s.eps, counts, s.iterations)

    def _ids_of(self, characters: str) -> list[int]:
        wanted, exact = set(characters), self.settings.skip_exact
        vocabulary = self.tokenizer.get_vocab().items()
        return sorted(i for token, i in vocabulary if (token if exact else bare(token)) in wanted)

    def save(self, folder: Path, *, merged: bool) -> None:
        """backbone/ as transformers writes it, and heads.safetensors with every other weight.

        merged: adapters become part of the backbone's weights; else these are as they were before training.
        """
        if ENCODERS.get(self.settings.encoder) is not type(self):
            raise ValueError(
                f"{self.settings.encoder} is a subclass of TextEncoder that is not registered, and could not "
                "be loaded again: name it in paradigms.encoder.text.ENCODERS before an encoder is built"
            )
        backbone, weights, settings, heads = self.backbone, None, self.settings, self._heads()
        if settings.lora_rank:
            backbone = backbone.get_base_model()
            weights = without_adapters(backbone, merged=merged)
        if merged:
            settings = replace(settings, lora_rank=0, lora_targets="all-linear", dora=False)
            heads = {name: weight for name, weight in heads.items() if ".lora_" not in name}
        with quiet():
            backbone.save_pretrained(folder / "backbone", state_dict=weights)
        self.tokenizer.save_pretrained(folder / "backbone")
        save_file({name: weight.contiguous() for name, weight in heads.items()}, folder / "heads.safetensors")
        write_json(folder / "encoder.json", asdict(settings))

    @classmethod
    def load(cls, folder: Path) -> "TextEncoder":
        """What `save` wrote, of the class that wrote it.

        FileNotFoundError for a missing file; ValueError for an unregistered encoder or weights that do not
        fit.
        """
        kind = encoder_class(json_or_empty(folder / "encoder.json").get("encoder", "text"))
        settings = read_settings(kind.Settings, folder / "encoder.json")
        config, file = folder / "backbone" / "config.json", folder / "heads.safetensors"
        for needed in (config, file):
            require(needed, folder)
        encoder = kind(config.parent, settings)
        load_heads(encoder, encoder._heads(), file)
        return encoder

    def _heads(self) -> dict[str, Tensor]:
        """The weights that are not the backbone's own: projections, salience heads, adapters."""
        state = self.state_dict().items()
        return {name: t for name, t in state if not name.startswith("backbone.") or ".lora_" in name}


# Name -> class with the arguments (backbone, settings): a subclass of TextEncoder is a new D and Q.
ENCODERS: dict[str, type[TextEncoder]] = {"text": TextEncoder}


def encoder_class(name: str) -> type[TextEncoder]:
    """A class of `ENCODERS`; ValueError for an unknown name."""
    if name not in ENCODERS:
        raise ValueError(
            f"unknown encoder {name!r}; there are {', '.join(ENCODERS)}. One of your own is registered by "
            "its file: --plugin FILE.py, or load(..., plugin='FILE.py')"
        )
    return ENCODERS[name]


def bare(token: str) -> str:
    """A token without the mark of its place: after a space (▁ or Ġ), or inside a word (##)."""
    return token.removeprefix("##").lstrip("▁Ġ")
