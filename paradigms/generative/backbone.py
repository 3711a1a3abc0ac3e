"""Load the pretrained backbone of a generative paradigm: T5, BART, or any encoder."""

from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from paradigms.encoder.backbone import load_backbone, load_model, load_tokenizer, pretrained
from paradigms.encoder.sources import packaged
from paradigms.generative.decoder import FAMILIES
from paradigms.generative.identifiers import END

UNUSED = "[unused0]"  # in BERT's vocabularies


def load_base(name: str | Path) -> Any:
    """Load T5 or BART with its decoder, or any encoder, by hub name or folder.

    "offline" is the packaged all-MiniLM-L6-v2. Raises ValueError if an encoder-decoder belongs to another
    family, scales its embeddings or adds a bias to its logits.
    """
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    name = packaged(name)
    if not has_decoder(name):
        return load_backbone(name)
    config = pretrained(AutoConfig, name)
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"{name} is a {config.model_type}; generative paradigms need an encoder, or one of the "
            f"encoder-decoders {', '.join(FAMILIES)}"
        )
    base = load_model(AutoModelForSeq2SeqLM, name)
    if getattr(config, "scale_embedding", False) or getattr(base, "final_logits_bias", Tensor([0])).any():
        raise ValueError(f"{name} scales its embeddings or adds a bias to its logits, which is not supported")
    return base


def load_base_tokenizer(name: str | Path) -> Any:
    """Load a tokenizer that has an end token; for encoders, this token is `UNUSED` or the separator."""
    tokenizer = load_tokenizer(packaged(name))
    if tokenizer.eos_token is None:
        unused = tokenizer.convert_tokens_to_ids(UNUSED) == END
        tokenizer.eos_token = UNUSED if unused else tokenizer.sep_token
    return tokenizer


def has_decoder(name: str | Path) -> bool:
    from transformers import AutoConfig

    return bool(pretrained(AutoConfig, packaged(name)).is_encoder_decoder)


def encoder_of(base: Any) -> Any:
    return base.get_encoder() if base.config.is_encoder_decoder else base


def token_vectors(base: Any) -> Float[Tensor, "v h"]:
    """Return the decoder's input vectors for tokens; an encoder's vectors are scaled to mean square 1."""
    vectors = base.get_input_embeddings().weight.detach()
    return vectors if base.config.is_encoder_decoder else vectors / vectors.square().mean().sqrt()
