"""Evaluate models with MTEB, using a wrapper that `mteb.evaluate` accepts for retrieval and reranking.

    import mteb
    from paradigms.engines.mteb import MTEBModel

    mteb.evaluate(MTEBModel(paradigms.load("results/mine")), mteb.get_tasks(tasks=["SciFact"]))

`MTEBModel` implements the methods `index` and `search` of mteb's `SearchProtocol`. mteb computes the measures
and ignores identical ids if the task requires it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paradigms.data import Corpus, Run, best_first
from paradigms.data.collection import joined
from paradigms.encoder.precision import AUTO
from paradigms.registry import RERANKERS
from paradigms.retrieve import Model, Reranking, retriever_of

if TYPE_CHECKING:
    from mteb.models import ModelMeta


class MTEBModel:
    """A model that searches and reranks in MTEB; a cross-attention model only reranks.

    name: "organisation/model", for mteb's results. kind: a key of `INDEXES`. precision: precision for
    encoding; see `encoder.precision`.
    """

    def __init__(self, model: Model, name: str = "", *, kind: str = "exact", precision: str = AUTO) -> None:
        self.model, self.kind, self.precision = model, kind, precision
        self.name = name if "/" in name else f"retrieval-paradigms/{name or model.name}"
        self._corpus = Corpus([], [])

    def index(self, corpus: Iterable[Mapping[str, Any]], **_: Any) -> None:
        """Set the corpus. corpus: rows with id, text and optionally title.

        Raises ValueError if a generative model was built for another corpus.
        """
        rows = [(str(row["id"]), joined(row.get("title") or "", _text(row))) for row in corpus]
        self._corpus = Corpus([id for id, _ in rows], [text for _, text in rows])
        self.model.check_corpus(self._corpus.ids)

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        top_k: int,
        encode_kwargs: Mapping[str, Any],
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> Run:
        """Rank the top_k best documents per query, from top_ranked[query] if given, else from the corpus."""
        texts = {str(row["id"]): _text(row) for row in queries}
        if top_ranked is not None:
            pool: Run = {query: dict.fromkeys(top_ranked[query], 0.0) for query in texts}
            run = Reranking(self.model, self._corpus, precision=self.precision).rerank(texts, pool)
            return {query: best_first(scores, top_k) for query, scores in run.items()}
        settings: dict[str, Any] = {"precision": self.precision, "kind": self.kind}
        settings["batch_size"] = encode_kwargs.get("batch_size", 64)
        return retriever_of(self.model, self._corpus, **settings).search(texts, top_k)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The model's metadata, which mteb writes beside the results."""
        from mteb.models import ModelMeta

        kind = "cross-encoder" if self.model.name in RERANKERS else "late-interaction"
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
    """Return a document's text, or a query's text with its instruction."""
    if not isinstance(row["text"], str):
        raise ValueError(f"the row {row.get('id')!r} holds no text: conversations are not supported")
    return joined(row["text"], row.get("instruction") or "")
