"""Convert text to D or Q with a Hugging Face encoder, pooling, projection and salience."""

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn

from paradigms.core import Tokens, at_least_float32
from paradigms.encoder.backbone import load_backbone, load_heads, load_tokenizer, most_positions, quiet
from paradigms.encoder.base import Encoder
from paradigms.encoder.batches import (
    Batch,
    check_unpadded,
    evaluated,
    in_parts,
    insert,
    keep_freed_memory,
    takes_rows,
    unpadded_hidden,
)
from paradigms.encoder.bert import last_hidden
from paradigms.encoder.layers import (
    LearnedPooling,
    add_adapters,
    mean_of_spans,
    orthogonal,
    pool,
    salience_head,
    spans,
    without_adapters,
)
from paradigms.encoder.precision import scores_of
from paradigms.encoder.settings import SIDES, EncoderSettings, InputFormat, Side
from paradigms.encoder.sources import packaged
from paradigms.encoder.tokenizing import beginnings, call_tokenizer, token_rows
from paradigms.io.checks import as_sequence, check_text, is_blank, read_json, read_settings, require
from paradigms.io.files import write_json
from paradigms.relax import entropic_topk, hard_topk, token_budget
from paradigms.rooms import Entry

if TYPE_CHECKING:
    from paradigms.encoder.split import SplitBackbone

# Padded tokens per pass: a CPU's cache then holds a layer's activations; a GPU has no limit.
TOKENS = {"cpu": 1536}
POOLED = -1  # a pooled vector is cut into tokens with the ids -1, -2, ..., which no vocabulary has


class TextEncoder(Encoder):
    """Encode queries and documents with one transformer.

    backbone: name or folder of a Hugging Face encoder, or "offline".
    """

    Settings: ClassVar[type[EncoderSettings]] = EncoderSettings  # subclasses may extend it

    def __init__(self, backbone: str | Path, settings: EncoderSettings) -> None:
        super().__init__()
        names = (name for name, kind in ENCODERS.items() if kind is type(self))
        self.settings = settings = replace(settings, encoder=next(names, type(self).__name__))
        self.tokens = TOKENS  # maximum number of padded tokens per pass, by device type
        self.parts = 1  # `least` of `in_parts`
        self.unpadded = False  # whether `check_unpadded` has passed
        self.split: SplitBackbone | None = None  # set by `freeze`, if only the upper layers are trained
        backbone = packaged(backbone)
        self.backbone: Any = self._load_backbone(backbone)
        self.tokenizer = load_tokenizer(backbone, self.backbone.config.vocab_size)
        width: int = self.backbone.config.hidden_size
        dim = settings.dim or width
        if settings.truncate is not None and settings.truncate > dim:
            raise ValueError(f"truncate={settings.truncate} is beyond the {dim} dimensions")
        # Orthonormal rows make a random projection, which keeps the pretrained similarities up to the error
        # that theory/projections.py bounds: training starts from meaningful similarities.
        bias = settings.projection_bias
        self.projection = orthogonal(width, settings.dim, bias) if settings.dim else None
        self.layer_norm = nn.LayerNorm(dim) if settings.layer_norm else None
        if settings.pooled_dim is None:
            self.settings = settings = replace(settings, pooled_dim=max(1, width // dim) * dim)
        pooled = settings.pooled_dim
        self.pooled_projection = orthogonal(width, pooled, bias) if pooled else None
        weighed = SIDES if settings.weighs else ()
        self.salience_heads = nn.ModuleDict({side: salience_head(dim) for side in weighed})
        learned = [side for side in SIDES if self._vectors(side) == "learned"]
        self.learned_pooling = nn.ModuleDict({side: LearnedPooling(settings.vectors) for side in learned})
        self._layouts = {side: self._layout(side) for side in SIDES}
        self._skip_tokens = self._ids_of(settings.skip_tokens.split(), "skip_tokens")
        if settings.query_augmentation and self.tokenizer.mask_token_id is None:
            raise ValueError(f"query_augmentation needs a mask token; the tokenizer of {backbone} has none")
        if settings.lora_rank:
            self.backbone = add_adapters(
                self.backbone, settings.lora_rank, settings.lora_targets, dora=settings.dora
            )

    @property
    def dim(self) -> int:
        return self.settings.truncate or self._full_width

    @property
    def _full_width(self) -> int:
        return self.settings.dim or self.backbone.config.hidden_size

    def truncated(self, dim: int | None) -> "TextEncoder":
        if dim is not None and dim > self._full_width:
            raise ValueError(f"vectors of {self._full_width} dimensions have no first {dim}")
        short = copy(self)
        short.settings = replace(self.settings, truncate=dim)
        return short

    def tokenize(self, texts: Sequence[str], side: Side) -> Batch:
        """Tokenise, pad and truncate texts to the side's length; texts without tokens get an all-False mask.

        Raises TypeError if `texts` is a string or contains anything but strings, and ValueError if there
        is no text or a text contains a lone surrogate.
        """
        texts = as_sequence(texts, f"{side} texts")
        for n, text in enumerate(texts):
            check_text(text, f"{side} text {n}")
        if not texts:
            raise ValueError(f"there is no {side} text to tokenise")
        s = self.settings
        layout = self._layouts[side]
        augment = side == "query" and s.query_augmentation
        ids, attention, special = token_rows(
            self.tokenizer,
            beginnings(self.tokenizer, [layout.prompt + text for text in texts], layout.length),
            layout.length - len(layout.marker),
            full=augment,
        )
        content = special == 0  # neither special tokens nor padding
        blank = torch.tensor([is_blank(text) for text in texts]) | ~content.any(-1)
        counts = attention.bool() if s.special_tokens else content
        for marker in layout.marker:
            ids, attention = (insert(t, layout.at, v) for t, v in ((ids, marker), (attention, 1)))
            counts = insert(counts, layout.at, s.special_tokens)
        if side == "document" and len(self._skip):
            counts = counts & ~torch.isin(ids, self._skip)
        if augment:
            fill = attention == 0
            ids = ids.masked_fill(fill, self.tokenizer.mask_token_id)
            counts = counts | fill
            attention = attention | fill if s.attend_augmentation else attention
        return Batch(ids, attention, counts & ~blank[:, None])

    @property
    def skipped(self) -> list[str]:
        return list(self.tokenizer.convert_ids_to_tokens(self._skip.tolist()))

    def _layout(self, side: Side) -> InputFormat:
        length = getattr(self.settings, f"{side}_length")
        marker = getattr(self.settings, f"{side}_marker")
        prompt = getattr(self.settings, f"{side}_prompt")
        remedy = f"; a text before every {side} is {side}_prompt"
        ids = self._ids_of([marker] if marker else [], f"{side}_marker", remedy)
        needed = len(call_tokenizer(self.tokenizer, prompt)["input_ids"]) + len(ids)
        limit = most_positions(self.backbone)
        if length <= needed:
            raise ValueError(f"{side}_length={length} leaves no room for text beside {needed} special tokens")
        if limit is not None and length > limit:
            raise ValueError(f"{side}_length={length} is beyond the {limit} positions of the backbone")
        return InputFormat(length, prompt, ids, int(bool(ids) and self.begins_specially))

    @cached_property
    def begins_specially(self) -> bool:
        """Return whether the tokenizer begins every text with [CLS] or <s>."""
        starts = self.tokenizer.cls_token_id, self.tokenizer.bos_token_id
        return call_tokenizer(self.tokenizer, "a")["input_ids"][0] in starts

    def _ids_of(self, tokens: Sequence[str], setting: str, remedy: str = "") -> list[int]:
        """Look up tokens. Raises ValueError, which names the setting, if the vocabulary lacks one."""
        vocabulary = self.tokenizer.get_vocab() if tokens else {}
        for token in tokens:
            if token not in vocabulary:
                raise ValueError(f"{setting}={token!r} is no token of the vocabulary{remedy}")
        return [vocabulary[token] for token in tokens]

    def document_settings(self) -> dict[str, Any]:
        return self.settings.of_documents()

    def labels(self, text: str, side: Side, ids: Tensor | None = None) -> list[str]:
        kind = self._vectors(side)
        m = self.settings.vectors
        if kind == "pooled":
            return ["[pooled]"]
        batch = self.tokenize([text], side)
        tokens = self.tokenizer.convert_ids_to_tokens(batch.input_ids[0].tolist())
        if kind == "learned":
            return [f"[{c + 1}]" for c in range(len(tokens))[:m]]
        if kind == "spans":
            span = spans(batch.counts, m)[0].tolist()
            return [
                " ".join(token for token, place in zip(tokens, span, strict=True) if place == c)
                for c in range(len(tokens))[:m]
            ]
        return [*["[pooled]"] * self._pooled_tokens, *tokens[: self._first(side)]]

    def forward(self, batch: Batch, side: Side, chunk: int = 0) -> Tokens:
        """Encode x texts as Tokens with axes [1, x, l, h] for documents and [x, 1, l, h] for queries.

        chunk: number of texts per part with cached gradients (`batches.in_parts`); 0 = no caching.
        """
        axis = 1 if side == "document" else 0
        device = batch.input_ids.device.type
        if device == "cpu":
            keep_freed_memory()
        tokens = self.tokens.get(device)
        encode = partial(self._together, side=side)
        least = self.parts if torch.is_grad_enabled() else 1
        encoded = in_parts(encode, batch, axis, tokens=tokens, rows=chunk or None, least=least)
        return first_coordinates(encoded, self.settings.truncate, self.settings.normalize)

    def ids_of(self, batch: Batch, side: Side) -> Tensor:
        with evaluated(self), torch.inference_mode():
            ids = self(batch.to(self.device), side).ids
        assert ids is not None
        return ids

    def _load_backbone(self, name: str | Path) -> Any:
        return load_backbone(name)

    def _hidden(self, batch: Batch, side: Side) -> Float[Tensor, "x l w"]:
        """Compute the backbone's first output: its last hidden states."""
        if self.split is not None:
            return self.split.hidden(batch)
        s = self.settings
        # Rows of texts have no place for tokens that no other attends to.
        unattended = side == "query" and s.query_augmentation and not s.attend_augmentation
        if not self.training or unattended or not takes_rows(self.backbone):
            return last_hidden(self.backbone, batch.inputs())
        if not self.unpadded:
            check_unpadded(self.backbone, batch)
            self.unpadded = True
        return unpadded_hidden(self.backbone, batch)

    def _together(self, batch: Batch, side: Side) -> Tokens:
        hidden = self._hidden(batch, side)
        pooled = pool(hidden, batch.attention_mask, self.settings.pooling)
        counts = batch.counts
        ids = None
        kind = self._vectors(side)
        if kind == "pooled":
            states = pooled
            counts = counts.any(-1, keepdim=True)
        elif kind == "spans":
            states, counts = mean_of_spans(hidden, counts, self.settings.vectors)
        elif kind == "learned":
            states, counts = self.learned_pooling[side](hidden, counts)
        else:
            first = self._first(side)
            states = hidden[:, :first]
            counts = counts[:, :first]
            ids = batch.input_ids[:, :first]
        vectors = self._finish(self._project(states))
        salience = self._salience(vectors, counts, side) if self.settings.weighs else None
        axis = 1 if side == "query" else 0
        places = [None if t is None else t.unsqueeze(axis) for t in (ids, salience)]
        tokens = Tokens(vectors.unsqueeze(axis), counts.unsqueeze(axis), *places)
        return self._join_pooled(pooled.unsqueeze(axis), tokens) if self._pooled_tokens else tokens

    def freeze(self, trained_layers: int) -> None:
        """Train only the heads and the top `trained_layers` layers; 0 trains all layers.

        Frozen layers run without dropout. Raises the same errors as `split.SplitBackbone`.
        """
        if trained_layers == (self.split.trained if self.split else 0):
            return
        if self.split is not None:
            self.split.release()
            self.split = None  # all layers are trained if the next split fails
        from paradigms.encoder.split import SplitBackbone  # only training reads frozen layers apart

        probe = self.tokenize(["what the layers give", "in one part or in two"], "document").to(self.device)
        self.split = SplitBackbone(self.backbone, trained_layers, probe) if trained_layers else None

    def _vectors(self, side: Side) -> str:
        return self.settings.query_vectors if side == "query" else self.settings.document_vectors

    def _first(self, side: Side) -> int | None:
        return self.settings.vectors if self._vectors(side) == "first" else None

    def _project(self, vectors: Tensor) -> Tensor:
        vectors = vectors if self.projection is None else self.projection(vectors)
        if self.settings.activation != "identity":
            vectors = getattr(torch, self.settings.activation)(vectors)
        return vectors if self.layer_norm is None else self.layer_norm(vectors)

    def _finish(self, vectors: Tensor) -> Tensor:
        vectors = at_least_float32(vectors)  # similarities are then float32, too
        return nn.functional.normalize(vectors, dim=-1) if self.settings.normalize else vectors

    @property
    def _pooled_tokens(self) -> int:
        s = self.settings
        return s.pooled_dim // s.dim if s.pooled_dim and s.dim else 0

    def _join_pooled(self, pooled: Float[Tensor, "x n 1 w"], tokens: Tokens) -> Tokens:
        """⟨cls_q, cls_d⟩ + Σ token matches as one rel: COIL-full (Gao et al. 2021, Eq. 5).

        The pooled vector of width c·h is cut into c tokens with ids −1 … −c. Since only equal ids align, the
        matches of these tokens add up to the inner product of the two pooled vectors.
        """
        assert self.pooled_projection is not None
        assert tokens.ids is not None
        parts = self._finish(self.pooled_projection(pooled)).unflatten(-1, (-1, self._full_width)).squeeze(-3)
        shape = parts.shape[:-1]
        mask = tokens.mask.any(-1, keepdim=True).expand(shape)
        ids = POOLED - torch.arange(shape[-1], device=parts.device).expand(shape)
        salience = None
        if tokens.salience is not None:
            salience = torch.cat([parts.new_ones(shape), tokens.salience], -1)
        return Tokens(
            torch.cat([parts, tokens.vectors], -2),
            torch.cat([mask, tokens.mask], -1),
            torch.cat([ids, tokens.ids], -1),
            salience,
        )

    def _salience(self, vectors: Tensor, counts: Tensor, side: Side) -> Tensor:
        """u_i = λ_i · relu(W d_i + b) with 1ᵀλ = ⌈α · length⌉ (Qian et al. 2022, Eq. 3 and 4).

        λ is the entropic gate, its hard limit (ties share the budget), or 1 ("relu"). A text without a
        positive score has salience 0, and its rel with Z = Σ A is 0.
        """
        s = self.settings
        head: Any = self.salience_heads[side]
        scores = scores_of(head, vectors).squeeze(-1).relu().where(counts, 0)
        if s.salience == "relu":
            return scores
        budget = token_budget(s.query_ratio if side == "query" else s.document_ratio, counts)
        if s.salience == "hard":
            return scores * hard_topk(scores, budget, counts)
        return scores * entropic_topk(scores, budget, s.eps, counts, s.iterations)

    @cached_property
    def _skip(self) -> Tensor:
        """The ids of `settings.skip` and `settings.skip_tokens`, which only documents need."""
        characters = set(self.settings.skip)
        vocabulary = self.tokenizer.get_vocab().items() if characters else ()
        ids = {i for token, i in vocabulary if bare(token) in characters}
        return torch.tensor(sorted(ids.union(self._skip_tokens)), dtype=torch.long)

    def save(self, folder: Path, *, merged: bool) -> None:
        """Write backbone/ in transformers' format, and every other weight to heads.safetensors."""
        if ENCODERS.get(self.settings.encoder) is not type(self):
            raise ValueError(
                f"{self.settings.encoder} is a subclass of TextEncoder that is not registered, and could not "
                "be loaded again: register it in paradigms.encoder.text.ENCODERS before building an encoder"
            )
        backbone = self.backbone
        weights = None
        settings = self.settings
        heads = self._heads()
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
        """Load an encoder saved by `save`, as an instance of the same class.

        Raises FileNotFoundError if a file is missing, and ValueError if the class is not registered.
        """
        file = folder / "encoder.json"
        heads = folder / "heads.safetensors"
        for needed in (file, folder / "backbone" / "config.json", heads):
            require(needed, folder)
        kind = encoder_class(read_json(file).get("encoder", "text"))
        encoder = kind(folder / "backbone", read_settings(kind.Settings, file))
        load_heads(encoder, encoder._heads(), heads)
        return encoder

    def _heads(self) -> dict[str, Tensor]:
        """Return all weights outside the pretrained backbone: projections, salience heads, adapters."""
        state = self.state_dict().items()
        return {name: t for name, t in state if not name.startswith("backbone.") or ".lora_" in name}


def first_coordinates(tokens: Tokens, dim: int | None, normalize: bool) -> Tokens:
    """(x₁ … x_h′) for each vector x, divided by its norm if `normalize` (Kusupati et al. 2022, §3).

    Matryoshka training (arXiv:2205.13147) makes these shorter vectors useful on their own. With dim = None,
    the tokens are returned unchanged.
    """
    if dim is None:
        return tokens
    vectors = tokens.vectors[..., :dim]
    return replace(tokens, vectors=nn.functional.normalize(vectors, dim=-1) if normalize else vectors)


# Name -> class, called with (backbone, settings): a subclass of TextEncoder is a new D and Q.
ENCODERS: dict[str, type[TextEncoder]] = {"text": TextEncoder}


def encoder_class(name: str) -> type[TextEncoder]:
    """Look up a class in `ENCODERS`. Raises ValueError if the name is unknown."""
    if name not in ENCODERS:
        Entry("PARADIGMS").__wrapped__  # noqa: B018  imports all paradigms, which register their encoders
    if name not in ENCODERS:
        raise ValueError(
            f"unknown encoder {name!r}; there are {', '.join(ENCODERS)}. Register your own with "
            "its file: --plugin FILE.py, or load(..., plugin='FILE.py')"
        )
    return ENCODERS[name]


def bare(token: str) -> str:
    """Remove a token's marker for a preceding space (▁ or Ġ) or for the inside of a word (##)."""
    return token.removeprefix("##").lstrip("▁Ġ")
