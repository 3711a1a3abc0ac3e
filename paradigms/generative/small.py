"""Write a checkpoint of a T5 v1.1 with random weights and a vocabulary trained on given texts."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from paradigms.encoder.backbone import quiet
from paradigms.io.files import atomic_folder, contents

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"  # with T5's ids, 0, 1 and 2
HEADS = 4
WIDTH = 64
VOCABULARY = 4000


def small_t5(texts: Iterable[str], folder: str | Path, *, seed: int = 0) -> Path:
    """Write a checkpoint with random weights and a byte-pair vocabulary learned from `texts`.

    Raises ValueError if the texts are empty.
    """
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = _byte_pairs(texts)
    if len(tokenizer) == len((PAD, END, UNKNOWN)):
        raise ValueError("all texts are empty: a vocabulary needs at least one character")
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=2 * WIDTH,
        num_layers=1,
        num_heads=HEADS,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,  # type: ignore[call-arg]
    )
    written = contents("*.json", "*.safetensors", marks=["config.json"])
    with torch.random.fork_rng(devices=[]), quiet(), atomic_folder(folder, written) as temporary:
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config)
        # The class ties both tables unless their values differ.
        table = torch.nn.Parameter(torch.randn(len(tokenizer), WIDTH) * WIDTH**-0.5)
        model.lm_head.weight = table
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    return Path(folder)


def _byte_pairs(texts: Iterable[str]) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    # Words include identifiers of programs and their parts: `MutableSet.add`, `is_subnormal`.
    splits = [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(True)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[PAD, END, UNKNOWN], show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(texts, trainer)
    end = tokenizer.token_to_id(END)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, end)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, padding_side="right"
    )
