"""A JSON service for any retrievers, and the page that uses it.

    serve({"colbert": index, "bm25": BM25(corpus)}, corpus)   # on http://127.0.0.1:8765, until interrupted

The service accepts POST requests to /search, /rerank, /explain, /save, /encode and /differences, and GET
requests to /systems, /documents/ID, /queries and /openapi.json, which describes all paths. Frameworks call
/v1/rerank, /v1/embeddings and /v1/models. A failed request returns {"error": one sentence}.
"""

from __future__ import annotations

import socket
import sys
from asyncio import FIRST_COMPLETED, ensure_future, gather, wait
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from ipaddress import ip_address
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Http
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from paradigms.align import ALIGNMENTS, NORMALISERS, Cost
from paradigms.data import Corpus, Run, Split
from paradigms.evaluate.measures import on_split
from paradigms.io.checks import is_blank
from paradigms.retrieve import Fused, Retriever
from paradigms.serve import cost, requests
from paradigms.serve.guard import Guard
from paradigms.serve.patience import Patient
from paradigms.serve.systems import CANDIDATES, ServedSystem, View
from paradigms.serve.together import TEXTS, Batch, Busy, Together
from paradigms.view import FOLDER, card_data, page

PORT = 8765
MEASURE = "nDCG@10"
USAGE = {"prompt_tokens": 0, "total_tokens": 0}  # not counted; clients require the entry
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


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
        relevant = {
            query: [document for document, grade in grades.items() if grade > 0]
            for query, grades in split.judgements.items()
        }
        return {
            "queries": [
                {"id": id, "text": text, "relevant": relevant.get(id, [])}
                for id, text in split.queries.items()
            ]
        }

    async def document(self, id: str) -> dict[str, str]:
        title, text = self._document(id)
        return {"id": id, "title": title, "text": text}

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
            by_query = {id: rows(scores, request.k) for id, scores in zip(request.queries, runs, strict=True)}
            return {"milliseconds": 1000 * seconds, "run": by_query}

        answers = await self._of_each(request.systems, ask)
        answer: dict[str, Any] = {"systems": answers}
        if request.characters:
            runs = [run for of in answers.values() for run in of.get("run", {}).values()]
            documents: dict[str, tuple[str, str]] = {}
            size = 0
            for id in dict.fromkeys(id for run in runs for id, _ in run):
                title, text = self._document(id)
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
            by_query = {id: rows(scores) for one in ranked for id, scores in one.items()}
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
        best = sorted(range(len(scores)), key=lambda n: -scores[n])[: request.top_n]
        results: list[dict[str, Any]] = [{"index": n, "relevance_score": scores[n]} for n in best]
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
        asked = requests.Encode(system=system.name, texts=request.input, side=request.input_type)
        rows = (await self.encode(asked))["texts"]
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
        text = self._document(request.document)[1]
        return text if request.text is None else request.text

    def _check_rows(self, count: int) -> None:
        cost.check_answer(count * (self._longest_id + 2 * cost.NUMBER))

    def _document(self, id: str) -> tuple[str, str]:
        position = self.corpus.position(id)
        return self.corpus.titles[position], self.corpus[position]

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


PATHS: dict[str, tuple[str, type[requests.Request] | None, str]] = {
    "/search": ("search", requests.Search, "The best documents for each query"),
    "/rerank": ("rerank", requests.Rerank, "Scores of given documents"),
    "/explain": ("explain", requests.Explain, "S, A and Z of a document, by token"),
    "/save": ("save", requests.Explain, "The explanation as a self-contained HTML page"),
    "/encode": ("encode", requests.Encode, "Token vectors of texts"),
    "/differences": ("differences", requests.Differences, "Judged queries on which two systems differ most"),
    "/v1/rerank": ("rerank_texts", requests.RerankTexts, "Scores of given texts, as Cohere, Jina and vLLM"),
    "/v2/rerank": ("rerank_texts", requests.RerankTexts, "The same, where Cohere's client asks"),
    "/v1/embeddings": ("embed", requests.Embeddings, "One vector for each text, as OpenAI"),
    "/v1/models": ("list_models", None, "The systems, as OpenAI lists models"),
    "/systems": ("list_systems", None, "The systems, alignments and normalisers"),
    "/queries": ("list_queries", None, "The judged queries"),
    "/documents/{id}": ("document", None, "A document"),
}


def openapi() -> dict[str, Any]:
    """Return the OpenAPI description of the service."""
    paths: dict[str, Any] = {}
    for path, (_, kind, what) in PATHS.items():
        answers = {"200": {"description": what}, "400": {"description": "One sentence says what is wrong"}}
        operation: dict[str, Any] = {"summary": what, "responses": answers}
        if kind is not None:
            content = {"application/json": {"schema": requests.schema_of(kind)}}
            operation |= {"description": kind.__doc__, "requestBody": {"required": True, "content": content}}
        if "{id}" in path:
            operation["parameters"] = [
                {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
            ]
        paths[path] = {"get" if kind is None else "post": operation}
    return {"openapi": "3.1.0", "info": {"title": "retrieval-paradigms", "version": "1"}, "paths": paths}


def application(service: Service, *, names: frozenset[str] = frozenset(), token: str = "") -> Starlette:
    """Make an ASGI application from a service, including its page. names, token: see `Guard`."""

    def answering(name: str, kind: type[requests.Request] | None) -> Callable[[Http], Awaitable[Response]]:
        async def answer(http: Http) -> Response:
            method = getattr(service, name)
            if kind is not None:
                return FiniteJSON(await unless_gone(http, method(kind.read(await body_of(http)))))
            return FiniteJSON(await method(**http.path_params))

        return answer

    def asset(file: Path) -> Callable[[Http], Awaitable[Response]]:
        async def answer(http: Http) -> Response:
            return Response(file.read_bytes(), media_type=TYPES[file.suffix])

        return answer

    async def described(http: Http) -> Response:
        return JSONResponse(openapi())

    @asynccontextmanager
    async def ending(app: Starlette) -> AsyncIterator[None]:
        yield
        service.together.close()

    routes = [
        Route(
            path.replace("{id}", "{id:name}"),
            answering(name, kind),
            methods=["GET" if kind is None else "POST"],
        )
        for path, (name, kind, _) in PATHS.items()
    ]
    here = Path(__file__).parent
    routes += [Route("/", asset(here / "page.html")), Route("/openapi.json", described)]
    routes += [Route(f"/{name}", asset(here / name)) for name in ("page.js", "page.css")]
    routes += [Route(f"/{name}", asset(FOLDER / name)) for name in ("cards.js", "cards.css")]
    guard = Middleware(Guard, names=names | {"localhost"}, token=token)
    return Starlette(routes=routes, middleware=[guard], exception_handlers=HANDLERS, lifespan=ending)


class Name(StringConvertor):
    """A path parameter for ids, which may contain slashes and line breaks."""

    regex = r"[\s\S]*"


register_url_convertor("name", Name())


class FiniteJSON(JSONResponse):
    """A JSON response that replaces numbers that are not finite with null."""

    def render(self, content: Any) -> bytes:
        try:
            return super().render(content)
        except ValueError:  # for example −inf, the score of documents without tokens
            return super().render(finite(content))


def finite(value: Any) -> Any:
    """Replace numbers that are not finite with null (None)."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value


async def body_of(http: Http) -> bytes:
    """Read a request's body. Raises HTTPException if it is too long or not declared as JSON."""
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the request must have the header Content-Type: application/json")
    body = bytearray()
    async for part in http.stream():
        body += part
        if len(body) > requests.MOST_BYTES:
            raise HTTPException(413, f"the request has more than {requests.MOST_BYTES:,} bytes")
    return bytes(body)


async def unless_gone(http: Http, work: Coroutine[Any, Any, Any]) -> Any:
    """Return what `work` returns, or cancel it and raise ClientDisconnect once the client has left."""

    async def leaving() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    working = ensure_future(work)
    gone = ensure_future(leaving())
    try:
        await wait({working, gone}, return_when=FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


def rows(scores: Mapping[str, float], k: int | None = None) -> list[tuple[str, float]]:
    """List (document, score) pairs, best first, because a JSON object would reorder numeric ids."""
    return list(scores.items())[:k]


def check_not_blank(queries: Mapping[str, str]) -> None:
    for id, text in queries.items():
        if is_blank(text):
            raise ValueError(f"{id!r:.80} is blank: nothing can be found by it")


def sentence(error: BaseException) -> str:
    """Return an error's message, without the quotes that str() adds for a KeyError."""
    return str(error.args[0] if isinstance(error, KeyError) and error.args else error)


def _failing(status: int) -> Any:
    async def handle(http: Http, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)
        return JSONResponse({"error": sentence(error)}, status)

    return handle


async def _gone(http: Http, error: Exception) -> Response:
    return PlainTextResponse("", 499)


HANDLERS: dict[Any, Any] = {ValueError: _failing(400), KeyError: _failing(404), Busy: _failing(503)}
HANDLERS |= {HTTPException: _failing(400), ClientDisconnect: _gone, Exception: _failing(500)}


def serve(
    retrievers: Mapping[str, Retriever],
    corpus: Corpus,
    *,
    judged: Split | None = None,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str = "",
    ready: Callable[[str], None] = lambda address: print(f"Open {address}", file=sys.stderr),
) -> None:
    """Serve the retrievers of a corpus, and a page that shows them, until interrupted.

    retrievers, judged: see `Service`. port: port to listen on; 0 selects a free port. token: see `Guard`.
    ready: callback that receives the page's address once requests are accepted. Raises ValueError if other
    machines can reach the host and no token is set, and OSError if the port is in use.
    """
    check_host(host, token)
    service = Service(retrievers, corpus, judged)
    with listen(host, port) as listening:
        port = listening.getsockname()[1]
        names = frozenset({host.lower(), socket.gethostname().lower()}) if token else frozenset[str]()
        app = application(service, names=names, token=token)
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/{token and f'#token={token}'}")
        with suppress(KeyboardInterrupt):  # raised again after the running requests end
            server_of(app).run(sockets=[listening])


def server_of(app: Starlette) -> uvicorn.Server:
    """Make the server that runs an application."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=Patient,
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket whose connections send data without delay (TCP_NODELAY).

    asyncio only sets this option on sockets that it opens itself. Without the option, a response's body would
    wait 40 ms for the client to acknowledge the headers. Raises OSError if the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
    return listening


def check_host(host: str, token: str) -> None:
    """Raise ValueError if the token is malformed, or missing although other machines can reach the host."""
    try:
        local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local and not token:
        raise ValueError(
            f"other machines can reach {host}: set --token, which every request must then contain"
        )
    if token and not (token.isascii() and token.isprintable() and " " not in token and len(token) >= 8):
        raise ValueError("a token must have at least 8 characters: printable ASCII without spaces")
