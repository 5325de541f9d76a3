"""uvicorn's HTTP protocol with its refusals in our form, and without patience for who never says what it wants."""

import asyncio
import json
from typing import cast

from starlette.types import Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from common.errors import InvalidRequest, NotReady
from frontend.refusals import respond

HEADERS_S = 10.0
"""For a request's headers to come, from the first byte or the connection on."""


class Protocol(HttpToolsProtocol):
    """One connection. Beyond the backstop's limit of requests this one counts connections: for floods of idle ones."""

    max_connections: int
    """Of the whole server; set in a subclass, see :func:`limited_to`."""
    _impatience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The headers are due from now on."""
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is due any more."""
        self._have_headers()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """The next request on this connection."""
        super().on_message_begin()
        self._expect_headers()

    def on_headers_complete(self) -> None:
        """Who answers: the app, or nobody because there are too many."""
        self._have_headers()
        is_crowded = len(self.connections) > self.max_connections
        self.app = cast(ASGI3Application, crowded) if is_crowded else self.config.loaded_app
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no HTTP."""
        body = json.dumps(InvalidRequest(msg).to_body()).encode()
        head = (
            b"content-type: application/json\r\nconnection: close\r\nx-should-retry: false\r\n"
            b"content-length: %d\r\n\r\n" % len(body)
        )
        self.transport.write(STATUS_LINE[400] + head + body)
        self.transport.close()

    def _expect_headers(self) -> None:
        if self._impatience is None:
            self._impatience = self.loop.call_later(HEADERS_S, self.transport.close)

    def _have_headers(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None


def limited_to(max_connections: int) -> type[Protocol]:
    """The protocol for a server of so many connections."""
    return type("LimitedProtocol", (Protocol,), {"max_connections": max_connections})


async def crowded(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer on a connection that is one too many."""
    busy = NotReady("too many connections are open", retry_after_s=1.0)
    await respond(busy, scope["path"], {"Connection": "close"})(scope, receive, send)
