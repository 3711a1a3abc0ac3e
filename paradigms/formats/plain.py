"""A Hugging Face encoder, or the encoder half of a T5, without any head: cosines of mean vectors.

No library says how such a checkpoint compares texts; the mean of all token vectors is what the published
single-vector models are mostly trained with.
"""

from __future__ import annotations

from pathlib import Path

from paradigms.encoder.backbone import pretrained
from paradigms.formats.heads import POOLED, encoder_with
from paradigms.formats.recipes import one_vector
from paradigms.io.typed import Unreadable, read_json
from paradigms.model import Paradigm

LENGTH = 512  # of a text, where the encoder has no limit of its own or a larger one


def is_plain(folder: Path) -> bool:
    return (folder / "config.json").is_file() and "model_type" in read_json(folder / "config.json")


def read_plain(folder: Path) -> Paradigm:
    """`Unreadable` where weights or tokenizer are missing."""
    if not list(folder.glob("*.safetensors")):
        raise Unreadable("no *.safetensors with its weights")
    length = min(LENGTH, longest(folder))
    try:
        encoder = encoder_with(
            folder, None, **POOLED, pooling="mean", query_length=length, document_length=length
        )
    except ValueError as error:
        raise Unreadable(str(error)) from error
    return one_vector(encoder)


def longest(folder: Path) -> int:
    """The longest text in tokens that the encoder has places for; `LENGTH` where they are without end."""
    from transformers import AutoConfig

    return int(getattr(pretrained(AutoConfig, folder), "max_position_embeddings", None) or LENGTH)
