"""s(q, d) = wᵀ BERT([CLS] q [SEP] d [SEP])₀: full attention between query and document, for reranking.

Nogueira & Cho 2019 (arXiv:1901.04085); Luan et al. 2021 (TACL), §4.1: CROSS-ATTENTION. This score does not
have the form of rel: D depends on q, the alignment A and the normaliser Z are undefined, and nothing can be
indexed. It serves as an upper baseline and runs the encoder once per pair. `SequenceClassifier` wraps
published rerankers of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from tokenizers import Encoding
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from paradigms.core import at_least_float32
from paradigms.data import Corpus, Run, best_first, check_queries
from paradigms.encoder.backbone import load_heads, load_model, load_tokenizer, most_positions
from paradigms.encoder.batches import by_length
from paradigms.encoder.precision import AUTO, autocast, scores_of
from paradigms.encoder.published import default_pooling
from paradigms.encoder.text import Batch, EncoderSettings, Side, TextEncoder
from paradigms.encoder.tokenizing import TOKENIZING, beginnings, call_tokenizer
from paradigms.explanation import Explanation
from paradigms.io.checks import require
from paradigms.io.files import settle
from paradigms.io.progress import progress_bar
from paradigms.trainable import Trainable

NAME = "cross_attention"
HEAD = f"{NAME}.safetensors"  # w: the file that identifies this kind of folder
WINDOW = 4096  # pairs that are tokenised together and batched by similar length
# Padded tokens per batch of pairs; a CPU's cache holds this many.
TOKENS = {"cpu": 1 << 12}
MANY_TOKENS = 1 << 17
LONGEST = 512  # maximum tokens per pair for published rerankers with more positions
TOKENS_OF_ONE = 64  # maximum tokens per character: up to 18 characters under NFKC, of up to 3 bytes each
QUERY = 64  # tokens reserved for the query when documents are cut into passages


class CrossAttention(Trainable):
    """A reranker that encodes query and document as one text and scores the pair with a linear head."""

    searches: ClassVar[bool] = False
    tokenizer: Any
    tells_apart: bool  # whether the backbone reads segment ids

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.tokenizer = encoder.tokenizer
        self.tells_apart = getattr(encoder.backbone.config, "type_vocab_size", 0) > 1
        # No bias: it would affect neither a ranking nor a softmax over a query's candidates.
        self.head = nn.Linear(encoder.dim, 1, bias=False)
        if not self.tokenizer.is_fast:
            raise ValueError(f"{type(self.tokenizer).__name__} cannot join pairs: use a fast tokenizer")
        self._separator = self._separation()
        longest = sum(self._room.values()) + self.tokenizer.num_special_tokens_to_add(pair=True)
        longest += len(self._separator)
        limit = most_positions(encoder.backbone)
        if limit is not None and longest > limit:
            raise ValueError(
                f"query_length={encoder.settings.query_length} and document_length="
                f"{encoder.settings.document_length} make pairs of {longest} tokens, beyond the {limit} "
                "positions of the backbone"
            )

    def _separation(self) -> list[Encoding]:
        """Encode the token between query and document; [] if the tokenizer itself separates pairs.

        Many decoders' tokenizers do not; their end token serves. Raises ValueError if there is none.
        """
        added = self.tokenizer.num_special_tokens_to_add
        if added(pair=True) > added():
            return []
        token = self.tokenizer.sep_token or self.tokenizer.eos_token
        if token is None:
            raise ValueError("the tokenizer does not separate query and document, and has no end token")
        return [call_tokenizer(self.tokenizer, token, add_special_tokens=False).encodings[0]]

    @property
    def name(self) -> str:
        return NAME

    def retriever(self, corpus: Corpus, precision: str) -> TextPairs:
        return TextPairs(self, corpus, precision)

    def hub_task(self) -> tuple[str, list[str]]:
        return "text-ranking", ["cross-encoder", "reranker"]

    def description(self) -> dict[str, Any]:
        return {"name": NAME} | asdict(self.encoder.settings)

    @property
    def document_length(self) -> int:
        return self.encoder.settings.document_length

    @property
    def _room(self) -> dict[Side, int]:
        """Token limit per side, excluding special tokens, as for texts that are encoded alone."""
        settings = self.encoder.settings
        special = self.tokenizer.num_special_tokens_to_add()
        return {"query": settings.query_length - special, "document": settings.document_length - special}

    def tokenize(self, queries: Sequence[str], documents: Sequence[str]) -> Batch:
        """Tokenise and pad the pairs (queries[x], documents[x])."""
        return self._padded(self._joined(queries, documents))

    def forward(self, pairs: Batch) -> Float[Tensor, " x"]:
        """Compute s of each pair, in float32 or wider."""
        return scores_of(self.head, self.encoder(pairs, "document").vectors[0, :, 0]).squeeze(-1)

    def score_texts(
        self, pairs: Sequence[tuple[str, str]], *, precision: str = AUTO, progress: bool = False
    ) -> list[float]:
        """Score pairs of texts (query, document). precision: as in `encoder.precision`.

        Raises ValueError if a score is not finite.
        """
        order = sorted(range(len(pairs)), key=lambda n: -sum(map(len, pairs[n])))  # most memory first
        scores = [0.0] * len(pairs)
        tokens = TOKENS.get(self.device.type, MANY_TOKENS)
        with (
            self.evaluating(),
            torch.inference_mode(),
            autocast(self.device, precision),
            progress_bar(progress) as bar,
        ):
            task = bar.add_task("rerank pairs", total=len(pairs))
            for start in range(0, len(pairs), WINDOW):
                window = order[start : start + WINDOW]
                queries, documents = zip(*(pairs[n] for n in window), strict=True)
                rows = self._joined(queries, documents)
                for batch in by_length([len(row.ids) for row in rows], tokens):
                    values = self(self._padded([rows[n] for n in batch]).to(self.device)).tolist()
                    for n, value in zip(batch, values, strict=True):
                        if not isfinite(value):
                            query, document = (f"{text!r:.80}" for text in pairs[window[n]])
                            raise ValueError(f"the score of {document} for {query} is not finite: {value}")
                        scores[window[n]] = value
                    bar.advance(task, len(batch))
        return scores

    def _joined(self, queries: Sequence[str], documents: Sequence[str]) -> list[Encoding]:
        """Cut each text, then join the pairs as the tokenizer does, with segment ids."""
        pairs = zip(self._cut(queries, "query"), self._cut(documents, "document"), strict=True)
        joiner = self.tokenizer.backend_tokenizer
        with TOKENIZING:
            joiner.no_truncation()  # otherwise it truncates the pair to the length of one text
            joiner.no_padding()
            if self._separator:
                rows = (
                    Encoding.merge([query, *self._separator, document], True) for query, document in pairs
                )
                return [joiner.post_process(row) for row in rows]
            return [joiner.post_process(query, document) for query, document in pairs]

    def _cut(self, texts: Sequence[str], side: Side) -> list[Encoding]:
        """Tokenise and cut texts before joining, so that neither side uses up the other's token limit."""
        room = self._room[side]
        texts = beginnings(self.tokenizer, texts, room)
        cut = {"truncation": True, "max_length": room}
        return call_tokenizer(self.tokenizer, texts, add_special_tokens=False, **cut).encodings

    def _padded(self, rows: Sequence[Encoding]) -> Batch:
        def joined(name: str, fill: int = 0) -> Tensor:
            values = [torch.tensor(getattr(row, name)) for row in rows]
            return pad_sequence(values, batch_first=True, padding_value=fill)

        ids = joined("ids", self.tokenizer.pad_token_id)
        attention = joined("attention_mask")
        return Batch(ids, attention, attention.bool(), joined("type_ids") if self.tells_apart else None)

    def write(self, folder: Path, *, merged: bool = False) -> None:
        self.encoder.save(folder, merged=merged)
        save_file(self._head(), folder / HEAD)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> CrossAttention:
        folder = Path(folder)
        settle(folder)
        require(folder / HEAD, folder)
        model = cls(TextEncoder.load(folder))
        load_heads(model, model._head(), folder / HEAD)
        return model

    def _head(self) -> dict[str, Tensor]:
        return {"head.weight": self.head.weight.detach().contiguous()}


class SequenceClassifier(CrossAttention):
    """A published reranker, given by folder or hub name, such as cross-encoder/ms-marco-MiniLM-L6-v2.

    Scores are logits. Raises ValueError if it has more than one output or lacks the head's weights.
    """

    def __init__(self, name: str | Path) -> None:
        from transformers import AutoModelForSequenceClassification

        Trainable.__init__(self)
        self.model: Any = load_model(AutoModelForSequenceClassification, name).eval()
        config = self.model.config
        if config.num_labels != 1:
            raise ValueError(f"{name} has {config.num_labels} outputs; a reranker has one, the pair's score")
        self.tokenizer = load_tokenizer(name, config.vocab_size)
        if config.pad_token_id is None:
            config.pad_token_id = self.tokenizer.pad_token_id  # without it, transformers refuses batches
        self.tells_apart = "token_type_ids" in self.tokenizer.model_input_names
        self.length = min(LONGEST, most_positions(self.model) or LONGEST, self.tokenizer.model_max_length)
        for layer in self.model.modules():
            if isinstance(layer, nn.Linear) and layer.out_features == 1:
                layer.register_forward_hook(_scores)

    def description(self) -> dict[str, Any]:
        return {"name": NAME, "classifier": self.model.config.model_type, "length": self.length}

    @property
    def document_length(self) -> int:
        return max(1, self.length - QUERY)

    def forward(self, pairs: Batch) -> Float[Tensor, " x"]:
        return at_least_float32(self.model(**pairs.inputs()).logits[:, 0])

    def _joined(self, queries: Sequence[str], documents: Sequence[str]) -> list[Encoding]:
        """Join each pair and cut it as the tokenizer does, removing tokens at the end of the longer text."""
        # The document keeps more tokens than any query, so that it stays the longer text.
        more = TOKENS_OF_ONE * max(map(len, queries), default=0)
        documents = beginnings(self.tokenizer, documents, max(self.length, more))
        rows = call_tokenizer(
            self.tokenizer, list(queries), documents, truncation=True, max_length=self.length
        )
        return rows.encodings

    def write(self, folder: Path, *, merged: bool = False) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> SequenceClassifier:
        return cls(folder)


def _scores(layer: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    return scores_of(layer, *inputs)


@dataclass(frozen=True, eq=False)
class TextPairs:
    """Rerank with a model that reads query and document together and thus has no alignment to explain."""

    model: CrossAttention
    corpus: Corpus
    precision: str = AUTO

    def size_in_bytes(self) -> int:
        return 0

    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        """Raise ValueError, because a search would have to read every document with every query."""
        raise ValueError(f"{self.model.name} cannot search, it only scores pairs: rerank a run with it")

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        check_queries(run, queries)
        names = [(query, document) for query, documents in run.items() for document in documents]
        texts = {id: self.corpus[self.corpus.position(id)] for _, id in names}
        pairs = [(queries[query], texts[id]) for query, id in names]
        values = self.model.score_texts(pairs, precision=self.precision, progress=progress)
        reranked: Run = {query: {} for query in run}
        for (query, document), value in zip(names, values, strict=True):
            reranked[query][document] = value
        return {query: best_first(scores) for query, scores in reranked.items()}

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        return []


def cross_attention(
    backbone: str | Path,
    *,
    query_length: int = 32,
    document_length: int = 180,
    pooling: Literal["cls", "mean", "last"] | None = None,
    lora_rank: int = 0,
    lora_targets: str = "all-linear",
    dora: bool = False,
) -> CrossAttention:
    """Build a reranker over `backbone`. Texts are truncated to these lengths, as in other paradigms.

    pooling: by default `published.default_pooling`, or "cls".
    """
    settings = EncoderSettings(
        query_length=query_length,
        document_length=document_length,
        query_vectors="pooled",
        document_vectors="pooled",
        pooling=pooling or default_pooling(backbone) or "cls",
        dim=None,
        normalize=False,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        dora=dora,
    )
    return CrossAttention(TextEncoder(backbone, settings))
