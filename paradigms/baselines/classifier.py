"""s(q, d) of a published reranker: a Hugging Face sequence classifier with one output, over the pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from tokenizers import Encoding
from torch import Tensor

from paradigms.baselines.cross_attention import padded, rerank_pairs
from paradigms.data import Corpus, Run
from paradigms.encoder.backbone import load_model, load_tokenizer, pretrained

LONGEST = 512  # tokens of a pair, where the model has places for more


def is_classifier(name: str | Path) -> bool:
    """Whether a folder or hub name is that of a sequence classifier. OSError where there is no such model."""
    from transformers import AutoConfig

    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        return False
    kinds = pretrained(AutoConfig, name).architectures or []
    return any(kind.endswith("ForSequenceClassification") for kind in kinds)


class SequenceClassifier:
    """A teacher, by hub name or folder: cross-encoder/ms-marco-MiniLM-L6-v2 and its kin.

    Scores are logits. ValueError where the model has several outputs, or a head with random weights.
    """

    def __init__(self, name: str | Path, device: torch.device | str) -> None:
        from transformers import AutoModelForSequenceClassification

        model = load_model(AutoModelForSequenceClassification, name)
        if model.config.num_labels != 1:
            raise ValueError(
                f"{name} has {model.config.num_labels} outputs; a reranker has one, the score of the pair"
            )
        self.model: Any = model.to(device).eval()
        self.tokenizer = load_tokenizer(name, model.config.vocab_size)
        self.device = torch.device(device)
        places = getattr(model.config, "max_position_embeddings", None) or LONGEST
        self.length = min(LONGEST, places, self.tokenizer.model_max_length)

    def rerank(
        self,
        queries: Mapping[str, str],
        corpus: Corpus,
        run: Run,
        *,
        precision: str = "no",
        progress: bool = False,
    ) -> Run:
        """s of the run's queries and documents, best first. precision: "no", "bf16", or "fp16" on a GPU."""
        return rerank_pairs(
            queries,
            corpus,
            run,
            self._joined,
            self._score,
            self.device,
            precision=precision,
            progress=progress,
        )

    def _joined(self, queries: Sequence[str], documents: Sequence[str]) -> list[Encoding]:
        """The pairs as the tokenizer joins and cuts them: of the longer text first."""
        rows = self.tokenizer(list(queries), list(documents), truncation=True, max_length=self.length)
        return rows.encodings

    def _score(self, rows: Sequence[Encoding]) -> Float[Tensor, " x"]:
        names = ("input_ids", "attention_mask", "token_type_ids")
        tensors = zip(names, padded(rows, self.tokenizer.pad_token_id), strict=True)
        read = {name: t.to(self.device) for name, t in tensors if name in self.tokenizer.model_input_names}
        return self.model(**read).logits[:, 0].float()
