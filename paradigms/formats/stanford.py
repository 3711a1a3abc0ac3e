"""Stanford ColBERT (colbertv2.0): one state dict of BERT and a linear layer; settings in artifact.metadata.

Khattab & Zaharia 2020; Santhanam et al. 2022. What their metadata does not say is as their code has it:
markers [unused0] and [unused1], queries filled up with [MASK], punctuation skipped, cosines, a sum of maxima.
"""

import string
from pathlib import Path

from paradigms.formats.heads import Head, encoder_with, late_interaction
from paradigms.formats.weights import read_weights
from paradigms.io.typed import Unreadable, json_or_empty, read_json
from paradigms.model import Paradigm

METADATA = "artifact.metadata"


def is_stanford(folder: Path) -> bool:
    if not (folder / "config.json").is_file():
        return False
    architectures = read_json(folder / "config.json").get("architectures") or []
    return (folder / METADATA).is_file() or "HF_ColBERT" in architectures


def read_stanford(folder: Path) -> Paradigm:
    """`Unreadable` where the linear layer is missing, or similarities are no cosines."""
    found = read_weights(folder, "linear.weight")
    if not found:
        raise Unreadable("no linear.weight among the weights")
    settings = json_or_empty(folder / METADATA)
    if settings.get("similarity", "cosine") != "cosine":
        raise Unreadable(f"similarity is {settings['similarity']}")
    attends = bool(settings.get("attend_to_mask_tokens"))
    return late_interaction(
        encoder_with(
            folder,
            Head(found["linear.weight"], None),
            query_length=settings.get("query_maxlen") or 32,
            document_length=settings.get("doc_maxlen") or 220,
            query_marker=settings.get("query_token_id") or "[unused0]",
            document_marker=settings.get("doc_token_id") or "[unused1]",
            query_augmentation=True,
            attend_augmentation=attends,
            skip=string.punctuation if settings.get("mask_punctuation", True) else "",
            skip_exact=settings.get("mask_punctuation", True),
        )
    )
