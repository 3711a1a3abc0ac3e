"""Compute D and Q with a model that sentence-transformers itself runs (`saving.library.wrap`).

A `SentenceTransformer` yields one vector per text, a `SparseEncoder` yields term weights, and a
`MultiVectorEncoder` yields one vector per token or, for images, per patch.
"""

import base64
import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paradigms.core import Tokens
from paradigms.encoder.base import Encoder
from paradigms.encoder.pooling import as_terms
from paradigms.encoder.settings import LONGEST, EncoderSettings, Side
from paradigms.explanation import Picture

SIDE_LENGTH = 1024  # pixels of an image's longer side in an explanation


class LibraryEncoder(Encoder):
    """Encoder that runs a sentence-transformers model and names its tokens and image patches."""

    def __init__(self, model: Any, kind: str, similarity: str) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        length = getattr(model, "max_seq_length", None) or LONGEST
        vectors: Any = "pooled" if kind == "SentenceTransformer" else "all"
        self.settings = EncoderSettings(
            encoder=kind,
            query_vectors=vectors,
            document_vectors=vectors,
            normalize=similarity == "cosine",
            query_length=min(length, LONGEST),
            document_length=min(length, LONGEST),
        )

    @property
    def dim(self) -> int:
        return 1 if self.kind == "SparseEncoder" else int(self.model.get_embedding_dimension())

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer

    def tokenize(self, inputs: Sequence[Any], side: Side) -> Any:
        """Raise ValueError, because sentence-transformers tokenises and encodes in one step."""
        raise ValueError(
            "a wrapped model is neither trained nor counted here: train it with sentence-transformers, whose "
            "losses take every alignment as paradigms.scoring.scorer.Scorer, and count the ids of its "
            "documents with paradigms.statistics.Statistics.of"
        )

    def encode(self, inputs: Sequence[Any], side: Side) -> Tokens:
        """Encode x inputs with sentence-transformers, as Tokens with axes [1, x, l, h]."""
        inputs = [self._text(one) if isinstance(one, str) else one for one in inputs]
        encode_side = self.model.encode_query if side == "query" else self.model.encode_document
        encode = partial(encode_side, inputs, batch_size=max(1, len(inputs)), show_progress_bar=False)
        if self.kind == "MultiVectorEncoder":
            return _padded(encode(output_value=None), self.dim, self.device)
        if self.kind == "SparseEncoder":
            weights = encode(convert_to_sparse_tensor=False)
            if (weights < 0).any():
                raise ValueError("the model gives a term a weight below 0, which no index of terms holds")
            return as_terms(self._normalised(weights))
        vectors = self._normalised(encode(convert_to_tensor=True))
        vectors = vectors if len(inputs) else vectors.view(0, self.dim)
        return Tokens(vectors[None, :, None], torch.ones_like(vectors[None, :, :1], dtype=torch.bool))

    def document_settings(self) -> dict[str, Any]:
        """Return the settings of the model's modules and its prompts, which change documents' vectors."""
        modules = {
            f"{name} {type(module).__name__}": module.get_config_dict() | {"embedding_dimension": None}
            for name, module in self.model.named_children()
            if hasattr(module, "get_config_dict")
        }
        names = ("prompts", "default_prompt_name", "truncate_dim", "max_seq_length")
        return self.settings.of_documents() | modules | {n: getattr(self.model, n, None) for n in names}

    def truncated(self, dim: int | None) -> "LibraryEncoder":
        """Raise ValueError, because sentence-transformers truncates vectors itself."""
        raise ValueError("open the model with truncate_dim, then wrap it")

    def labels(self, one: Any, side: Side, ids: Tensor | None = None) -> list[str]:
        """Return names of an input's tokens: image patches by row and column, other tokens from their ids."""
        if self.kind == "SentenceTransformer":
            return ["[pooled]"]
        if ids is None:
            length = int(self.encode([one], side).mask.sum())
            return [f"[{n + 1}]" for n in range(length)]
        tokens = ids.flatten().tolist()
        if any(type(module).__name__ == "SparseAutoEncoder" for module in self.model):
            return [f"[feature {id}]" for id in tokens]
        names = [str(name) for name in self.tokenizer.convert_ids_to_tokens(tokens)]
        columns, _, places = self._patches(_image(one), tokens)
        for n, place in enumerate(places):
            names[place] = f"[{n // columns + 1}, {n % columns + 1}]"
        return names

    def picture(self, one: Any, ids: Tensor | None) -> Picture | None:
        """Return an input's image and its patches' token positions; None if there are no patches."""
        image = _image(one)
        if image is None or ids is None:
            return None
        columns, rows, places = self._patches(image, ids.flatten().tolist())
        if not places:
            return None
        small = image.convert("RGB")
        small.thumbnail((SIDE_LENGTH, SIDE_LENGTH))
        data = io.BytesIO()
        small.save(data, "JPEG", quality=85)
        source = "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
        return Picture(source, image.width, image.height, columns, rows, places)

    def save(self, folder: Path, *, merged: bool) -> None:
        self.model.save_pretrained(str(folder), create_model_card=False)

    def _patches(self, image: Any, ids: list[int]) -> tuple[int, int, list[int]]:
        """Return an image's columns and rows of patches, and the patches' token positions, row by row.

        The patches are the tokens with the one id that occurs as often as the grid has cells. If there is no
        such id, or if the processor's grid is unknown, the list of positions is empty.
        """
        if image is None:
            return 1, 0, []
        from sentence_transformers.multi_vector_encoder.interpretability import get_n_patches

        try:
            columns, rows = get_n_patches(self.model, image.size)
        except (NotImplementedError, ValueError):  # as it raises for a grid that it does not know
            return 1, 0, []
        patches = [id for id in set(ids) if ids.count(id) == columns * rows]
        places = [n for n, id in enumerate(ids) if id == patches[0]] if len(patches) == 1 else []
        return columns, rows, places

    def _normalised(self, vectors: Tensor) -> Tensor:
        return nn.functional.normalize(vectors, dim=-1) if self.settings.normalize else vectors

    def _text(self, text: str) -> Any:
        """Mark a text as text; otherwise, sentence-transformers would fetch a text that is an image's URL."""
        return text if list(self.model.modalities) == ["text"] else {"text": text}


def _padded(rows: Sequence[dict[str, Tensor]], dim: int, device: torch.device) -> Tokens:
    """Pad each input's counted tokens to [1, x, l, h], with ids if the model has one per vector."""
    masks = [row["attention_mask"].bool() for row in rows]
    longest = max((int(mask.sum()) for mask in masks), default=1)

    def stacked(name: str, *axes: int) -> Tensor:
        parts = [row[name][mask] for row, mask in zip(rows, masks, strict=True)]
        wide = [torch.cat([t, t.new_zeros(longest - len(t), *axes)]) for t in parts]
        return torch.stack(wide)[None] if wide else torch.zeros(1, 0, longest, *axes, device=device)

    named = all(
        "input_ids" in row and row["input_ids"].shape == mask.shape
        for row, mask in zip(rows, masks, strict=True)
    )
    return Tokens(
        stacked("token_embeddings", dim),
        stacked("attention_mask").bool(),
        stacked("input_ids").long() if named else None,
    )


def _image(one: Any) -> Any:
    """Return the PIL image that an input is or contains, or None."""
    from PIL import Image

    image = one.get("image") if isinstance(one, dict) else one
    return image if isinstance(image, Image.Image) else None
