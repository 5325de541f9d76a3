import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI

from common.settings import Settings
from frontend import protocol
from tests.unit.web import run, serving_app

TIGHT = Settings.model_validate({"server": {"max_connections": 1}})
HELLO = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"


def app() -> FastAPI:
    made = FastAPI()

    @made.get("/hello")
    async def hello() -> str:
        return "hello"

    class Quiet:
        def stop(self) -> None:
            pass

    made.state.services = Quiet()
    return made


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def ask(url: str, message: bytes) -> tuple[bytes, Any]:
    """Head and JSON body of what comes back until the server closes, or for a moment."""
    reader, writer = await connect(url)
    writer.write(message)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    writer.close()
    return head.lower(), body


def test_what_is_no_http_is_refused_in_our_form() -> None:
    async def test() -> None:
        async with serving_app(app()) as url:
            head, body = await ask(url, b"not http at all\r\n\r\n")
            assert head.startswith(b"http/1.1 400")
            assert b"connection: close" in head
            assert body["error"]["code"] == "invalid_value"

    run(test)


def test_a_connection_too_many_is_refused_in_our_form_until_one_goes() -> None:
    async def test() -> None:
        async with serving_app(app(), TIGHT) as url:
            idle = [await connect(url) for _ in range(2)]
            head, body = await ask(url, HELLO)
            assert head.startswith(b"http/1.1 503")
            assert b"retry-after: 1" in head
            assert b"connection: close" in head
            assert body["error"]["code"] == "server_is_overloaded"
            idle[0][1].close()
            await idle[0][1].wait_closed()
            async with asyncio.timeout(5):
                while (await ask(url, HELLO))[1] != "hello":  # noqa: ASYNC110 - the server notices in its own time
                    await asyncio.sleep(0.01)
            idle[1][1].close()

    run(test)


def test_who_never_finishes_its_headers_loses_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADERS_S", 0.1)

    async def test() -> None:
        async with serving_app(app()) as url:
            silent, half, second = [await connect(url) for _ in range(3)]
            half[1].write(HELLO[:-2])
            second[1].write(HELLO + HELLO[:-2])
            assert await silent[0].read() == b""
            assert await half[0].read() == b""
            assert (await second[0].read()).count(b"200 OK") == 1, "the first request was answered, the next never came"
            assert (await ask(url, HELLO))[1] == "hello"
            for _, writer in (silent, half, second):
                writer.close()

    run(test)
