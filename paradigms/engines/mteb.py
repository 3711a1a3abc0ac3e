"""Our models in MTEB: an object that `mteb.evaluate` takes for retrieval and reranking tasks.

    import mteb
    from paradigms.engines.mteb import MTEBModel

    mteb.evaluate(MTEBModel(paradigms.load("results/mine")), mteb.get_tasks(tasks=["SciFact"]))

It implements mteb's `SearchProtocol`: `index` and `search`. mteb itself computes the measures, and leaves out
identical ids where its task says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import Corpus, Run
from paradigms.data.collection import joined
from paradigms.evaluate.reranking import rerank
from paradigms.index import INDEXES
from paradigms.model import Paradigm

if TYPE_CHECKING:
    from mteb.models import ModelMeta


class MTEBModel:
    """A paradigm that searches and reranks in MTEB, or a cross-attention reranker for its reranking tasks.

    name: "organisation/model" under which results are kept. kind: of `INDEXES`. precision: of encoding, "no",
    "bf16" or "fp16".
    """

    def __init__(
        self, model: Paradigm | CrossAttention, name: str = "", *, kind: str = "exact", precision: str = "no"
    ) -> None:
        if not isinstance(model, Paradigm | CrossAttention):
            raise ValueError(f"{model.name} ranks the one corpus it was trained on, which is none of mteb's")
        self.model, self.kind, self.precision = model, kind, precision
        self.name = name if "/" in name else f"retrieval-paradigms/{name or model.name}"
        self._corpus = Corpus([], [])

    def index(self, corpus: Iterable[Mapping[str, Any]], **_: Any) -> None:
        """Take the documents, rows with id, text and perhaps a title."""
        rows = [(str(row["id"]), joined(row.get("title") or "", _text(row))) for row in corpus]
        self._corpus = Corpus([id for id, _ in rows], [text for _, text in rows])

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        top_k: int,
        encode_kwargs: Mapping[str, Any],
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> Run:
        """The top_k best documents of every query, of its `top_ranked` ones in a reranking task."""
        texts = {str(row["id"]): _text(row) for row in queries}
        if top_ranked is not None:
            pool: Run = {query: dict.fromkeys(top_ranked[query], 0.0) for query in texts}
            found = rerank(self.model, texts, self._corpus, pool, precision=self.precision)
            return {query: dict(list(scores.items())[:top_k]) for query, scores in found.items()}
        if isinstance(self.model, CrossAttention):
            raise ValueError(f"{self.model.name} scores given pairs: evaluate it on reranking tasks")
        with tempfile.TemporaryDirectory() as folder:
            index = INDEXES[self.kind].build(
                self.model,
                self._corpus.ids,
                self._corpus,
                f"{folder}/index",
                batch_size=encode_kwargs.get("batch_size", 64),
                precision=self.precision,
            )
            return index.search(self.model, texts, top_k)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """What mteb writes beside the results."""
        from mteb.models import ModelMeta

        kind = "cross-encoder" if isinstance(self.model, CrossAttention) else "late-interaction"
        return ModelMeta.create_empty(
            {
                "name": self.name,
                "revision": "local",
                "n_parameters": sum(p.numel() for p in self.model.parameters()),
                "framework": ["PyTorch"],
                "model_type": [kind],
            }
        )


def _text(row: Mapping[str, Any]) -> str:
    """The text of a query, with its instruction, or of a document."""
    if not isinstance(row["text"], str):
        raise ValueError(f"the row {row.get('id')!r} holds no text: conversations are not read")
    return joined(row["text"], row.get("instruction") or "")
