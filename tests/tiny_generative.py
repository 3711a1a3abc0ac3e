"""Tiny generative models: a checkpoint of `tiny.write_seq2seq` with identifiers given as lists of tokens."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, BartConfig, BartForConditionalGeneration

from paradigms.data import Problems
from paradigms.generative.identifiers import END, Identifiers, make
from paradigms.generative.model import Generative
from paradigms.generative.outputs import ScoreName
from paradigms.generative.settings import GenerativeSettings
from tests.tiny import WIDTH

Sequences = list[list[int]]
VOCABULARY = 310  # of the identifiers; that of the checkpoints is larger


def named(rows: Sequences) -> Identifiers:
    """One identifier for each of the documents d0, d1, …, closed by the end token."""
    return _identifiers("title", rows, END)


def texts(rows: Sequences) -> Identifiers:
    """Identifiers of the documents d0, d1, …: every substring of their texts."""
    return _identifiers("text", rows, None)


def _identifiers(kind: str, rows: Sequences, end: int | None) -> Identifiers:
    starts = range(sum(map(len, rows)))  # every token begins a word
    return make(kind, [f"d{n}" for n in range(len(rows))], rows, VOCABULARY, end, Problems(), starts)


def generative(folder: Path, identifiers: Identifiers, *more: Any, **settings: Any) -> Generative:
    """A model without dropout in float64, where rounding does not change an order."""
    torch.manual_seed(0)
    model = Generative(GenerativeSettings("test", **settings), folder, identifiers, *more)
    return model.double().eval()


def log_p(model: Generative, query: str, sequence: list[int], scorer: ScoreName = "log_probability") -> float:
    """rel of one pair: the sum of the scores of the sequence's tokens."""
    with torch.inference_mode():
        targets = model.targets([[sequence]])
        return float(model(model.tokenize([query]), targets, scorer).sum())


def write_bart(folder: Path, t5: Path) -> Path:
    """Write a BART with random weights and biases, and the tokenizer of a tiny T5."""
    vocabulary = AutoConfig.from_pretrained(t5).vocab_size
    size: dict[str, Any] = {"d_model": WIDTH, "vocab_size": vocabulary, "init_std": 0.3}
    for side in ("encoder", "decoder"):
        size |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 2 * WIDTH}
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 1}
    torch.manual_seed(0)
    bart = BartForConditionalGeneration(BartConfig(**size, **tokens))
    for name, weight in bart.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.1)
    bart.save_pretrained(folder)
    for file in t5.glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder
