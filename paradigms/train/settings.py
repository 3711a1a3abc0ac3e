"""Training settings that are also flags of `experiments/train.py`; importing this module is fast."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from paradigms.io.checks import Range

AtLeast0 = Annotated[int, Range(0, math.inf)]
AtLeast1 = Annotated[int, Range(1, math.inf)]
Positive = Annotated[float, Range(0, math.inf, above=True)]
PositiveOrNone = Annotated[float | None, Range(0, math.inf, above=True)]


@dataclass(kw_only=True)
class LossOptions:
    """What a loss sums, and how it is computed."""

    chunk: AtLeast0 = 0  # `batches.in_parts`
    """texts to encode at once with cached gradients, which allows batches of any size but encodes each text
    twice; 0: no caching. Not for generative paradigms and rerankers"""
    score_bytes: AtLeast1 = 1 << 30  # `in_batch_rel`
    """bound of the memory for scoring a batch, besides vectors and gradients; beyond it, parts of the scores
    are computed again in the backward pass. Not for generative paradigms and rerankers"""
    temperature: PositiveOrNone = None
    """temperature of the softmax over rel; null: the paradigm's default"""
    # Renormalised coordinates and weights 1: Kusupati et al. 2022 (arXiv:2205.13147), Eq. 1.
    matryoshka: list[int] = field(default_factory=list)
    """add a loss for each of these numbers of first coordinates, such as [64, 32], so that vectors can be
    stored with only these coordinates"""


@dataclass(kw_only=True)
class RunOptions:
    """How steps are computed, when a run ends, and what it stores."""

    patience: AtLeast0 = 0
    """end after this many dev measurements in a row without a better one; 0: take all steps"""
    save_every: AtLeast0 = 0
    """steps between checkpoints; 0: with every dev measurement"""
    keep: AtLeast1 = 2
    """checkpoints to keep; a run resumes from the newest intact one"""
    recompute: bool = False
    """recompute the activations of the backbone's layers in the backward pass: less memory, more time"""
    # bf16 also rounds biases, norms' weights and gradients, besides the factors of products.
    gathered_weights: Literal["float32", "bf16"] = "float32"
    """weights that shards (fsdp.yaml) gather for each layer; bf16: half the traffic, with precision bf16"""
    adapted_weights: Literal["float32", "bf16"] = "float32"
    """weights below adapters (--options '{"lora_rank": 16}'), which are not trained; bf16: rounded to half
    the memory, with precision bf16"""
    parts: AtLeast1 = 1
    """parts of similar length in which a GPU encodes a batch, each padded to its longest text, at the cost of
    two waits a step; a CPU chooses their number"""
    attention: Literal["", "eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3"] = ""
    """transformers' implementation of attention; empty: its choice. With flash attention, a training of all
    layers computes no padding"""
    matmul_precision: Literal["", "highest", "high", "medium"] = ""
    """precision of float32 products on a GPU: high multiplies as TF32, which the fast kernels of in-batch
    scoring need; empty: torch's default, highest"""
    workers: AtLeast0 = 0
    """number of processes that tokenise in advance; 0: none, in the training process"""
