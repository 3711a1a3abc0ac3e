"""A JSON service for any retrievers, and the page that uses it.

    serve({"colbert": index, "bm25": BM25(corpus)}, corpus)   # on http://127.0.0.1:8765, until interrupted

The service accepts POST requests to /search, /rerank, /explain, /save, /encode and /differences, and GET
requests to /systems, /documents/ID, /queries and /openapi.json, which describes all paths. Frameworks call
/v1/rerank, /v1/embeddings and /v1/models. A failed request returns {"error": one sentence}.
"""

from __future__ import annotations

import json
import socket
import sys
from asyncio import FIRST_COMPLETED, ensure_future, wait
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Http
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from paradigms.data import Corpus, Split
from paradigms.retrieve import Retriever
from paradigms.serve import requests
from paradigms.serve.guard import Guard
from paradigms.serve.patience import Patient
from paradigms.serve.service import Service, sentence
from paradigms.serve.together import Busy
from paradigms.view import FOLDER

PORT = 8765
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
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
            id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
            operation["parameters"] = [id]
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
            return super().render(json.loads(json.dumps(content), parse_constant=lambda _: None))


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
    silent: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    return uvicorn.Server(uvicorn.Config(app, http=Patient, ws="none", lifespan="on", **silent))


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket whose connections send data without delay (TCP_NODELAY).

    asyncio only sets this option on its own sockets. Without it, a response's body would wait 40 ms for the
    client to acknowledge the headers. Raises OSError if the port is in use.
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
        raise ValueError(f"other machines can reach {host}: set --token, which every request must contain")
    if token and not (token.isascii() and token.isprintable() and " " not in token and len(token) >= 8):
        raise ValueError("a token must have at least 8 characters: printable ASCII without spaces")
