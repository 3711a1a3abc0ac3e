"""s(q, d) = wᵀ BERT([CLS] q [SEP] d [SEP])₀: full attention between query and document, for reranking.

Nogueira & Cho 2019 (arXiv:1901.04085); Luan et al. 2021 (TACL), §4.1: CROSS-ATTENTION. It is no rel: D does
not exist without q, A and Z are not defined, and nothing can be indexed. It is the upper baseline, at the
price of the encoder for every pair.
"""

from collections.abc import Callable, Mapping, Sequence
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
from paradigms.encoder.backbone import load_heads
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


class CrossAttention(Trainable):
    """s(q, d) of pairs of texts: a text encoder over both, joined, and a linear head on its pooled state."""

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        # No bias: neither a ranking nor a softmax over a query's candidates depends on it.
        self.head = nn.Linear(encoder.dim, 1, bias=False)
        if not encoder.tokenizer.is_fast:
            raise ValueError(f"{type(encoder.tokenizer).__name__} joins no pairs: use a fast tokenizer")
        longest = sum(self._room.values()) + encoder.tokenizer.num_special_tokens_to_add(pair=True)
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
        settings, special = self.encoder.settings, self.encoder.tokenizer.num_special_tokens_to_add()
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
        device = self.device

        def score(rows: Sequence[Encoding]) -> Tensor:
            return self(self._padded(rows).to(device))

        with self.evaluating():
            return rerank_pairs(
                queries, corpus, run, self._joined, score, device, precision=precision, progress=progress
            )

    def _joined(self, queries: Sequence[str], documents: Sequence[str]) -> list[Encoding]:
        """The pairs as the tokenizer joins two texts: ids, and of which text each is."""
        pairs = zip(self._cut(queries, "query"), self._cut(documents, "document"), strict=True)
        joiner = self.encoder.tokenizer.backend_tokenizer
        joiner.no_truncation()  # it would go on with that of one text
        joiner.no_padding()
        return [joiner.post_process(query, document) for query, document in pairs]

    def _cut(self, texts: Sequence[str], side: Side) -> list[Encoding]:
        """Each text's own tokens, cut before they are joined: neither text takes the other's place."""
        rows = self.encoder.tokenizer(
            list(texts), add_special_tokens=False, truncation=True, max_length=self._room[side]
        )
        return rows.encodings

    def _padded(self, rows: Sequence[Encoding]) -> Batch:
        ids, attention, types = padded(rows, self.encoder.tokenizer.pad_token_id)
        tells_apart = getattr(self.encoder.backbone.config, "type_vocab_size", 0) > 1
        return Batch(ids, attention, attention.bool(), types if tells_apart else None)

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


def rerank_pairs(
    queries: Mapping[str, str],
    corpus: Corpus,
    run: Run,
    joined: Callable[[Sequence[str], Sequence[str]], Sequence[Encoding]],
    score: Callable[[Sequence[Encoding]], Float[Tensor, " x"]],
    device: torch.device,
    *,
    precision: str = "no",
    progress: bool = False,
) -> Run:
    """s of the run's queries and documents, best first, by a function of tokenised pairs in batches.

    joined: pairs of texts -> tokenised. KeyError names what has no text.
    """
    check_queries(run, queries)
    names = [(query, document) for query, documents in run.items() for document in documents]
    length = {id: len(corpus[corpus.position(id)]) for _, id in names}
    names.sort(key=lambda pair: -len(queries[pair[0]]) - length[pair[1]])  # what needs most memory first
    found: Run = {query: {} for query in run}
    with torch.inference_mode(), autocast(device, precision), progress_bar(progress) as bar:
        task = bar.add_task("rerank pairs", total=len(names))
        for start in range(0, len(names), WINDOW):
            window = names[start : start + WINDOW]
            rows = joined(
                [queries[query] for query, _ in window],
                [corpus[corpus.position(document)] for _, document in window],
            )
            tokens = TOKENS.get(device.type, MANY_TOKENS)
            for batch in by_length([len(row.ids) for row in rows], tokens):
                scores = score([rows[n] for n in batch]).tolist()
                for n, value in zip(batch, scores, strict=True):
                    found[window[n][0]][window[n][1]] = value
                bar.advance(task, len(batch))
    return {query: best_first(scores) for query, scores in found.items()}


def padded(rows: Sequence[Encoding], fill: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, attention mask and text numbers of tokenised pairs [x, l]; `fill` is the id of padding."""

    def joined(name: str, value: int = 0) -> Tensor:
        values = [torch.tensor(getattr(row, name)) for row in rows]
        return pad_sequence(values, batch_first=True, padding_value=value)

    return joined("ids", fill), joined("attention_mask"), joined("type_ids")


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
    settings = EncoderSettings(
        query_vectors="pooled",
        document_vectors="pooled",
        pooling=pooling,
        dim=None,
        normalize=False,
        query_length=query_length,
        document_length=document_length,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        dora=dora,
    )
    return CrossAttention(TextEncoder(backbone, settings))
