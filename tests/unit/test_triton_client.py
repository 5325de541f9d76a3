import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from common.errors import NotNow, NotReady, UpstreamBroken
from common.wire import Breaker, CancelOutcome, EngineStatus
from frontend.triton import Triton
from tests.unit.fake_triton import answering, client, event, events, serving, streaming
from tests.unit.web import run

STREAM = "/v2/models/llama/generate_stream"
GENERATE = "/v2/models/llama/generate"
STATUS = EngineStatus(
    model="llama",
    boot_id="b1",
    ready=True,
    reason="",
    device="cpu",
    standing={},
    account="llama.pages",
    capacity_bytes=1024,
    used_bytes=0,
    unleased_bytes=0,
    leases=(),
    pool_keys=(),
    breaker=Breaker.CLOSED,
    headroom_bytes=None,
    fragmentation_ratio=0.0,
)


async def collect(triton: Triton) -> list[dict[str, Any]]:
    return [item async for item in triton.generate_stream("llama", {"max_tokens": 1})]


def test_events_arrive_whole_however_the_bytes_are_cut() -> None:
    text = "naïve 日本 \\n\\n \n\n"
    whole = event(text_output=text, index=0) + event(statement="{}").replace(b"\n\n", b"\r\n\r\n")

    async def test() -> None:
        cuts = [whole[start : start + 7] for start in range(0, len(whole), 7)]
        async with client(("POST", STREAM, streaming(*cuts))) as triton:
            assert await collect(triton) == [{"text_output": text, "index": 0}, {"statement": "{}"}]

    run(test)


def test_an_event_larger_than_a_read_buffer_arrives() -> None:
    async def test() -> None:
        large = "x" * 2_000_000
        async with client(("POST", STREAM, streaming(event(text_output=large, statement="{}")))) as triton:
            assert (await collect(triton))[0]["text_output"] == large

    run(test)


@pytest.mark.parametrize("status", [200, 400, 500])
def test_an_error_is_the_engines_own_whatever_the_status(status: int) -> None:
    error = NotNow("no pages", numbers={"price_bytes": 5}, retry_after_s=2.5)

    async def test() -> None:
        async with client(("POST", STREAM, answering({"error": error.to_text()}, status))) as triton:
            with pytest.raises(NotNow) as caught:
                await collect(triton)
        assert (caught.value.message, caught.value.numbers) == ("no pages", {"price_bytes": 5})
        assert caught.value.retry_after_s == 2.5

    run(test)


def test_an_error_in_the_middle_of_a_stream_is_raised_after_what_came_before() -> None:
    async def test() -> None:
        parts = event(text_output="a"), event(error="[UNAVAILABLE] closed"), event(statement="{}")
        async with client(("POST", STREAM, streaming(*parts))) as triton:
            stream = triton.generate_stream("llama", {})
            assert await anext(stream) == {"text_output": "a"}
            with pytest.raises(NotReady, match="closed"):
                await anext(stream)

    run(test)


@pytest.mark.parametrize(
    "parts",
    [
        (event(text_output="a"),),
        (event(text_output="a"), b'data: {"statement": "{}"'),
        (b"data: [1]\n\n",),
        (b"data: nonsense\n\n",),
        (),
    ],
)
def test_a_stream_without_its_end_is_broken(parts: tuple[bytes, ...]) -> None:
    async def test() -> None:
        async with client(("POST", STREAM, streaming(*parts))) as triton:
            with pytest.raises(UpstreamBroken):
                await collect(triton)

    run(test)


def test_a_connection_cut_in_the_middle_is_broken() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event(text_output="a"))
        assert request.transport is not None
        request.transport.close()
        return response

    async def test() -> None:
        async with client(("POST", STREAM, cut)) as triton:
            with pytest.raises(UpstreamBroken):
                await collect(triton)

    run(test)


def test_a_cancelled_reader_closes_its_socket_at_once() -> None:
    closed = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        try:
            return await events(request, event(text_output=""), *[b": wait\n\n"] * 1000, pause_s=0.01)
        finally:
            closed.set()

    async def test() -> None:
        async with client(("POST", STREAM, endless)) as triton:
            opened = asyncio.Event()

            async def read() -> None:
                async for _ in triton.generate_stream("llama", {}):
                    opened.set()

            task = asyncio.create_task(read())
            await opened.wait()
            task.cancel()
            await asyncio.wait_for(closed.wait(), 2)

    run(test)


def test_a_server_that_does_not_listen_is_not_ready_and_not_live() -> None:
    async def test() -> None:
        async with serving() as url:
            pass
        triton = Triton(url)
        await triton.start()
        with pytest.raises(NotReady, match="cannot be reached"):
            await triton.status("llama")
        with pytest.raises(NotReady):
            await collect(triton)
        assert not await triton.live()
        await triton.close()

    run(test)


def test_control_messages_have_their_answers() -> None:
    async def engine(request: web.Request) -> web.Response:
        message = json.loads((await request.json())["control"])
        assert set(message) <= {"op", "lease"}
        answers = {"status": STATUS.to_json(), "cancel": json.dumps({"outcome": "unknown"})}
        return web.json_response({"model_name": "llama", "control": answers[message["op"]]})

    async def test() -> None:
        async with client(("POST", GENERATE, engine)) as triton:
            assert await triton.status("llama") == STATUS
            assert await triton.cancel("llama", "a1") is CancelOutcome.UNKNOWN

    run(test)


@pytest.mark.parametrize("body", [{}, {"control": 5}, {"control": "{}"}, {"control": "nonsense"}])
def test_a_control_answer_that_is_none_is_the_engines_fault(body: object) -> None:
    async def test() -> None:
        async with client(("POST", GENERATE, answering(body))) as triton:
            with pytest.raises(UpstreamBroken):
                await triton.status("llama")

    run(test)


def test_neither_a_control_message_nor_metadata_is_waited_for_for_ever() -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async def test() -> None:
        async with client(("POST", GENERATE, hang), ("GET", "/v2/models/llama", hang), control_s=0.1) as triton:
            with pytest.raises(UpstreamBroken, match="in time"):
                await triton.status("llama")
            with pytest.raises(UpstreamBroken, match="in time"):
                await triton.look_up("/v2/models/llama")

    run(test)


def test_a_server_that_refuses_before_the_engine_is_not_ready() -> None:
    async def test() -> None:
        async with client(("POST", GENERATE, answering({"error": "Server is stopping"}, 503))) as triton:
            with pytest.raises(NotReady, match="stopping"):
                await triton.status("llama")

    run(test)


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_model_whose_process_has_died_is_not_ready(status: int) -> None:
    async def test() -> None:
        answer = answering({"error": "Stub process 'llama_0_0' is not healthy."}, status)
        async with client(("POST", STREAM, answer)) as triton:
            with pytest.raises(NotReady, match="not healthy") as caught:
                await collect(triton)
        assert caught.value.retry_after_s == 1.0

    run(test)


def test_forward_changes_nothing_either_way() -> None:
    seen: list[tuple[str, str, bytes, str]] = []

    async def anything(request: web.Request) -> web.Response:
        seen.append((request.method, request.raw_path, await request.read(), request.headers["x-mine"]))
        return web.Response(status=418, body=b"\x00tea", headers={"x-theirs": "1"})

    async def test() -> None:
        async with client(("POST", "/v2/{tail:.*}", anything)) as triton:
            reply = await triton.forward("POST", "/v2/models/a%2Fb?x=%20", {"x-mine": "2"}, b"\x01body")
        assert seen == [("POST", "/v2/models/a%2Fb?x=%20", b"\x01body", "2")]
        assert (reply.status, reply.body, reply.headers["X-Theirs"]) == (418, b"\x00tea", "1")

    run(test)


def test_load_shows_the_admin_key_and_raises_what_went_wrong() -> None:
    keys: list[str | None] = []

    async def repository(request: web.Request) -> web.Response:
        keys.append(request.headers.get("x-vramgate-admin"))
        return (
            web.Response() if request.match_info["model"] == "llama" else web.json_response({"error": "no"}, status=400)
        )

    async def test() -> None:
        async with client(("POST", "/v2/repository/models/{model}/load", repository)) as triton:
            await triton.load("llama")
            with pytest.raises(UpstreamBroken, match="no"):
                await triton.load("other")
        assert keys == ["secret", "secret"]

    run(test)


def test_a_snapshot_is_where_the_engine_says() -> None:
    async def test() -> None:
        async with client(("POST", GENERATE, answering({"control": '{"path": "/state/one"}'}))) as triton:
            assert await triton.snapshot("llama") == "/state/one"
        async with client(("POST", GENERATE, answering({"control": '{"outcome": "unknown"}'}))) as triton:
            with pytest.raises(UpstreamBroken):
                await triton.snapshot("llama")

    run(test)
