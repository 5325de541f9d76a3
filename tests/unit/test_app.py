"""None"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from common import logs
from common.settings import Settings
from tests.unit.small_app import (
    SECRET,
    make_app,
    rendered,
    served,
    status_of,
)
from tests.unit.web import run, serving_app, until


def test_errors_have_one_form() -> None:
    cases: dict[str, tuple[int, dict[str, Any], dict[str, str]]] = {
        "/probe/refuse/now": (
            429,
            {"type": "rate_limit_error", "code": "rate_limit_exceeded", "price_bytes": 7},
            {"Retry-After": "2"},
        ),
        "/probe/refuse/never": (413, {"code": "never_fits", "capacity_bytes": 5}, {"x-should-retry": "false"}),
        "/probe/refuse/value": (400, {"code": "invalid_value", "param": "n"}, {"x-should-retry": "false"}),
        "/nowhere": (404, {"code": "not_found"}, {}),
        "/docs": (404, {"code": "not_found"}, {}),
        "/openapi.json": (404, {"code": "not_found"}, {}),
        "/probe/number?value=x": (400, {"code": "invalid_value", "param": "value"}, {}),
        "/probe/number": (400, {"code": "invalid_value", "param": "value"}, {}),
        "/probe/read": (405, {"code": "method_not_allowed"}, {"Allow": "POST"}),
        "/probe/fail": (500, {"code": "internal_error", "type": "server_error"}, {}),
    }

    async def test() -> None:
        async with served() as (client, _):
            for path, (status, fields, headers) in cases.items():
                async with client.get(path) as answer:
                    error = (await answer.json())["error"]
                    assert answer.status == status, path
                    assert error.items() >= fields.items(), path
                    assert error.keys() >= {"message", "type", "param", "code"}, path
                    assert answer.headers.items() >= headers.items(), path
                    assert answer.headers["x-request-id"], path

    run(test)


def test_below_v2_an_error_is_what_kserve_clients_read() -> None:
    async def test() -> None:
        async with served() as (client, _):
            async with client.get("/v2/repository/index") as answer:
                body = await answer.json()
            assert answer.status == 403
            assert isinstance(body["error"], str)
            assert body["code"] == "forbidden"

    run(test)


def test_a_fault_of_ours_says_nothing_of_what_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with served() as (client, _):
            async with client.get("/probe/fail") as answer:
                assert SECRET not in await answer.text()
            with pytest.raises(aiohttp.ClientError):
                async with client.get("/probe/break") as answer:
                    await answer.read()
            async with client.post("/probe/read", data=b"x") as answer:
                assert answer.status == 200

    with caplog.at_level(logging.DEBUG):
        run(test)
    assert SECRET not in caplog.text
    assert "ValueError at" in caplog.text


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_and_the_connection_goes_on(chunked: bool) -> None:
    async def pieces(size: int) -> AsyncIterator[bytes]:
        for _ in range(0, size, 100):
            yield b"x" * 100

    async def test() -> None:
        async with served() as (client, _):
            for size, status in ((1000, 200), (1100, 413), (1000, 200)):
                async with client.post("/probe/read", data=pieces(size) if chunked else b"x" * size) as answer:
                    body = await answer.json()
                    assert answer.status == status
            async with client.post("/probe/read", data=b"x" * 5000) as answer:
                body = await answer.json()
            assert body["error"]["code"] == "content_too_large"
            assert body["error"]["max_body_bytes"] == 1000

    run(test)


@pytest.mark.parametrize("framing", [b"Content-Length: 1000000000", b"Transfer-Encoding: chunked"])
def test_the_limit_is_told_before_the_body_has_come(framing: bytes) -> None:
    async def test() -> None:
        async with served() as (client, _):
            assert client._base_url is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", client._base_url.port)
            writer.write(b"POST /probe/read HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n")
            if b"chunked" in framing:
                writer.write(b"800\r\n" + b"x" * 0x800 + b"\r\n")
            assert await reader.readline() == b"HTTP/1.1 413 Request Entity Too Large\r\n"
            writer.close()

    run(test)


def test_one_request_too_many_is_told_so_in_the_same_form() -> None:
    async def test() -> None:
        async with served() as (client, app):
            busy = [asyncio.create_task(status_of(client, "GET", "/probe/wait")) for _ in range(4)]
            await until(lambda: app.state.waiting == 4)
            async with client.get("/probe/number?value=1") as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert (await answer.json())["error"]["type"] == "service_unavailable_error"
            async with client.get("/healthz") as answer:
                assert answer.status == 200
            app.state.gate.set()
            assert set(await asyncio.gather(*busy)) == {200}
            async with client.get("/probe/number?value=1") as answer:
                assert answer.status == 200

    run(test)


def test_request_ids_come_back_if_they_are_plain() -> None:
    async def test() -> None:
        async with served() as (client, _):
            seen = []
            for sent in ("mine-1.2:3", "x" * 65, "two words", ""):
                async with client.get("/probe/number?value=1", headers={"X-Request-Id": sent}) as answer:
                    seen.append(answer.headers.getall("x-request-id"))
            assert seen[0] == ["mine-1.2:3"]
            assert all(len(ids) == 1 and len(ids[0]) == 32 for ids in seen[1:])

    run(test)


def test_every_end_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with served() as (client, app):
            await status_of(client, "POST", "/probe/read", data=SECRET.encode(), headers={"x-request-id": "id-1"})
            await status_of(client, "GET", "/probe/refuse/now")
            await status_of(client, "GET", "/secret-path-of-a-client")
            await status_of(client, "GET", "/healthz")
            headers = {"x-request-id": "id-2"}
            gone = asyncio.create_task(status_of(client, "GET", "/probe/wait", headers=headers))
            await until(lambda: app.state.waiting == 1)
            gone.cancel()
            await asyncio.wait([gone])
            await until(lambda: "request=id-2" in caplog.text)
            text = rendered(app)
        assert 'model="llama",outcome="ok",route="other"} 1.0' in text
        assert 'outcome="rate_limit_exceeded"' in text
        assert "secret" not in text

    caplog.handler.setFormatter(logs.formatter("pretty", ""))
    with caplog.at_level(logging.INFO, "frontend.envelope"):
        run(test)
    ends = [line for line in caplog.text.splitlines() if "outcome=" in line]
    told = "POST /probe/read request=id-1 tenant=anyone model=llama outcome=ok price_bytes=123 seconds=0."
    assert ends[0].startswith(told)
    assert ends[1].startswith("GET /probe/refuse/{what} request=")
    assert "tenant=anyone model=none outcome=rate_limit_exceeded" in ends[1]
    assert "tenant=anyone model=none outcome=not_found" in ends[2]
    assert "GET /probe/wait request=id-2 tenant=anyone model=none outcome=client_closed_request" in ends[3]
    assert len(ends) == 4
    assert "secret" not in " ".join(ends)


def test_a_client_that_leaves_while_it_sends_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with served() as (client, _):
            assert client._base_url is not None
            _, writer = await asyncio.open_connection("127.0.0.1", client._base_url.port)
            writer.write(b"POST /probe/read HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\nhalf of")
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()
            await until(lambda: "outcome=client_closed_request" in caplog.text)

    caplog.handler.setFormatter(logs.formatter("pretty"))
    with caplog.at_level(logging.INFO):
        run(test)
    assert "ERROR" not in caplog.text


def test_the_operator_is_told_what_is_wrong_with_the_settings(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with served() as (client, _):
            assert await status_of(client, "GET", "/probe/misconfigured") == 500

    run(test)
    assert "SettingsError (llama.model: no such folder) at" in caplog.text


def test_a_stop_answers_what_still_waits() -> None:
    async def test() -> None:
        app = make_app()
        settings = Settings.model_validate({"server": {"shutdown_s": 0.1}})
        async with aiohttp.ClientSession() as client:
            async with serving_app(app, settings) as url:
                waiting = asyncio.create_task(client.get(url + "/probe/wait"))
                await until(lambda: app.state.waiting == 1)
            async with await waiting as answer:
                assert answer.status == 503
                assert "shutting down" in (await answer.json())["error"]["message"]

    run(test)
