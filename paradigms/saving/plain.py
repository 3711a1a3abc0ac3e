"""Readers for transformers' folders; `architectures` in config.json determines the reader.

A sequence classifier with one output is read as a reranker and a masked language model as SPLADE. An encoder
without a head, or the encoder of a T5, is read as a model that compares mean vectors by their cosine, as most
published single-vector models are trained. Other heads, and models that are not encoders, are refused.
"""

import logging
from pathlib import Path

from paradigms.baselines.cross_attention import SequenceClassifier
from paradigms.encoder.backbone import pretrained
from paradigms.encoder.published import MODULES, modules
from paradigms.io.checks import json_or_empty
from paradigms.model import Paradigm
from paradigms.saving.heads import POOLED, encoder_with, lengths, one_vector
from paradigms.splade import splade

LENGTH = 512  # longest text in tokens, if the encoder allows as many
HEADLESS = ("Model", "ForPreTraining", "ForMaskedLM", "ForConditionalGeneration")  # heads that may be dropped

logger = logging.getLogger(__name__)


def is_plain(folder: Path) -> bool:
    return "model_type" in json_or_empty(folder / "config.json")


def read_plain(folder: Path) -> Paradigm:
    """Read an encoder with mean pooling.

    Raises ValueError if files are missing or if the model is not an encoder.
    """
    if not list(folder.glob("*.safetensors")):
        raise ValueError("no *.safetensors with its weights")
    check_encoder(folder)
    limits = lengths(folder, LENGTH, LENGTH)
    return one_vector(encoder_with(folder, None, **POOLED, **limits, pooling="mean"))


def check_encoder(folder: Path) -> None:
    """Raise ValueError if the model is generative or has a head trained for another task."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_MASKED_LM_MAPPING,
        MODEL_FOR_TEXT_ENCODING_MAPPING,
    )

    config = pretrained(AutoConfig, folder)
    halved, decodes = type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING, getattr(config, "is_decoder", False)
    masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not config.is_encoder_decoder
    if not halved and (decodes or not masked):
        raise ValueError(
            f"model_type {config.model_type} is not a text encoder: to train one from it, name the folder as "
            "the backbone of a paradigm, PARADIGMS['dpr'](folder)"
        )
    for name in config.architectures or []:
        if not name.endswith(HEADLESS) or name.endswith("LMHeadModel"):
            raise ValueError(f"{name} is not a text encoder: save the encoder below its head separately")


def is_masked(folder: Path, head: str = "ForMaskedLM") -> bool:
    names = json_or_empty(folder / "config.json").get("architectures") or [] if is_plain(folder) else []
    return any(name.endswith(head) for name in names)


def read_masked(folder: Path) -> Paradigm:
    """Read SPLADE with its head, which layout "plain" drops. Raises ValueError if weights are missing."""
    logger.warning("%s is read as SPLADE, by its masked-language-model head; layout 'plain' drops it", folder)
    return splade(folder, **lengths(folder, LENGTH, LENGTH))


def is_reranker(folder: Path) -> bool:
    return is_masked(folder, "ForSequenceClassification")


def read_reranker(folder: Path) -> SequenceClassifier:
    """Read a reranker. Raises ValueError for more than one output, or for modules after the classifier."""
    more = [kind for kind, _ in modules(folder)[1:]] if (folder / MODULES).is_file() else []
    if more:
        raise ValueError(f"{', '.join(more)} after a sequence classifier")
    return SequenceClassifier(folder)
