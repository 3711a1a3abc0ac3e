"""Wrap any sentence-transformers model and compute rel(d, q) from its vectors.

    from sentence_transformers import MultiVectorEncoder

    model = wrap(MultiVectorEncoder("vidore/colpali-v1.3-hf"))
    model.score(model.encode_documents([image]), model.encode_queries(["a bar chart"]))

A `SentenceTransformer` returns one vector per text (A = 1), a `SparseEncoder` returns term weights (A aligns
equal ids), and a `MultiVectorEncoder` returns one vector per token or patch (A takes the maximum over i).
Documents may be anything that the model reads: texts, images or audio. A model that ships its own code is
loaded with `trust_remote_code=True` before it is wrapped; this module never sets `trust_remote_code`.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from paradigms.align import AllPairs, EqualIds, QueryToDocument
from paradigms.core import Tokens
from paradigms.encoder.base import Encoder
from paradigms.encoder.layers import as_terms
from paradigms.encoder.published import MODEL
from paradigms.encoder.settings import LONGEST, EncoderSettings, Side
from paradigms.encoder.tokenizing import Cut
from paradigms.explanation import Explanation, Picture
from paradigms.io.checks import json_or_empty
from paradigms.model import Input, Paradigm
from paradigms.recipe import Recipe

SIDE_LENGTH = 1024  # pixels of an image's longer side in an explanation
SIMILARITIES = {  # class of the library -> similarity -> A, Z and τ
    "SentenceTransformer": {
        "cosine": Recipe("dpr", AllPairs(), "one", temperature=0.05),
        "dot": Recipe("dpr", AllPairs(), "one", temperature=1.0),
    },
    "SparseEncoder": dict.fromkeys(("dot", "cosine"), Recipe("splade", EqualIds(), "one", temperature=1.0)),
    "MultiVectorEncoder": {
        "maxsim": Recipe("colbert", QueryToDocument(), "one", temperature=1.0),
        "meanmaxsim": Recipe("colbert", QueryToDocument(), "query_tokens", temperature=0.02),
    },
}


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
        """Name an input's tokens: image patches by row and column, other tokens by their ids."""
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

        The patches are the tokens with the one id that occurs as often as the grid has cells, if any.
        """
        if image is None:
            return 1, 0, []
        from sentence_transformers.multi_vector_encoder.interpretability import get_n_patches

        try:
            columns, rows = get_n_patches(self.model, image.size)
        except (NotImplementedError, ValueError):  # sentence-transformers does not know this processor's grid
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

    def stacked(name: str, *axes: int) -> Tensor:
        parts = [row[name][mask] for row, mask in zip(rows, masks, strict=True)]
        padded = pad_sequence(parts, batch_first=True) if parts else torch.zeros(0, 1, *axes, device=device)
        return padded[None]

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


class Library(Paradigm):
    """A paradigm whose encoder is a sentence-transformers model.

    The precision is set when the model is loaded (`model_kwargs={"dtype": "bfloat16"}`).
    """

    file = "library.json"
    encoder_folder = "library"
    encoder: LibraryEncoder

    def description(self) -> dict[str, Any]:
        model = self.encoder.model
        library = {"prompts": dict(model.prompts), "dtype": str(next(model.parameters()).dtype)}
        return self.recipe.described() | vars(self.encoder.settings) | library

    def count_cut(self, texts: Sequence[str]) -> Cut | None:
        return None

    def read_part(self, texts: Sequence[str]) -> list[str]:
        return list(texts)

    def batch(self, texts: Sequence[Input], side: Side) -> Any:
        return texts  # the library tokenises and encodes in one step

    def _encoded(self, batch: Any, side: Side) -> Tokens:
        with self.evaluating(), torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
            encoded = replace(self.encoder.encode(batch, side), side=side)
            return encoded.map(lambda t: t.transpose(0, 1)) if side == "query" else encoded

    def explain_tokens(
        self, query: Input, document: Input, queries: Tokens, documents: Tokens, pool: Tokens | None = None
    ) -> Explanation:
        explanation = super().explain_tokens(query, document, queries, documents, pool)
        ids = None if documents.ids is None else documents.ids[documents.mask]
        return replace(explanation, picture=self.encoder.picture(document, ids))

    @staticmethod
    def load_encoder(folder: Path) -> LibraryEncoder:
        return read_library(folder).encoder


def wrap(model: Any) -> Library:
    """Make a paradigm from a SentenceTransformer, SparseEncoder or MultiVectorEncoder, with equal scores.

    Raises ValueError if rel cannot express the model's similarity (a distance), or if the model's backend
    hides the weights, from which an index recognises the model that built it.
    """
    kind = next((one.__name__ for one in type(model).__mro__ if one.__name__ in SIMILARITIES), None)
    if kind is None:
        raise ValueError(f"{type(model).__name__} is none of {', '.join(SIMILARITIES)}")
    similarity = str(model.similarity_fn_name)
    recipes = SIMILARITIES[kind]
    if similarity not in recipes:
        raise ValueError(f"the similarity {similarity} is no rel; there are {', '.join(recipes)}")
    if not any(map(prod, (weight.shape for weight in model.parameters()))):
        raise ValueError(f"the backend {model.get_backend()} hides the model's weights: open it with torch's")
    return Library(recipes[similarity], LibraryEncoder(model, kind, similarity))


def read_library(folder: Path) -> Library:
    """Open a folder with sentence-transformers and wrap it. Code in the folder is never run."""
    try:
        import sentence_transformers
    except ImportError as error:
        raise ValueError("the layout library needs sentence-transformers 6 (extra interop)") from error
    named = json_or_empty(folder / MODEL).get("model_type")
    heads = json_or_empty(folder / "config.json").get("architectures") or []
    many = named == "ColBERT" or any(head.endswith(("ForRetrieval", "HF_ColBERT")) for head in heads)
    kind = named if named in SIMILARITIES else "MultiVectorEncoder" if many else "SentenceTransformer"
    model = getattr(sentence_transformers, kind)(str(folder), local_files_only=True, trust_remote_code=False)
    return wrap(model)
