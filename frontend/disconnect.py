"""Clients that leave: what they no longer wait for is ended at once."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from common.errors import Cancelled

Result = TypeVar("Result")

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Keep proxies from holding back events."""


class Closable(Protocol):
    """Something that runs for the client, and can be ended."""

    async def aclose(self) -> None:
        """Ends it; harmless when repeated."""


async def unless_disconnected(request: Request, awaitable: Awaitable[Result]) -> Result:
    """The awaitable's result; if the client leaves first, it is cancelled and Cancelled is raised.

    For answers that are not streamed, once the body has been read.
    """
    me = asyncio.current_task()
    assert me is not None
    departure = Departure(me)
    watch = asyncio.create_task(departure.watch(request), name="disconnect")
    try:
        return await awaitable
    except asyncio.CancelledError:
        if departure.seen and me.uncancel() == 0:
            raise Cancelled("the client has left") from None
        raise
    finally:
        watch.cancel()


@dataclass
class Departure:
    """Of a client, by which the task that works for it is cancelled."""

    work: "asyncio.Task[object]"
    seen: bool = False

    async def watch(self, request: Request) -> None:
        """Returns when the client has left."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.seen = True
        self.work.cancel()


class EventStream(StreamingResponse):
    """Server-sent events that end `run` when the response ends, however that happens.

    A generator's own ``finally`` does not do: it never runs if the client leaves before the first event.
    """

    media_type = "text/event-stream"

    def __init__(self, run: Closable, events: AsyncIterable[str], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(events, headers=STREAM_HEADERS | dict(headers or {}))
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they or the client end."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._run.aclose()
