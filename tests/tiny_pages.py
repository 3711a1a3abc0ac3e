"""A tiny ColPali, in the architecture of transformers, and pictures for it."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    ColPaliConfig,
    ColPaliForRetrieval,
    ColPaliProcessor,
    PaliGemmaConfig,
    PreTrainedTokenizerFast,
    SiglipImageProcessor,
)

from tests.tiny import HEADS, LAYERS, WIDTH, WORDS

PATCH, SIDE = 14, 4  # pixels of a patch; patches in a row and in a column
SPECIAL = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}


def write_colpali(folder: Path) -> Path:
    """Write a ColPali with random weights: a SigLIP over 4 × 4 patches, a Gemma, and a projection to 16."""
    words = [*SPECIAL.values(), *dict.fromkeys(WORDS.split()), "describe", "image", "question", *".:?"]
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    backend.normalizer, backend.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    pixels = PATCH * SIDE
    images = SiglipImageProcessor(size={"height": pixels, "width": pixels})
    images.image_seq_length = SIDE * SIDE
    processor = ColPaliProcessor(images, PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL))
    size = {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
    }
    vision = {"model_type": "siglip_vision_model", "image_size": pixels, "patch_size": PATCH} | size
    entries = len(processor.tokenizer)
    text = {"model_type": "gemma", "vocab_size": entries, "num_key_value_heads": 1, "head_dim": 16} | size
    config = PaliGemmaConfig(
        vision_config=vision | {"vision_use_head": False, "projection_dim": WIDTH},
        text_config=text | {"pad_token_id": 0},
        image_token_index=processor.image_token_id,
        projection_dim=WIDTH,
    )
    torch.manual_seed(0)
    model = ColPaliForRetrieval(ColPaliConfig(vlm_config=config, embedding_dim=16))
    with torch.no_grad():  # weights of the usual .02 would leave patches almost independent of the picture
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=weight[0].numel() ** -0.5)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def picture(seed: int, width: int = 80, height: int = 60) -> Image.Image:
    """A picture of random colours in blocks."""
    blocks = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST)
