"""Limits on what clients may hold: connections, and the time for which the service waits for a client."""

from __future__ import annotations

import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 256  # at once; a request of each may hold `requests.MOST_BYTES`
PATIENCE = 30.0  # seconds in which a client must send a request, and read the answer
BUSY = b'{"error": "too many connections: try again later"}'
REFUSAL = (
    b"HTTP/1.1 503 \r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
)


class Patient(H11Protocol):
    """A connection that ends if the service has waited for the client for `PATIENCE` seconds.

    The service waits for headers, a body, or the reading of an answer; it does not wait while it computes.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(self.connections) > min(CONNECTIONS, descriptors // 2):  # the other half is for files
            transport.write(REFUSAL % (len(BUSY), BUSY))
            transport.close()
            return
        self._busy = self.loop.time()
        self._look()

    def on_response_complete(self) -> None:
        self._busy = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        if self not in self.connections:
            return
        now = self.loop.time()
        cycle: Any = self.cycle
        computing = cycle is not None and not cycle.response_complete and not cycle.more_body
        if computing and not self.flow.write_paused:
            self._busy = now
        if now - self._busy > PATIENCE:
            self.transport.abort()
        else:
            self.loop.call_later(min(1.0, PATIENCE / 4), self._look)
