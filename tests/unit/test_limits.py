import asyncio
import json
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from frontend.limits import Backstop, BodyLimit
from tests.unit.web import run

SCOPE: Scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": []}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(await Request(scope, receive).body())(scope, receive, send)


async def answer(app: Any, pieces: Iterator[Message]) -> tuple[int, bytes]:
    """What `app` says to a client that sends these pieces and then nothing more, without leaving."""
    sent: list[Message] = []

    async def receive() -> Message:
        piece = next(pieces, None)
        if piece is None:
            await asyncio.Event().wait()
        assert piece is not None
        return piece

    async def send(message: Message) -> None:
        sent.append(message)

    await app(SCOPE, receive, send)
    return sent[0]["status"], sent[1]["body"]


def piece(body: bytes, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_that_never_ends_is_answered_and_gives_its_place_back() -> None:
    async def test() -> None:
        app = Backstop(BodyLimit(echo, max_bytes=100, pause_s=0.01), max_requests=1)
        for _ in range(3):
            status, body = await answer(app, iter([piece(b"half", True)]))
            assert status == 504
            assert json.loads(body)["error"]["code"] == "timeout"
        assert await answer(app, iter([piece(b"ha", True), piece(b"lf", False)])) == (200, b"half")

    run(test)


def test_a_whole_body_leaves_its_handler_all_the_time_it_needs() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait([leaving], timeout=0.05)
        assert not leaving.done()
        leaving.cancel()
        await PlainTextResponse(body)(scope, receive, send)

    async def test() -> None:
        app = BodyLimit(slow, max_bytes=100, pause_s=0.01)
        assert await answer(app, iter([piece(b"whole", False)])) == (200, b"whole")

    run(test)
