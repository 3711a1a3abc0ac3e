"""s(q, d) of a published reranker: a Hugging Face sequence classifier with one output, over the pair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from paradigms.backbone import load_tokenizer, quiet
from paradigms.cross_attention import WINDOW, by_length
from paradigms.data import Corpus, Run
from paradigms.model import autocast
from paradigms.progress import progress_bar

LONGEST = 512  # tokens of a pair, where the model has places for more


def is_classifier(name: str | Path) -> bool:
    """Whether a folder or hub name is that of a sequence classifier. OSError where there is no such model."""
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        return False
    kinds = AutoConfig.from_pretrained(name).architectures or []
    return any(kind.endswith("ForSequenceClassification") for kind in kinds)


class SequenceClassifier:
    """A teacher, by hub name or folder: cross-encoder/ms-marco-MiniLM-L6-v2 and its kin.

    Scores are logits. ValueError where the model has several outputs, or a head with random weights.
    """

    def __init__(self, name: str | Path, device: torch.device | str) -> None:
        with quiet():
            model, found = AutoModelForSequenceClassification.from_pretrained(
                name, dtype=torch.float32, output_loading_info=True
            )
        if found["missing_keys"]:
            missing = sorted(found["missing_keys"])[0]
            raise ValueError(f"{name} is no reranker: it lacks {missing}, which would be random")
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
        """s of the run's queries and documents. precision: "no", "bf16", or "fp16" on a GPU."""
        names = [(query, document) for query, documents in run.items() for document in documents]
        found: Run = {query: {} for query in run}
        with (
            torch.inference_mode(),
            autocast(self.device, precision),
            progress_bar(progress) as bar,
        ):
            task = bar.add_task("rerank", total=len(names))
            for start in range(0, len(names), WINDOW):
                window = names[start : start + WINDOW]
                rows = self.tokenizer(
                    [queries[query] for query, _ in window],
                    [corpus[corpus.position(document)] for _, document in window],
                    truncation=True,
                    max_length=self.length,
                )
                for batch in by_length([len(ids) for ids in rows["input_ids"]], self.device):
                    pairs = self.tokenizer.pad(
                        {key: [values[n] for n in batch] for key, values in rows.items()}, return_tensors="pt"
                    )
                    scores = self.model(**pairs.to(self.device)).logits[:, 0].float().tolist()
                    for n, score in zip(batch, scores, strict=True):
                        query, document = window[n]
                        found[query][document] = score
                    bar.advance(task, len(batch))
        return found
