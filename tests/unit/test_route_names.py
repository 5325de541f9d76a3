import asyncio
import logging
from functools import cache

import httpx
import pytest
from fastapi import FastAPI

from common.settings import Settings
from frontend.app import create_app

CASES = [
    ("POST", "/v1/completions", "/v1/completions"),
    ("POST", "/v1/chat/completions", "/v1/chat/completions"),
    ("GET", "/v1/models/a-client's-own-words", "/v1/models/{model:path}"),
    ("POST", "/v2/models/llama/infer", "/v2/models/{model}/infer"),
    ("POST", "/v2/models/a-client's-own-words/generate", "/v2/models/{model}/generate"),
    ("GET", "/a-client's-own-words", "none"),
]


@cache
def app() -> FastAPI:
    return create_app(Settings())


def route_of(method: str, path: str) -> str:
    """The template under which a request is logged, ``none`` where no route serves it; the answer is a failure."""
    lines: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keeper()
    log = logging.getLogger("frontend.envelope")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app()), base_url="http://here") as client:
            await client.request(method, path)

    try:
        asyncio.run(ask())
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    return lines[-1].removeprefix(f"{method} ")


@pytest.mark.parametrize(("method", "path", "told"), CASES, ids=[case[1] for case in CASES])
def test_whatever_serves_a_route_it_is_logged_and_counted_by_its_template(method: str, path: str, told: str) -> None:
    assert route_of(method, path) == told
