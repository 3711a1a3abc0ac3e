"""s(q, d) = wᵀ BERT([CLS] q [SEP] d [SEP])₀: full attention between query and document, for reranking.

Nogueira & Cho 2019 (arXiv:1901.04085); Luan et al. 2021 (TACL), §4.1: CROSS-ATTENTION. It is no rel: D does
not exist without q, A and Z are not defined, and nothing can be indexed. It is the upper baseline, at the
price of the encoder for every pair. `SequenceClassifier` is a published one of transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from tokenizers import Encoding
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from paradigms.data import Corpus, Run, best_first, check_queries
from paradigms.encoder.backbone import load_heads, load_model, load_tokenizer, pretrained
from paradigms.encoder.batches import by_length
from paradigms.encoder.text import Batch, EncoderSettings, Side, TextEncoder
from paradigms.io.files import settle
from paradigms.io.progress import progress_bar
from paradigms.io.typed import require
from paradigms.model import Trainable, autocast

NAME = "cross_attention"
HEAD = f"{NAME}.safetensors"  # w: the file that tells a folder of this kind from others
WINDOW = 4096  # pairs that are tokenised together and put into batches of like length
# Padded tokens of a batch of pairs: on a processor what its cache holds.
TOKENS = {"cpu": 1 << 12}
MANY_TOKENS = 1 << 17
LONGEST = 512  # tokens of a pair of a published reranker, where the model has places for more
QUERY = 64  # of them that are taken for a query's, where documents are cut into passages


class CrossAttention(Trainable):
    """s(q, d) of pairs of texts: a text encoder over both, joined, and a linear head on its pooled state."""

    tokenizer: Any
    tells_apart: bool  # whether the backbone reads of which text a token is

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.encoder, self.tokenizer = encoder, encoder.tokenizer
        self.tells_apart = getattr(encoder.backbone.config, "type_vocab_size", 0) > 1
        # No bias: neither a ranking nor a softmax over a query's candidates depends on it.
        self.head = nn.Linear(encoder.dim, 1, bias=False)
        if not self.tokenizer.is_fast:
            raise ValueError(f"{type(self.tokenizer).__name__} joins no pairs: use a fast tokenizer")
        longest = sum(self._room.values()) + self.tokenizer.num_special_tokens_to_add(pair=True)
        limit = getattr(encoder.backbone.config, "max_position_embeddings", None)
        if limit is not None and longest > limit:
            raise ValueError(
                f"query_length={encoder.settings.query_length} and document_length="
                f"{encoder.settings.document_length} make pairs of {longest} tokens, beyond the {limit} "
                "positions of the backbone"
            )

    @property
    def name(self) -> str:
        return NAME

    def description(self) -> dict[str, Any]:
        return {"name": NAME} | asdict(self.encoder.settings)

    @property
    def document_length(self) -> int:
        """Tokens of a document at most."""
        return self.encoder.settings.document_length

    @property
    def _room(self) -> dict[Side, int]:
        """How many of its own tokens each side has at most: as many as in the paradigms that encode apart."""
        settings, special = self.encoder.settings, self.tokenizer.num_special_tokens_to_add()
        return {"query": settings.query_length - special, "document": settings.document_length - special}

    def tokenize(self, queries: Sequence[str], documents: Sequence[str]) -> Batch:
        """The pairs (queries[x], documents[x]), joined as the tokenizer joins two texts, and padded."""
        return self._padded(self._joined(queries, documents))

    def forward(self, pairs: Batch) -> Float[Tensor, " x"]:
        """s of each pair, in float32 whatever autocast says: bfloat16 would tie near scores."""
        states = self.encoder(pairs, "document").vectors[0, :, 0]
        with torch.autocast(states.device.type, enabled=False):
            return self.head(states).squeeze(-1)

    def rerank(
        self,
        queries: Mapping[str, str],
        corpus: Corpus,
        run: Run,
        *,
        precision: str = "no",
        progress: bool = False,
    ) -> Run:
        """s of the run's queries and documents, best first; of equal scores the smaller document id.

        precision: "no", "bf16", or "fp16" on a GPU. KeyError names what has no text.
        """
        check_queries(run, queries)
        names = [(query, document) for query, documents in run.items() for document in documents]
        length = {id: len(corpus[corpus.position(id)]) for _, id in names}
        names.sort(key=lambda pair: -len(queries[pair[0]]) - length[pair[1]])  # what needs most memory first
        found: Run = {query: {} for query in run}
        tokens = TOKENS.get(self.device.type, MANY_TOKENS)
        with (
            self.evaluating(),
            torch.inference_mode(),
            autocast(self.device, precision),
            progress_bar(progress) as bar,
        ):
            task = bar.add_task("rerank pairs", total=len(names))
            for start in range(0, len(names), WINDOW):
                window = names[start : start + WINDOW]
                texts = [corpus[corpus.position(document)] for _, document in window]
                rows = self._joined([queries[query] for query, _ in window], texts)
                for batch in by_length([len(row.ids) for row in rows], tokens):
                    scores = self(self._padded([rows[n] for n in batch]).to(self.device)).tolist()
                    for n, value in zip(batch, scores, strict=True):
                        found[window[n][0]][window[n][1]] = value
                    bar.advance(task, len(batch))
        return {query: best_first(scores) for query, scores in found.items()}

    def _joined(self, queries: Sequence[str], documents: Sequence[str]) -> list[Encoding]:
        """The pairs as the tokenizer joins two texts: ids, and of which text each is."""
        pairs = zip(self._cut(queries, "query"), self._cut(documents, "document"), strict=True)
        joiner = self.tokenizer.backend_tokenizer
        joiner.no_truncation()  # it would go on with that of one text
        joiner.no_padding()
        return [joiner.post_process(query, document) for query, document in pairs]

    def _cut(self, texts: Sequence[str], side: Side) -> list[Encoding]:
        """Each text's own tokens, cut before they are joined: neither text takes the other's place."""
        cut = {"truncation": True, "max_length": self._room[side]}
        return self.tokenizer(list(texts), add_special_tokens=False, **cut).encodings

    def _padded(self, rows: Sequence[Encoding]) -> Batch:
        def joined(name: str, fill: int = 0) -> Tensor:
            values = [torch.tensor(getattr(row, name)) for row in rows]
            return pad_sequence(values, batch_first=True, padding_value=fill)

        ids, attention = joined("ids", self.tokenizer.pad_token_id), joined("attention_mask")
        return Batch(ids, attention, attention.bool(), joined("type_ids") if self.tells_apart else None)

    def write(self, folder: Path, *, merged: bool = False) -> None:
        self.encoder.save(folder, merged=merged)
        save_file(self._head(), folder / HEAD)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "CrossAttention":
        folder = Path(folder)
        settle(folder)
        require(folder / HEAD, folder)
        model = cls(TextEncoder.load(folder))
        load_heads(model, model._head(), folder / HEAD)
        return model

    def _head(self) -> dict[str, Tensor]:
        return {"head.weight": self.head.weight.detach().contiguous()}


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
        self.tells_apart = "token_type_ids" in self.tokenizer.model_input_names
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

    def write(self, folder: Path, *, merged: bool = False) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "SequenceClassifier":
        return cls(folder)


def is_classifier(name: str | Path) -> bool:
    """Whether a folder or hub name is that of a sequence classifier. OSError where there is no such model."""
    from transformers import AutoConfig

    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        return False
    kinds = pretrained(AutoConfig, name).architectures or []
    return any(kind.endswith("ForSequenceClassification") for kind in kinds)


def cross_attention(
    backbone: str | Path,
    *,
    query_length: int = 32,
    document_length: int = 180,
    pooling: Literal["cls", "mean"] = "cls",
    lora_rank: int = 0,
    lora_targets: str = "all-linear",
    dora: bool = False,
) -> CrossAttention:
    """The reranker over `backbone`. Both texts are cut as the paradigms of these lengths cut them.

    pooling: "mean" is for encoders without [CLS], such as T5's.
    """
    own: dict[str, Any] = {"query_length": query_length, "document_length": document_length}
    own |= {"pooling": pooling, "lora_rank": lora_rank, "lora_targets": lora_targets, "dora": dora}
    pooled: dict[str, Any] = {"query_vectors": "pooled", "document_vectors": "pooled"}
    return CrossAttention(TextEncoder(backbone, EncoderSettings(**own, **pooled, dim=None, normalize=False)))
