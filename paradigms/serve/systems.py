"""The service's systems: named retrievers that can also rank with another alignment A, Z or salience."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import lru_cache
from itertools import compress
from typing import Any, Generic, TypeVar

import torch

from paradigms.align import ALIGNMENTS, Alignment, Cost
from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import CrossAttention
from paradigms.core import Tokens, rel
from paradigms.data import Corpus, Run, best_first, check_queries
from paradigms.data.pieces import Pieces
from paradigms.encoder.settings import Side
from paradigms.explanation import Explanation
from paradigms.model import Paradigm
from paradigms.recipe import Recipe
from paradigms.retrieve import Indexed, Passages, Reranking, Retriever
from paradigms.retrieve.wrappers import Wrapper
from paradigms.serve import cost

CANDIDATES = 100  # documents per query that another A reranks
REMEMBERED = 1 << 23  # bytes of each cache; the caches make a change of A fast
T = TypeVar("T")


@dataclass(frozen=True)
class View:
    """Alignment A, normaliser Z and salience for a system's vectors; defaults keep the system's settings."""

    align: Alignment | None = None
    normalise: str | None = None
    salience: bool = True

    @property
    def plain(self) -> bool:
        return self == View()


class Remembered(Generic[T]):
    """A function that keeps its results, as long as they and their arguments take at most `REMEMBERED` bytes.

    The least recently used results are forgotten first.
    """

    def __init__(self, compute: Callable[..., T]) -> None:
        self._compute = compute
        self.bytes = 0
        self._kept: OrderedDict[tuple[Any, ...], tuple[T, int]] = OrderedDict()

    def __call__(self, *key: Any) -> T:
        if key not in self._kept:
            value = self._compute(*key)
            size = size_of(key) + size_of(value)
            self._kept[key] = value, size
            self.bytes += size
        self._kept.move_to_end(key)
        value = self._kept[key][0]
        while self.bytes > REMEMBERED:
            self.bytes -= self._kept.popitem(last=False)[1][1]
        return value


def size_of(value: Any) -> int:
    """Return the bytes of a value and its parts."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    parts: Any = vars(value).values() if is_dataclass(value) else ()
    if isinstance(value, dict):
        parts = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple):
        parts = value
    return sys.getsizeof(value) + sum(map(size_of, parts))


class ServedSystem:
    """A retriever, with the name and the corpus under which the service offers it.

    model: the retriever's paradigm, whose alignment A a request can change; None if the retriever has
    none."""

    def __init__(self, name: str, retriever: Retriever, corpus: Corpus) -> None:
        self.name = name
        self.retriever = retriever
        self.corpus = corpus
        self.pieces = Pieces(corpus, 0)
        self.best = 1
        inner = retriever
        while isinstance(inner, Wrapper):
            if isinstance(inner, Passages):
                self.pieces = inner.pieces
                self.best = inner.best
            inner = inner.retriever
        self.inner: Any = inner
        model = inner.model if isinstance(inner, Indexed | Reranking) else None
        self.model = model if isinstance(model, Paradigm) else None
        self.encoded = Remembered(self._encoded)
        self.candidates = Remembered(lambda query: self.search([query], CANDIDATES)[0])
        self.ranked = Remembered(self._ranked)
        self.explained = Remembered(self._explained_without_model)
        self._indexed = lru_cache(1)(self._encoded_candidates)

    def described(self) -> dict[str, Any]:
        """Return name, kind and size and, if there is a `model`, its alignment, Z and allowed alignments."""
        described: dict[str, Any] = {"name": self.name, "kind": type(self.inner).__name__, "reads": None}
        described |= {"bytes": self.retriever.size_in_bytes(), "editable": self.editable}
        if self.model is None:
            return described | {"align": None, "normalise": None, "salience": False, "alignments": []}
        settings = self.model.encoder.settings
        recipe = self.model.recipe
        reads = self.model.reads
        lacking = {"statistics"} if "ids" in reads else {"statistics", "ids"}  # whose knob is no number
        allowed = [name for name, kind in ALIGNMENTS.items() if not lacking & kind.reads]
        described |= {"align": str(recipe.align), "normalise": recipe.normalise}
        return described | {"salience": settings.weighs, "alignments": allowed, "reads": sorted(reads)}

    @property
    def editable(self) -> bool:
        """Whether the system can explain texts that are not in its corpus."""
        return self.model is not None or isinstance(self.inner, BM25)

    def searching(self, query: str, k: int, view: View) -> Cost:
        """Return the cost of ranking documents under a view."""
        if view.plain or self.model is None:
            return cost.searching(self.retriever, query, k)
        return cost.searching(self.retriever, query, CANDIDATES) + self.reranking(query, CANDIDATES, view)

    def reranking(self, query: str, documents: int, view: View) -> Cost:
        """Return the cost of scoring documents under a view."""
        recipe = None if view.plain or self.model is None else self._recipe(view)
        return cost.reranking(self.retriever, query, documents, recipe, not view.salience)

    def explaining(self, query: str, text: str, view: View) -> tuple[Cost, int]:
        """Return the cost of explaining the score of a text, and the most links that there are."""
        total = self.searching(query, CANDIDATES, view) + self.reranking(query, CANDIDATES + 1, view)
        if self.model is None:
            return total, 0
        i = cost.vectors_of(self.model, "document", text)
        j = cost.vectors_of(self.model, "query", query)
        aligned = self._recipe(view).align.kept(torch.tensor(i))
        links = j * (i if aligned is None else int(aligned))
        return total + cost.encoding(self.model, "document", text), links

    def scoring(self, query: str, texts: Sequence[str]) -> list[Cost]:
        """Return the cost of each text's score by `scores`."""
        return [cost.scoring(self.inner, self.model, query, text) for text in texts]

    def scores(self, texts: Sequence[str], query: str) -> list[float]:
        """Score texts that need not be in the corpus. Raises ValueError if the system cannot."""
        if self.model is not None:
            ranked = {result.id: result.score for result in self.model.rank(query, texts)}
            return [ranked[str(n)] for n in range(len(texts))]
        if isinstance(self.inner, BM25):
            return [self.inner.explain_text(query, text).rel for text in texts]
        if isinstance(model := getattr(self.inner, "model", None), CrossAttention):
            return model.score_texts([(query, text) for text in texts])
        raise ValueError(f"{self.name} scores documents of its corpus only")

    def search(self, queries: Sequence[str], k: int) -> list[dict[str, float]]:
        """Return the k best documents for each query."""
        run = self.retriever.search({str(n): query for n, query in enumerate(queries)}, k)
        return [run[str(n)] for n in range(len(queries))]

    def encode(self, texts: Sequence[str], side: Side) -> list[dict[str, Any]]:
        """Return each text's tokens, vectors and salience. The system must have a `model`."""
        assert self.model is not None
        encoded = self.model.tokens(texts, side)
        labels = self.model.encoder.labels
        masks = encoded.mask.flatten(0, 1)
        vectors = encoded.vectors.flatten(0, 1)
        ids = None if encoded.ids is None else encoded.ids.flatten(0, 1)
        salience = None if encoded.salience is None else encoded.salience.flatten(0, 1)
        rows = []
        for n, text in enumerate(texts):
            named = labels(text, side, None if ids is None else ids[n])
            tokens = list(compress(named, masks[n].tolist()))
            weights = None if salience is None else salience[n, masks[n]].tolist()
            rows.append({"tokens": tokens, "vectors": vectors[n, masks[n]].tolist(), "salience": weights})
        return rows

    def _ranked(self, query: str, view: View) -> dict[str, float]:
        """Rank a query's `CANDIDATES` best documents by their scores under a view."""
        candidates = self.candidates(query)
        if view.plain or self.model is None:
            return candidates
        return self._scored(query, list(candidates), view)

    def rescored(self, queries: Mapping[str, str], run: Run, view: View) -> Run:
        """Rerank a run under a view; see `Retriever.rerank`."""
        if view.plain or self.model is None:
            return self.retriever.rerank(queries, run)
        check_queries(run, queries)
        return {
            query: self._scored(queries[query], list(documents), view) for query, documents in run.items()
        }

    def explain(
        self, query: str, document: str, text: str | None, view: View
    ) -> tuple[list[Explanation], int | None]:
        """Explain a document's score, and return its rank among the query's candidates.

        text: an edited text to use instead of the document's text. The rank is None if the system has no
        `model` and the document is not a candidate. Raises ValueError if text is given and the system is not
        `editable`.
        """
        if text is not None and not self.editable:
            raise ValueError(f"{self.name} scores documents of its corpus only: undo the changes to the text")
        ranked = self.ranked(query, view)
        others = [id for id in self.candidates(query) if id != document]
        if self.model is None:
            cards = self.explained(query, document, text)
            named = [replace(card, system=f"{self.name}: {card.system}") for card in cards]
        else:
            named = [self._explained(query, document, text, others, view)]
        if len(named) == 1:
            named = [replace(named[0], system=self.name)]
        if text is None and document in ranked:
            return named, 1 + list(ranked).index(document)
        if text is None and self.model is None:
            return named, None
        if self.model is not None and self.model.recipe.search == "impute":  # a search has other scores
            ranked = self._scored(query, others, view)
        return named, 1 + sum(score > named[0].rel for id, score in ranked.items() if id != document)

    def _explained_without_model(self, query: str, document: str, text: str | None) -> list[Explanation]:
        """Explain a score without a `model`. text: an edited text to use instead of the document's text."""
        if text is not None:
            return [self.inner.explain_text(query, text)]
        others = [id for id in self.candidates(query) if id != document]
        return self.retriever.explain(query, document, others)

    def _encoded(self, text: str, side: Side) -> Tokens:
        assert self.model is not None
        return self.model.tokens([text], side)

    def _encoded_candidates(self, ids: tuple[str, ...]) -> Indexed:
        """Encode the candidates of a system that only reranks."""
        assert self.model is not None
        return Indexed.build(self.model, self.corpus.only(ids), precision=self.inner.precision)

    def _recipe(self, view: View) -> Recipe:
        assert self.model is not None
        return self.model.with_alignment(view.align or self.model.recipe.align, view.normalise).recipe

    def _scored(self, query: str, ids: list[str], view: View) -> dict[str, float]:
        """Score documents under a view from their stored tokens; return them best first."""
        recipe = self._recipe(view)
        queries = _seen(self.encoded(query, "query"), view)
        names = [piece for id in ids for piece in self.pieces.of(id)]
        indexed = self.inner if isinstance(self.inner, Indexed) else self._indexed(tuple(sorted(names)))
        if view.salience:
            scores = indexed.index.rerank_tokens([recipe], queries, [names])[0][0]
        else:
            documents = _seen(indexed.index.store.tokens_of(names, queries.mask.device), view)
            with torch.inference_mode():
                values = rel(documents, queries, recipe.align, recipe.normalise_function)[0]
            scores = dict(zip(names, values.tolist(), strict=True))
        return best_first(self.pieces.documents(scores, self.best))

    def _explained(
        self, query: str, document: str, text: str | None, others: Sequence[str], view: View
    ) -> Explanation:
        """Explain the score of the document or, if it is divided into passages, of its best passage."""
        assert self.model is not None
        recipe = self._recipe(view)
        queries = _seen(self.encoded(query, "query"), view)
        pool = None
        model = self.model.with_alignment(recipe.align, recipe.normalise)
        if "pool" in model.reads and isinstance(self.inner, Indexed):
            names = [piece for id in others if id != document for piece in self.pieces.of(id)]
            pool = _seen(self.inner.index.store.tokens_of(names, queries.mask.device), view)
        if text is None:
            texts = [self.pieces.corpus[self.pieces.corpus.position(id)] for id in self.pieces.of(document)]
        else:
            _, title, _ = self.corpus.document(document)
            texts = list(Pieces(Corpus([document], [text], [title]), self.pieces.words).corpus)
        explanations = []
        for passage in texts:
            documents = _seen(self.encoded(passage, "document"), view)
            explanations.append(model.explain_tokens(query, passage, queries, documents, pool))
        return max(explanations, key=lambda explanation: explanation.rel)


def _seen(tokens: Tokens, view: View) -> Tokens:
    return tokens if view.salience else replace(tokens, salience=None)
