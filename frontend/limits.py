"""What a request may cost before anyone has looked at it: bytes of its body, and a place among those being served."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.errors import BodyTooLarge, DeadlineExceeded, NotReady, RequestError
from frontend.refusals import respond

UNCOUNTED = frozenset({"/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""Asked again and again by machines, and above all when there is too much to do."""


class BodyLimit:
    """Answers 413 before a body of more than `max_bytes` is read whole, whether or not it says its length.

    A body that pauses for `pause_s` seconds is answered with 504: who never finishes sending keeps no place.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, pause_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._pause_s = pause_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif _content_length(scope) > self._max_bytes:
            await respond(self._too_large(), scope["path"])(scope, receive, send)
        else:
            await self._count(scope, receive, send)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        read_bytes = 0
        complete = started = False
        fault: RequestError | None = None

        async def counted() -> Message:
            nonlocal read_bytes, complete, fault
            try:
                async with asyncio.timeout(None if complete else self._pause_s):
                    message = await receive()
            except TimeoutError:
                fault = DeadlineExceeded(f"nothing more of the body came for {self._pause_s:g} s")
                raise fault from None
            complete = not message.get("more_body", False)
            read_bytes += len(message.get("body", b""))
            if read_bytes > self._max_bytes:
                fault = self._too_large()
                raise fault
            return message

        async def passed_on(message: Message) -> None:
            """The app's answer, unless it is only what it makes of a body that was cut off."""
            nonlocal started
            if started or fault is None:
                started = True
                await send(message)

        try:
            await self._app(scope, counted, passed_on)
        except Exception:
            if fault is None:
                raise
        if fault is not None and not started:
            await respond(fault, scope["path"])(scope, receive, send)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"the body has more than the {self._max_bytes} bytes that are accepted",
            numbers={"max_body_bytes": self._max_bytes},
        )


class Backstop:
    """Refuses the request that would be one too many at the same time; admission answers long before it."""

    def __init__(self, app: ASGIApp, max_requests: int) -> None:
        self._app = app
        self._max_requests = max_requests
        self._serving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] in UNCOUNTED:
            await self._app(scope, receive, send)
            return
        if self._serving >= self._max_requests:
            busy = NotReady(f"{self._serving} requests are being served already", retry_after_s=1.0)
            await respond(busy, scope["path"])(scope, receive, send)
            return
        self._serving += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._serving -= 1


def _content_length(scope: Scope) -> int:
    """What the request says; 0 where it says nothing, or no number."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
