import asyncio
import logging

import httpx
import pytest

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


@pytest.mark.parametrize(("method", "path", "told"), CASES, ids=[case[1] for case in CASES])
def test_whatever_serves_a_route_it_is_logged_and_counted_by_its_template(
    method: str, path: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> None:
        transport = httpx.ASGITransport(app=create_app(Settings()))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            await client.request(method, path)

    with caplog.at_level(logging.INFO, "frontend.envelope"):
        asyncio.run(ask())
    ends = [item.getMessage() for item in caplog.records if item.levelno == logging.INFO]
    assert ends == [f"{method} {told}"]
