"""Refuse cross-site requests: a request must come from the service's own page or contain the token.

In a browser, another site's page could send requests to 127.0.0.1 (cross-site request forgery), or make its
own host name resolve to that address (DNS rebinding). To let servers detect this, browsers send a request's
source (`Origin`, `Sec-Fetch-Site`) and the name of its target (`Host`). A program that sends no
origin is not a browser.
"""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
# No token is required, since these contain no data.
ASSETS = ("/", "/page.js", "/page.css", "/cards.js", "/cards.css", "/openapi.json")


class Guard:
    """Answer permitted requests, adding `HEADERS`, and refuse all others with a one-sentence error.

    names: host names that a request may use besides this machine's addresses. token: the required token; ""
    requires no token, but then only loopback addresses are permitted.
    """

    def __init__(self, app: ASGIApp, *, names: frozenset[str], token: str = "") -> None:
        self.app = app
        self.names = names
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        status, refusal = self.refusal(scope["path"], headers)
        app: ASGIApp = JSONResponse({"error": refusal}, status) if refusal else self.app
        await app(scope, receive, send_guarded)

    def refusal(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        """Return the HTTP status and error message of a refusal; the message is "" for permitted requests."""
        host = headers.get("host", "")
        origin = headers.get("origin")
        if not self._is_ours(host):
            return 403, f"this service has another name than {host!r:.100}: open the address that it printed"
        other = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
        if other or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, f"requests of other sites are refused ({origin or headers['sec-fetch-site']!r:.100})"
        sent = headers.get("authorization", "").removeprefix("Bearer ")
        if self.token and path not in ASSETS and not hmac.compare_digest(sent.encode(), self.token.encode()):
            return 401, "the token is missing or wrong: send it as the header Authorization: Bearer TOKEN"
        return 200, ""

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
            if name in self.names:
                return True
            address = ip_address(name)
        except ValueError:  # not an address, or unbalanced brackets
            return False
        return address.is_loopback or bool(self.token)
