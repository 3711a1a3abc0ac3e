"""Tiny models of pictures and sounds, in the architectures of transformers, and pictures for them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    ClapProcessor,
    ColPaliConfig,
    ColPaliForRetrieval,
    ColPaliProcessor,
    ColQwen2Config,
    ColQwen2ForRetrieval,
    ColQwen2Processor,
    PaliGemmaConfig,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    SiglipImageProcessor,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.tiny import HEADS, LAYERS, WIDTH, WORDS, bytes_of, words_of

PATCH, SIDE = 14, 4  # pixels of a patch; patches in a row and in a column
SAMPLES = 8000  # in a second of sound
SIZE = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}
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
    vision = {"model_type": "siglip_vision_model", "image_size": pixels, "patch_size": PATCH} | SIZE
    entries = len(processor.tokenizer)
    text = {"model_type": "gemma", "vocab_size": entries, "num_key_value_heads": 1, "head_dim": 16} | SIZE
    config = PaliGemmaConfig(
        vision_config=vision | {"vision_use_head": False, "projection_dim": WIDTH},
        text_config=text | {"pad_token_id": 0},
        image_token_index=processor.image_token_id,
        projection_dim=WIDTH,
    )
    return _save(ColPaliForRetrieval, ColPaliConfig(vlm_config=config, embedding_dim=16), processor, folder)


def write_colqwen(folder: Path) -> Path:
    """Write a ColQwen2 with random weights: its pictures have as many patches as their size asks for."""
    names = [f"<|{name}|>" for name in ("im_start", "vision_start", "vision_end", "image_pad", "video_pad")]
    tokenizer = bytes_of("qwen3")
    tokenizer.add_tokens(names, special_tokens=True)
    keys = ("vision_start", "vision_end", "image", "video")
    ids = {
        f"{key}_token_id": n for key, n in zip(keys, tokenizer.convert_tokens_to_ids(names[1:]), strict=True)
    }
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3]}
    text = SIZE | {"num_key_value_heads": 1, "vocab_size": len(tokenizer), "rope_parameters": rope}
    vision = {
        "depth": LAYERS,
        "embed_dim": WIDTH,
        "hidden_size": WIDTH,
        "num_heads": HEADS,
        "patch_size": PATCH,
    }
    text |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    pixels = (2 * PATCH) ** 2  # four patches become one vector
    images = Qwen2VLImageProcessorPil(size={"shortest_edge": pixels, "longest_edge": 16 * pixels})
    config = Qwen2VLConfig(text_config=text, vision_config=vision, **ids)
    return _save(
        ColQwen2ForRetrieval, ColQwen2Config(vlm_config=config, embedding_dim=16),
        ColQwen2Processor(images, tokenizer), folder,
    )  # fmt: skip


def write_clap(folder: Path) -> Path:
    """Write a CLAP with random weights, which compares texts with a second of sound at 8 kHz."""
    tokenizer = words_of()
    text = SIZE | {"vocab_size": len(tokenizer), "max_position_embeddings": 80, "projection_dim": 16}
    sound = {"hidden_size": WIDTH, "patch_embeds_hidden_size": WIDTH // 2, "depths": [1, 1], "window_size": 4}
    sound |= {"num_attention_heads": [2, 2], "num_mel_bins": 16, "spec_size": 64, "num_classes": 4}
    config = ClapConfig(
        text_config=text | {"pad_token_id": tokenizer.pad_token_id},
        audio_config=sound | {"enable_fusion": False, "projection_dim": 16},
        projection_dim=16,
    )
    extractor = ClapFeatureExtractor(
        feature_size=16, sampling_rate=SAMPLES, hop_length=100, max_length_s=1, fft_window_size=256,
        frequency_max=SAMPLES // 2, truncation="rand_trunc", padding="repeatpad",
    )  # fmt: skip
    return _save(ClapModel, config, ClapProcessor(extractor, tokenizer), folder)


def _save(kind: Any, config: Any, processor: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    model = kind(config)
    with torch.no_grad():  # weights of the usual .02 would leave vectors almost independent of the input
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=weight[0].numel() ** -0.5)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def picture(seed: int) -> Image.Image:
    """A picture of random colours in blocks."""
    blocks = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    return Image.fromarray(blocks).resize((80, 60), Image.Resampling.NEAREST)
