"""`Engine`, the interface of all engines, and `EngineRetriever`, which searches an engine with a paradigm."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from paradigms.align import UNBOUNDED
from paradigms.core import Tokens
from paradigms.data import Corpus, Run, best_first, check_queries
from paradigms.data.results import any_queries
from paradigms.encoder.precision import AUTO
from paradigms.explanation import Explanation
from paradigms.find.kinds import exact
from paradigms.identity import Identity, differing, identity
from paradigms.io.checks import check_texts, naming
from paradigms.io.progress import progress_bar
from paradigms.model import Paradigm
from paradigms.recipe import Recipe
from paradigms.retrieve.indexed import text_of
from paradigms.retrieve.retriever import Retriever
from paradigms.store import Store
from paradigms.store.shards import text_digest
from paradigms.store.view import other_texts

BLOCK = 1 << 16  # padded tokens written at once
DOCUMENTS = 1 << 12  # encoded before they are written

Vectors = Float[np.ndarray, "_ h"]


class Hit(NamedTuple):
    """A document that an engine found. text: `store.shards.text_digest`, or 0 if its text is not known."""

    id: str
    score: float
    text: int


class Engine(ABC):
    """A store that ranks documents by rel; each document has one or more vectors [dim].

    single: whether each document and query has exactly one vector. place: how error messages name
    the engine, for example by its folder. made: what made the stored vectors (`paradigms.identity`), or None
    if no model has claimed the engine. where: name -> value that the metadata (`describe`) of every document
    that a search returns must have. Subclasses define the methods that begin with _, whose arguments have
    already been checked. They read `made` when they open, and define `_record` to store it.
    """

    dim: int
    single: bool
    place: str = "the engine"
    made: Identity | None = None
    where: Mapping[str, str] = MappingProxyType({})

    def claim(self, made: Identity) -> None:
        """Record what makes the vectors, before a model's vectors are added (`hand_over`).

        Raises ValueError if the stored vectors were made otherwise, or if nothing recorded what made them.
        """
        if self.made is None:
            if self.stored():
                raise ValueError(
                    f"{self.place} has documents, and does not record which model made them: use another "
                    "place"
                )
            with naming(self.place):
                self._record(json.dumps(made))
            self.made = made
        self.check_made(made)

    def check_made(self, made: Identity) -> None:
        """Raise ValueError if the stored vectors are recorded as made otherwise."""
        if self.made is not None and (other := differing(self.made, made)):
            raise ValueError(f"{self.place} has vectors of another model ({other}): use another place")

    def check(self, model: Paradigm) -> None:
        """Raise ValueError unless the engine can score the model's vectors."""
        if model.encoder.dim != self.dim:
            raise ValueError(f"{model.recipe.name} has {model.encoder.dim} dimensions, the engine {self.dim}")

    @abstractmethod
    def stored(self, ids: Collection[str] | None = None) -> dict[str, int]:
        """Map stored documents to the digests of their texts. ids: None means all documents."""

    @abstractmethod
    def delete(self, ids: Collection[str]) -> None:
        """Delete documents and their metadata; ids that are not stored are ignored."""

    def describe(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        """Set the metadata of stored documents, id -> {name: value}, which `where` reads.

        A document that is replaced keeps its metadata. Raises ValueError if a document is not stored.
        """
        if missing := metadata.keys() - self.stored(metadata.keys()).keys():
            raise ValueError(f"{self.place}: there is no document {min(missing)!r}")
        with naming(self.place):
            self._describe(metadata)

    def write(self, ids: Sequence[str], documents: Tokens, texts: Sequence[int] | None = None) -> int:
        """Store documents [1, n, i, h], replacing those with the same ids; return how many have tokens.

        Documents without tokens are left out. texts: digest of each document's text, or 0 if it is not known;
        None means that all are unknown. Raises ValueError if a document is listed twice, if vectors have the
        wrong shape or are not finite, or, naming the engine (`place`), if the engine fails.
        """
        if twice := [id for id, count in Counter(ids).items() if count > 1]:
            raise ValueError(f"document {twice[0]!r} is listed twice")
        rows = documents.mask[0].any(-1).nonzero()[:, 0].tolist()
        documents = documents.map(lambda t: t[:, rows].detach())
        for row, vectors in zip(rows, arrays(documents), strict=True):
            self._check(f"document {ids[row]!r}", vectors)
        if rows:
            digests = [0 if texts is None else texts[row] for row in rows]
            with naming(self.place):
                self._write([ids[row] for row in rows], documents, digests)
        return len(rows)

    def rank(self, query: Tokens, recipe: Recipe, k: int, among: Collection[str] | None = None) -> list[Hit]:
        """Return the k best documents and their rel for one query [1, 1, j, h]; none if it has no tokens.

        among: ids of documents to score exactly, ignoring all others. Raises ValueError for wrong vectors.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        real = query.mask[0, 0]
        query = query.map(lambda t: t[:, :, real].detach())
        [vectors] = arrays(query)
        self._check("the query", vectors)
        if not len(vectors) or (among is not None and not among):
            return []
        with naming(self.place):
            return self._rank(query, recipe, k, among)

    def close(self) -> None:  # noqa: B027  some engines have nothing to release
        """Release locks and connections."""

    def _record(self, made: str) -> None:  # noqa: B027  an engine in memory has nothing to store
        """Store `made`, as JSON, where other processes that open the engine read it."""

    @abstractmethod
    def _describe(self, metadata: Mapping[str, Mapping[str, str]]) -> None: ...

    @abstractmethod
    def _write(self, ids: Sequence[str], documents: Tokens, texts: Sequence[int]) -> None: ...

    @abstractmethod
    def _rank(self, query: Tokens, recipe: Recipe, k: int, among: Collection[str] | None) -> list[Hit]: ...

    def _check(self, what: str, vectors: Vectors) -> None:
        if vectors.shape[1] != self.dim:
            raise ValueError(f"{what} needs axes [vectors, {self.dim}], not {list(vectors.shape)}")
        if self.single and len(vectors) > 1:
            raise ValueError(f"{what} has {len(vectors)} vectors, but this engine takes one")
        if not np.isfinite(vectors).all():
            raise ValueError(f"{what} has vectors that are not finite")


class MaxSimEngine(Engine):
    """An engine that ranks documents by Σⱼ maxᵢ dᵢᵀqⱼ times a factor that depends on the query alone.

    `_top` returns ids, scores and the digests of texts that `_add` received.
    """

    def check(self, model: Paradigm) -> None:
        super().check(model)
        recipe, settings = model.recipe, model.encoder.settings
        maxsim = recipe.align.is_maxsim(1 if settings.single else UNBOUNDED)
        if not maxsim or recipe.normalise not in ("one", "query_tokens") or settings.salience != "none":
            raise ValueError(
                f"{recipe.name} scores by the alignment {recipe.align} with Z = {recipe.normalise} and "
                f"salience {settings.salience}; engines support MaxSim only: "
                "model.with_alignment(QueryToDocument(), 'query_tokens') scores by MaxSim"
            )
        if self.single and not settings.single:
            raise ValueError(f"{recipe.name} has several vectors per document, but this engine takes one")

    def _write(self, ids: Sequence[str], documents: Tokens, texts: Sequence[int]) -> None:
        self._add(ids, arrays(documents), texts)

    def _rank(self, query: Tokens, recipe: Recipe, k: int, among: Collection[str] | None) -> list[Hit]:
        Z = float(recipe.normalise_function(torch.ones(1, 1, 1, 1), query, query))  # of the query alone
        return [Hit(id, score / Z, text) for id, score, text in self._top(arrays(query)[0], k, among)]

    @abstractmethod
    def _add(self, ids: Sequence[str], documents: Sequence[Vectors], texts: Sequence[int]) -> None: ...

    @abstractmethod
    def _top(
        self, query: Vectors, k: int, among: Collection[str] | None
    ) -> Sequence[tuple[str, float, int]]: ...


def arrays(texts: Tokens) -> list[Vectors]:
    """Return the vectors of each text [1, n, i, h] without padding."""
    pairs = zip(texts.vectors[0], texts.mask[0], strict=True)
    return [vectors[mask].float().numpy() for vectors, mask in pairs]


def hand_over(store: Store, model: Paradigm, engine: Engine, *, rows: Sequence[int] | None = None) -> int:
    """Write the stored vectors of documents to an engine; return the number of documents with vectors.

    rows: rows to write; None means all rows. Deleted documents are skipped. Raises as `index_corpus`.
    """
    store.check(model)
    engine.check(model)
    engine.claim(identity(model.encoder, anew=True))
    chosen = np.arange(len(store.ids)) if rows is None else np.asarray(rows, np.int64)
    count = 0
    for block in store.blocks(BLOCK, chosen[store.living[chosen]]):
        count += engine.write(store.names(block), store.tokens(block), store.texts[block].tolist())
    return count


def index_corpus(
    engine: Engine, model: Paradigm, corpus: Corpus, *, precision: str = AUTO, progress: bool = False
) -> tuple[int, int]:
    """Make an engine's documents those of a corpus; return how many were encoded and how many deleted.

    A document whose text the engine has is not encoded again, so the same call resumes after an interruption.
    Vectors are rounded to float16, as in a store, whatever numbers the engine stores. Raises ValueError if
    the engine cannot score the model's vectors or has vectors of another model.
    """
    engine.check(model)
    engine.claim(identity(model.encoder, anew=True))
    with naming(engine.place):
        stored = engine.stored()
        gone = stored.keys() - set(corpus.ids)
        engine.delete(gone)
    texts = zip(corpus.ids, corpus, strict=True)
    fresh = [n for n, (id, text) in enumerate(texts) if stored.get(id) != text_digest(text)]
    with progress_bar(progress) as bar:
        task = bar.add_task(f"index {model.name}", total=len(fresh))
        for start in range(0, len(fresh), DOCUMENTS):
            part = corpus.only([corpus.ids[n] for n in fresh[start : start + DOCUMENTS]])
            store = Store.build(exact(), model, part.ids, part, precision=precision)
            hand_over(store, model, engine)
            emptied = set(part.ids).difference(store.names(store.with_tokens()))
            engine.delete(emptied & stored.keys())
            bar.advance(task, len(part))
    return len(fresh), len(gone)


@dataclass(frozen=True, eq=False)
class EngineRetriever:
    """Search and rerank the documents in an engine by rel.

    model: the model that encoded the documents; a search raises ValueError if another model did. corpus: the
    documents' texts, for `explain`; a search raises ValueError if it finds a document that the corpus lacks
    or that had another text when it was encoded. documents: ids to search; None means all. first: retriever
    of the candidates of a search, such as one of term weights; `candidates` is how many documents it finds
    for the engine to score, or k if k is larger. Where the engine's filters refuse some and leave fewer than
    k, the engine searches all documents. A search of `documents` scores all of these instead.
    Raises ValueError if the engine cannot score the model's vectors (`Engine.check`), or if candidates < 1.
    """

    engine: Engine
    model: Paradigm
    corpus: Corpus | None = None
    documents: Collection[str] | None = None
    first: Retriever | None = None
    candidates: int = 1000

    def __post_init__(self) -> None:
        self.engine.check(self.model)
        if self.candidates < 1:
            raise ValueError(f"candidates must be at least 1, got {self.candidates}")

    def size_in_bytes(self) -> int:
        """Return 0, because the engine stores its documents elsewhere."""
        return 0

    @any_queries
    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        check_texts(queries, "query")
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        run: Run = {}
        counts = dict.fromkeys(queries, k)  # of the queries whose documents the engine finds
        if self.first is not None and self.documents is None:
            candidates = self.first.search(queries, max(k, self.candidates), progress=progress)
            pools = {query: candidates.get(query, {}) for query in queries}
            for query, scores in self.rerank(queries, pools, progress=progress).items():
                run[query] = best_first({id: score for id, score in scores.items() if score > -inf}, k)
                if len(run[query]) >= min(k, len(scores)):
                    del counts[query]
        among = {} if self.documents is None else dict.fromkeys(queries, self.documents)
        if counts:
            run |= self._ranked(f"search {self.model.name}", queries, counts, among, progress)
        return run

    def only(self, ids: Iterable[str]) -> "EngineRetriever":
        """Return a retriever restricted further, to these documents. Ids that are not stored are ignored."""
        chosen = frozenset(ids)
        return replace(
            self, documents=chosen if self.documents is None else chosen.intersection(self.documents)
        )

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        """Score the run's documents by rel. Documents that a search would not return score −∞."""
        check_queries(run, queries)
        counts = {query: len(documents) for query, documents in run.items() if documents}
        among: Mapping[str, Collection[str]] = run
        if self.documents is not None:
            searched = frozenset(self.documents)
            among = {query: searched.intersection(run[query]) for query in run}
        scored = self._ranked(f"rerank {self.model.name}", queries, counts, among, progress)
        return {
            query: best_first(dict.fromkeys(documents, -inf) | scored.get(query, {}))
            for query, documents in run.items()
        }

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        text = text_of(self.corpus, document)
        self.rerank({"": query}, {"": {document: 0.0}})  # checks the text
        pool = None
        if others and "pool" in self.model.reads:
            pool = self.model.encode_documents([text_of(self.corpus, other) for other in others])
        return [self.model.explain(query, text, pool)]

    def _ranked(
        self,
        description: str,
        queries: Mapping[str, str],
        counts: Mapping[str, int],
        among: Mapping[str, Collection[str]],
        progress: bool,
    ) -> Run:
        """Rank counts[query] documents per query, from among[query] if given, else from all documents."""
        self.engine.check_made(identity(self.model.encoder))
        run: Run = {}
        with progress_bar(progress) as bar:
            for name, count in bar.track(counts.items(), description=description):
                query = self.model.encode_queries([queries[name]]).to("cpu")
                hits = self.engine.rank(query, self.model.recipe, count, among.get(name))
                self._check_texts(hits)
                run[name] = best_first({hit.id: hit.score for hit in hits})
        return run

    def _check_texts(self, hits: Sequence[Hit]) -> None:
        """Raise ValueError if documents are not in the corpus, or were encoded from other texts."""
        corpus = self.corpus
        if corpus is None:
            return
        if unknown := [hit.id for hit in hits if not corpus.has(hit.id)]:
            raise ValueError(
                f"{self.engine.place} has documents that are not in the corpus, such as {unknown[0]!r}: open "
                "the index again if it was updated meanwhile, or restrict the search with only(corpus.ids)"
            )
        digested = [hit for hit in hits if hit.text]
        if other := [hit.id for hit in digested if hit.text != text_digest(text_of(corpus, hit.id))]:
            raise ValueError(other_texts(self.engine.place, other))


def check_numbers(numbers: str, types: Collection[str]) -> None:
    """Raise ValueError unless an engine stores vectors with this type of numbers."""
    if numbers not in types:
        raise ValueError(f"numbers={numbers!r}: choose one of {', '.join(types)}")
