"""An MCP server (Model Context Protocol): searches of the service as tools of a language model.

It reads requests from the standard input and writes answers to the standard output, as programs that start
MCP servers expect. It needs the package mcp, version 2 or later (extra mcp).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from paradigms.serve import requests
from paradigms.serve.service import Service, sentence

CHARACTERS = 2000  # of a document in a list of results


@dataclass
class Document:
    """A document of a result. score: higher is better. text: its first `CHARACTERS` characters."""

    id: str
    title: str
    score: float
    text: str


def mcp_server(service: Service) -> MCPServer:
    """Make a server with the tools `search` and `document`, over the service's first system."""
    name = next(iter(service.systems))
    server = MCPServer("retrieval-paradigms", instructions=f"Search {len(service.corpus):,} documents.")

    @server.tool()
    async def search(query: str, k: int = 5) -> list[Document]:
        """Find the k documents that answer a query best, best first; `document` returns a whole text."""
        with told():
            request = requests.Search(queries={"query": query}, k=k, systems=[name], characters=CHARACTERS)
            answer = await service.search(request)
            results = answer["systems"][name]
            if "error" in results:
                raise ValueError(results["error"])
        texts = answer["documents"]
        return [
            Document(id=id, title=texts[id][0], score=score, text=texts[id][1])
            for id, score in results["run"]["query"]
        ]

    @server.tool()
    async def document(id: str) -> dict[str, str]:
        """Return the title and the whole text of a document, by its id."""
        with told():
            return await service.document(id)

    return server


@contextmanager
def told() -> Iterator[None]:
    """Tell the language model what is wrong with its request."""
    try:
        yield
    except (ValueError, KeyError) as error:
        raise ToolError(sentence(error)) from error
