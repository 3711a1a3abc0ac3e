"""What the service answers, without HTTP: a method of `Service` for each request.

Rankings are lists of (document, score), best first, because a JSON object would reorder numeric ids.
"""

from __future__ import annotations

from asyncio import gather
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from paradigms.align import ALIGNMENTS, NORMALISERS, Cost
from paradigms.data import Corpus, Run, Split
from paradigms.evaluate.measures import on_split
from paradigms.io.checks import is_blank
from paradigms.retrieve import Fused, Retriever
from paradigms.serve import cost, requests
from paradigms.serve.systems import CANDIDATES, ServedSystem, View
from paradigms.serve.together import TEXTS, Batch, Together
from paradigms.view import card_data, page

MEASURE = "nDCG@10"
USAGE = {"prompt_tokens": 0, "total_tokens": 0}  # not counted; clients require the entry


class Service:
    """Answer all requests.

    retrievers: name → retriever of the corpus. judged: queries with judgements, which the page lists. most:
    what a step of a request, which is a query by a system, may cost (`serve.cost`), beside the system's
    longest search and, for an explanation, beside one of the same text by the system's own settings.
    """

    def __init__(
        self,
        retrievers: Mapping[str, Retriever],
        corpus: Corpus,
        judged: Split | None = None,
        most: Cost = cost.MOST,
    ) -> None:
        if not retrievers:
            raise ValueError("nothing to serve: give an index, a model or BM25")
        self.systems = {name: ServedSystem(name, one, corpus) for name, one in retrievers.items()}
        self.corpus = corpus
        self.judged = judged
        self.together = Together()
        longest = "x" * requests.MOST_CHARACTERS
        self.allowed = {
            name: most + system.searching(longest, requests.MOST_DOCUMENTS, View())
            for name, system in self.systems.items()
        }
        self._longest_id = max(map(len, corpus.ids), default=0)
        self._nDCG: dict[str, dict[str, float]] = {}  # system → judged query → value

    async def list_systems(self) -> dict[str, Any]:
        return {
            "systems": [
                system.described() | {"parts": self._parts(system)} for system in self.systems.values()
            ],
            "documents": len(self.corpus),
            "candidates": CANDIDATES,
            "alignments": {
                name: requests.schema_of(kind)["properties"]
                for name, kind in ALIGNMENTS.items()
                if "statistics" not in kind.reads
            },
            "normalisers": list(NORMALISERS),
            "queries": 0 if self.judged is None else len(self.judged.queries),
        }

    async def list_queries(self) -> dict[str, Any]:
        split = Split({}, {}) if self.judged is None else self.judged
        queries = []
        for id, text in split.queries.items():
            relevant = [document for document, grade in split.judgements.get(id, {}).items() if grade > 0]
            queries.append({"id": id, "text": text, "relevant": relevant})
        return {"queries": queries}

    async def document(self, id: str) -> dict[str, str]:
        return dict(zip(("id", "title", "text"), self.corpus.document(id), strict=True))

    async def search(self, request: requests.Search) -> dict[str, Any]:
        check_not_blank(request.queries)
        view = request.view
        texts = request.queries.values()
        chosen = self._chosen(request.systems)
        for system in chosen:
            self._check(system, (system.searching(text, request.k, view) for text in texts))
        self._check_rows(len(chosen) * len(texts) * min(request.k, len(self.corpus)))

        async def ask(system: ServedSystem) -> dict[str, Any]:
            if view.plain or system.model is None:
                runs, seconds = await self._searched(system, texts, request.k)
            else:
                runs, seconds = await self._each(partial(system.ranked, text, view) for text in texts)
            ranked = zip(request.queries, runs, strict=True)
            by_query = {id: list(scores.items())[: request.k] for id, scores in ranked}
            return {"milliseconds": 1000 * seconds, "run": by_query}

        answers = await self._of_each(request.systems, ask)
        answer: dict[str, Any] = {"systems": answers}
        if request.characters:
            runs = [run for of in answers.values() for run in of.get("run", {}).values()]
            documents: dict[str, tuple[str, str]] = {}
            size = 0
            for id in dict.fromkeys(id for run in runs for id, _ in run):
                _, title, text = self.corpus.document(id)
                documents[id] = title, text[: request.characters]
                size += sum(len(text.encode()) for text in documents[id])
                cost.check_answer(size)
            answer["documents"] = documents
        return answer

    async def rerank(self, request: requests.Rerank) -> dict[str, Any]:
        check_not_blank(request.queries)
        view = request.view
        chosen = self._chosen(request.systems)
        run = {query: dict.fromkeys(documents, 0.0) for query, documents in request.run.items()}
        sizes = [(request.queries.get(query, ""), len(documents)) for query, documents in run.items()]
        for system in chosen:
            self._check(system, (system.reranking(text, size, view) for text, size in sizes))
        self._check_rows(len(chosen) * sum(map(len, run.values())))

        async def ask(system: ServedSystem) -> dict[str, Any]:
            ranked, seconds = await self._each(
                partial(system.rescored, request.queries, {query: documents}, view)
                for query, documents in run.items()
            )
            by_query = {id: list(scores.items()) for one in ranked for id, scores in one.items()}
            return {"milliseconds": 1000 * seconds, "run": by_query}

        return {"systems": await self._of_each(request.systems, ask)}

    async def explain(self, request: requests.Explain) -> dict[str, Any]:
        check_not_blank({"query": request.query})
        text = self._text(request)
        view = request.view
        links = 0
        for system in self._chosen(request.systems):
            of_system, of_card = system.explaining(request.query, text, view)
            self._check(system, [of_system], system.explaining(request.query, text, View())[0])
            links += of_card
        cost.check_answer(links * 2 * cost.NUMBER)

        async def ask(system: ServedSystem) -> dict[str, Any]:
            (explained, rank), seconds = await self.together.run(
                lambda: system.explain(request.query, request.document, request.text, view)
            )
            where = f"query {request.query!r:.80}, document {request.document!r}"
            cards = [card_data(one, where) for one in explained]
            return {"milliseconds": 1000 * seconds, "rank": rank, "cards": cards}

        return {"systems": await self._of_each(request.systems, ask)}

    async def save(self, request: requests.Explain) -> dict[str, Any]:
        """Return the cards from `explain` as a self-contained page, which works without the service."""
        answers = (await self.explain(request))["systems"]
        cards = []
        for name, answer in answers.items():
            parts = self._parts(self.systems[name])
            if not parts or not answers.keys() >= {*parts}:  # a fusion does not repeat the cards of its parts
                cards += answer.get("cards", ())
        return {"html": page(cards, request.query, self._text(request))}

    async def encode(self, request: requests.Encode) -> dict[str, Any]:
        (system,) = self._chosen([request.system])
        model = system.model
        side = request.side
        if model is None:
            raise ValueError(f"{system.name} does not encode texts")
        vectors = sum(cost.vectors_of(model, side, text) for text in request.texts)
        cost.check_answer(vectors * model.encoder.dim * cost.NUMBER)
        costs = [cost.encoding(model, side, text) for text in request.texts]
        encoded, seconds = await self._batched(system, system.encode, request.texts, costs, side)
        return {"milliseconds": 1000 * seconds, "texts": encoded}

    async def rerank_texts(self, request: requests.RerankTexts) -> dict[str, Any]:
        check_not_blank({"query": request.query})
        system = self._only(request.model)
        costs = system.scoring(request.query, request.documents)
        if system.model is not None and "pool" in system.model.reads:  # a score depends on the other texts
            self._check(system, [sum(costs, Cost())])
            scores, _ = await self.together.run(lambda: system.scores(request.documents, request.query))
        else:
            self._check(system, costs)
            scores, _ = await self._batched(system, system.scores, request.documents, costs, request.query)
        places = sorted(range(len(scores)), key=lambda n: -scores[n])[: request.top_n]
        results: list[dict[str, Any]] = [{"index": n, "relevance_score": scores[n]} for n in places]
        if request.return_documents:
            for result in results:
                result["document"] = {"text": request.documents[result["index"]]}
        return {"id": "", "model": system.name, "results": results, "usage": USAGE}

    async def embed(self, request: requests.Embeddings) -> dict[str, Any]:
        system = self._only(request.model)
        model = system.model
        if model is None or not model.encoder.settings.single:
            raise ValueError(f"{system.name} has no single vector for a text: /encode returns its vectors")
        if request.dimensions not in (None, model.encoder.dim):
            raise ValueError(f"the vectors of {system.name} have {model.encoder.dim} dimensions")
        encoding = requests.Encode(system=system.name, texts=request.input, side=request.input_type)
        rows = (await self.encode(encoding))["texts"]
        vectors = [row["vectors"][0] if row["vectors"] else [0.0] * model.encoder.dim for row in rows]
        embeddings: list[Any] = vectors
        if request.encoding_format == "base64":
            embeddings = [b64encode(np.array(vector, "<f4").tobytes()).decode() for vector in vectors]
        data = [
            {"object": "embedding", "index": n, "embedding": embedding}
            for n, embedding in enumerate(embeddings)
        ]
        return {"object": "list", "data": data, "model": system.name, "usage": USAGE}

    async def list_models(self) -> dict[str, Any]:
        models = [{"id": name, "object": "model", "owned_by": "retrieval-paradigms"} for name in self.systems]
        return {"object": "list", "data": models}

    async def differences(self, request: requests.Differences) -> dict[str, Any]:
        chosen = self._chosen(request.systems)
        if self.judged is None or len(chosen) != 2:
            raise ValueError("differences compare two systems on judged queries (--split)")
        for system in chosen:
            if system.name not in self._nDCG:
                self._nDCG[system.name] = await self._measured(system, self.judged)
        values = {system.name: self._nDCG[system.name] for system in chosen}
        first, second = values.values()
        by_size = sorted(first, key=lambda id: -abs(first[id] - second[id]))
        queries = [{"id": id, "values": {name: of[id] for name, of in values.items()}} for id in by_size]
        return {"measure": MEASURE, "queries": queries}

    async def _measured(self, system: ServedSystem, judged: Split) -> dict[str, float]:
        """Return nDCG@10 for each judged query. Other requests can run after every `TEXTS` queries."""
        run: Run = {}
        ids = list(judged.queries)
        for start in range(0, len(ids), TEXTS):
            batch = ids[start : start + TEXTS]
            ranked, _ = await self._searched(system, [judged.queries[id] for id in batch], 10)
            run |= dict(zip(batch, ranked, strict=True))
        values = on_split(run, judged, [MEASURE])
        return dict(zip(values.queries, values.values[MEASURE].tolist(), strict=True))

    async def _searched(
        self, system: ServedSystem, texts: Collection[str], k: int
    ) -> tuple[list[Any], float]:
        costs = [system.searching(text, k, View()) for text in texts]
        return await self._batched(system, system.search, texts, costs, k)

    async def _batched(
        self, system: ServedSystem, compute: Batch, texts: Iterable[str], costs: Iterable[Cost], setting: Any
    ) -> tuple[list[Any], float]:
        """Return each text's answer and the total seconds; batches are shared with other requests."""
        shares = [cost.share(one, self.allowed[system.name]) for one in costs]
        each = partial(self.together.each, compute)
        answers = await gather(*(each(*one, setting) for one in zip(texts, shares, strict=True)))
        return [answer for answer, _ in answers], sum({seconds for _, seconds in answers})

    async def _each(self, steps: Iterable[Callable[[], Any]]) -> tuple[list[Any], float]:
        """Compute steps one after another; other requests run between them. Return results and seconds."""
        answers = [await self.together.run(step) for step in steps]
        return [answer for answer, _ in answers], sum(seconds for _, seconds in answers)

    def _check(self, system: ServedSystem, steps: Iterable[Cost], *beside: Cost) -> None:
        for step in steps:
            cost.check_cost(step, sum(beside, self.allowed[system.name]))

    def _text(self, request: requests.Explain) -> str:
        _, _, text = self.corpus.document(request.document)
        return text if request.text is None else request.text

    def _check_rows(self, count: int) -> None:
        cost.check_answer(count * (self._longest_id + 2 * cost.NUMBER))

    def _chosen(self, names: list[str] | None) -> list[ServedSystem]:
        for name in names or ():
            if name not in self.systems:
                raise KeyError(f"unknown system {name!r:.80}; there are {', '.join(self.systems)}")
        return list(self.systems.values()) if names is None else [self.systems[name] for name in names]

    def _parts(self, system: ServedSystem) -> list[str]:
        """Return the names of the systems that a fusion is made of."""
        retrievers = system.inner.retrievers if isinstance(system.inner, Fused) else ()
        return [
            name for name, one in self.systems.items() if any(one.retriever is part for part in retrievers)
        ]

    def _only(self, name: str) -> ServedSystem:
        """Return the system of this name; "" is the only one. Raises ValueError if there are several."""
        if not name and len(self.systems) > 1:
            raise ValueError(f"model must name one of {', '.join(self.systems)}")
        return self._chosen([name] if name else None)[0]

    async def _of_each(
        self, names: list[str] | None, ask: Callable[[ServedSystem], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Return each system's answer, or {"error": one sentence} if the system cannot answer."""
        answers: dict[str, Any] = {}
        for system in self._chosen(names):
            try:
                answers[system.name] = await ask(system)
            except (ValueError, KeyError) as error:
                answers[system.name] = {"error": sentence(error)}
        return answers


def check_not_blank(queries: Mapping[str, str]) -> None:
    for id, text in queries.items():
        if is_blank(text):
            raise ValueError(f"{id!r:.80} is blank: nothing can be found by it")


def sentence(error: BaseException) -> str:
    """Return an error's message, without the quotes that str() adds for a KeyError."""
    return str(error.args[0] if isinstance(error, KeyError) and error.args else error)
