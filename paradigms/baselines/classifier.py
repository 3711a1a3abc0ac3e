"""s(q, d) of a published reranker: a Hugging Face sequence classifier with one output, over the pair."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from tokenizers import Encoding
from torch import Tensor

from paradigms.baselines.cross_attention import NAME, CrossAttention, padded
from paradigms.encoder.backbone import load_model, load_tokenizer, pretrained
from paradigms.encoder.text import Batch
from paradigms.model import Trainable

LONGEST = 512  # tokens of a pair, where the model has places for more
QUERY = 64  # of them that are taken for a query's, where documents are cut into passages


def is_classifier(name: str | Path) -> bool:
    """Whether a folder or hub name is that of a sequence classifier. OSError where there is no such model."""
    from transformers import AutoConfig

    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        return False
    kinds = pretrained(AutoConfig, name).architectures or []
    return any(kind.endswith("ForSequenceClassification") for kind in kinds)


class SequenceClassifier(CrossAttention):
    """cross-encoder/ms-marco-MiniLM-L6-v2 and its kin, by folder or hub name. Scores are logits.

    ValueError where the model has several outputs, or a head with random weights.
    """

    def __init__(self, name: str | Path) -> None:
        from transformers import AutoModelForSequenceClassification

        Trainable.__init__(self)
        self.model: Any = load_model(AutoModelForSequenceClassification, name).eval()
        config = self.model.config
        if config.num_labels != 1:
            raise ValueError(
                f"{name} has {config.num_labels} outputs; a reranker has one, the score of the pair"
            )
        self.tokenizer = load_tokenizer(name, config.vocab_size)
        places = getattr(config, "max_position_embeddings", None) or LONGEST
        self.length = min(LONGEST, places, self.tokenizer.model_max_length)

    def description(self) -> dict[str, Any]:
        return {"name": NAME, "classifier": self.model.config.model_type, "length": self.length}

    @property
    def document_length(self) -> int:
        return max(1, self.length - QUERY)

    def forward(self, pairs: Batch) -> Float[Tensor, " x"]:
        return self.model(**pairs.inputs()).logits[:, 0].float()

    def _joined(self, queries: Sequence[str], documents: Sequence[str]) -> list[Encoding]:
        """The pairs as the tokenizer joins and cuts them: of the longer text first."""
        rows = self.tokenizer(list(queries), list(documents), truncation=True, max_length=self.length)
        return rows.encodings

    def _padded(self, rows: Sequence[Encoding]) -> Batch:
        ids, attention, types = padded(rows, self.tokenizer.pad_token_id)
        tells_apart = "token_type_ids" in self.tokenizer.model_input_names
        return Batch(ids, attention, attention.bool(), types if tells_apart else None)

    def write(self, folder: Path, *, merged: bool = False) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "SequenceClassifier":
        return cls(folder)
