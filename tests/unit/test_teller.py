import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import aiohttp
import numpy as np
import pytest
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse

from common.errors import DeadlineExceeded, InvalidRequest, NeverFits, NotNow, NotReady, UpstreamBroken
from common.settings import Settings
from common.wire import HOST, Lease
from frontend.admission import Admission
from frontend.app import create_app
from frontend.disconnect import EventStream, unless_disconnected
from frontend.engines import Engines
from frontend.journal import Journal
from frontend.ledger import Ledger
from frontend.metrics import Metrics
from frontend.runs import ImageJob, TextChunk, TextJob, TextRun
from frontend.services import Services, Tokenizers, services
from frontend.teller import Teller
from frontend.triton import Triton
from tests.unit.fake_engine import PAGE_BYTES, FakeEngine
from tests.unit.fake_triton import serving
from tests.unit.web import run, serving_app, until

JOB = TextJob(prompt_ids=(5, 6, 7), max_tokens=3)
"""6 tokens: 2 of the 10 pages."""
WHOLE = TextJob(prompt_ids=(5,) * 20, max_tokens=20)
"""40 tokens: all pages."""
IMAGE = ImageJob(height=2, width=3, image=np.zeros((2, 3, 3), np.uint8))


@dataclass
class Room:
    services: Services
    llama: FakeEngine
    unet: FakeEngine
    engines: tuple[FakeEngine, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.engines = (self.llama, self.unet)

    @property
    def teller(self) -> Teller:
        return self.services.teller

    @property
    def held_bytes(self) -> int:
        return sum(view.held_bytes for view in self.services.ledger.accounts())

    async def idle(self) -> None:
        """Waits until nothing is held and nothing works; fails the test if that does not come."""
        await until(lambda: self.held_bytes == 0 and not any(engine.active for engine in self.engines))
        self.services.ledger.check()
        assert self.services.ledger.leases() == ()

    def states(self) -> list[str]:
        self.services.journal.flush()
        return [entry.state for entry in self.services.journal.recent(100)]


@asynccontextmanager
async def bank(folder: Path, settings: Settings | None = None) -> AsyncIterator[Room]:
    """All real parts over scripted engines."""
    settings = settings or Settings()
    llama, unet = FakeEngine("llama"), FakeEngine("unet")
    ledger = Ledger(time.monotonic)
    ledger.set_capacity(HOST, 10**6)
    admission = Admission(ledger, settings.admission, time.monotonic)
    journal, metrics = Journal(folder / "journal.sqlite3", 1000), Metrics()
    async with serving(*llama.routes(), *unet.routes()) as url:
        triton = Triton(url)
        engines = Engines(triton, ledger, admission, poll_s=0.02)
        teller = Teller(engines, admission, ledger, triton, journal, metrics, settings, time.monotonic)
        await triton.start()
        await engines.start()
        parts = (ledger, admission, journal, metrics, triton, engines, teller, Tokenizers(settings, engines))
        room = Room(Services(settings, time.monotonic, *parts), llama, unet)
        try:
            await until(lambda: engines.ready()[0])
            yield room
        finally:
            for engine in room.engines:
                engine.restart("end")
            await teller.close(1.0)
            await engines.close()
            await triton.close()
            journal.close()


async def texts(stream: TextRun) -> list[str]:
    return [chunk.text async for chunk in stream]


def test_a_text_runs_from_price_to_statement(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            stream = await room.teller.generate(TextJob((5, 6, 7), 3, stop=("x",), seed=4, logprobs=1), 10)
            chunks = [chunk async for chunk in stream]
            assert chunks[0] == TextChunk(0, "t0 ", (0,))
            assert [chunk.finish_reason for chunk in chunks] == [None, None, "length"]
            assert stream.vram() == {
                "quoted_bytes": 2 * PAGE_BYTES,
                "held_bytes": 2 * PAGE_BYTES,
                "peak_bytes": 7,
                "rung": "none",
            }
            assert room.held_bytes == 0
            sent = room.llama.seen[0]
            lease = Lease.from_json(sent.pop("lease"))
            assert (lease.id, dict(lease.lines), lease.max_tokens) == (
                stream.lease_id,
                {"llama.pages": 2 * PAGE_BYTES},
                3,
            )
            assert 9 < lease.deadline_s <= 10
            assert sent == {
                "input_ids": [5, 6, 7],
                "max_tokens": 3,
                "n": 1,
                "temperature": 1.0,
                "top_p": 1.0,
                "top_k": 0,
                "repetition_penalty": 1.0,
                "stream": True,
                "stop": ["x"],
                "seed": 4,
                "logprobs": 1,
            }
            assert room.states() == ["settled"]
            assert room.llama.cancels == []

    run(test)


def test_an_image_runs_from_price_to_statement(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            result = await room.teller.segment(IMAGE, 10)
            assert result.mask.tolist() == [[1, 1, 1], [1, 1, 1]]
            assert result.probabilities is None
            assert result.vram()["held_bytes"] == result.price.by_account().get("unet.canvas", 0)
            assert room.held_bytes == 0
            assert room.unet.seen[0]["outputs"] == ["mask", "statement"]
            assert room.states() == ["settled"]

    run(test)


def test_a_request_that_never_fits_is_not_sent(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            with pytest.raises(NeverFits) as caught:
                await room.teller.generate(TextJob((5,) * 30, 11), 10)
            assert caught.value.numbers["capacity_bytes"] == 10 * PAGE_BYTES
            assert room.llama.seen == []

    run(test)


def test_a_request_waits_for_bytes_and_then_runs(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            first = await room.teller.generate(WHOLE, 10)
            second = asyncio.create_task(room.teller.generate(JOB, 10))
            await until(lambda: room.services.admission.waiting == 1)
            assert len(room.llama.seen) == 1
            room.llama.go.set()
            assert await texts(first) == await texts(await second)
            await room.idle()

    run(test)


def test_a_request_that_cannot_wait_is_refused_with_the_numbers(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path, Settings.model_validate({"admission": {"max_waiting": 0}})) as room:
            room.llama.go.clear()
            first = await room.teller.generate(WHOLE, 10)
            with pytest.raises(NotNow) as caught:
                await room.teller.generate(JOB, 10)
            assert caught.value.numbers["available_bytes"] == 0
            assert caught.value.retry_after_s is not None
            await first.aclose()
            await room.idle()

    run(test)


def test_the_deadline_cancels_the_work(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            stream = await room.teller.generate(JOB, 0.3)
            with pytest.raises(DeadlineExceeded):
                await texts(stream)
            room.unet.go.clear()
            with pytest.raises(DeadlineExceeded):
                await room.teller.segment(IMAGE, 0.1)
            await room.idle()
            assert len(room.llama.cancels) == len(room.unet.cancels) == 1

    run(test)


def test_the_deadline_counts_before_the_first_response(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.admit.clear()
            with pytest.raises(DeadlineExceeded):
                await room.teller.generate(JOB, 0.1)
            await room.idle()

    run(test)


def test_cancelled_work_is_held_until_it_has_ended(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            room.llama.stop_s = 0.3
            stream = await room.teller.generate(JOB, 10)
            await stream.aclose()
            await stream.aclose()
            await until(lambda: bool(room.llama.cancels))
            assert room.llama.active
            assert room.held_bytes == 2 * PAGE_BYTES
            await room.idle()
            assert room.states() == ["abandoned"]

    run(test)


def test_an_engine_that_fails_fails_one_request(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.failure = room.unet.failure = "[INVALID_ARG] token id out of range"
            stream = await room.teller.generate(JOB, 10)
            assert (await anext(stream)).text == "t0 "
            with pytest.raises(InvalidRequest, match="out of range"):
                await anext(stream)
            with pytest.raises(InvalidRequest):
                await anext(stream)
            with pytest.raises(InvalidRequest):
                await room.teller.segment(IMAGE, 10)
            room.llama.failure = room.unet.failure = None
            assert len(await texts(await room.teller.generate(JOB, 10))) == 3
            await room.teller.segment(IMAGE, 10)
            await room.idle()

    run(test)


def test_an_answer_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.hangup = True
            stream = await room.teller.generate(JOB, 10)
            with pytest.raises(UpstreamBroken):
                await texts(stream)
            await room.idle()

    run(test)


def test_a_dead_engine_fails_its_requests_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            room.unet.go.clear()
            stream = await room.teller.generate(JOB, 30)
            image = asyncio.create_task(room.teller.segment(IMAGE, 30))
            await until(lambda: bool(room.unet.active))
            room.llama.restart("boot-2")
            room.unet.restart("boot-2")
            for answer in (texts(stream), image):
                with pytest.raises(UpstreamBroken, match="restarted"):
                    await asyncio.wait_for(answer, 5)
            await room.idle()
            assert room.states() == ["void", "void"]

    run(test)


def test_an_engine_that_is_not_there_is_not_ready(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving() as url:
            triton = Triton(url)
            ledger = Ledger(time.monotonic)
            settings = Settings()
            admission = Admission(ledger, settings.admission, time.monotonic)
            engines = Engines(triton, ledger, admission)
            journal = Journal(tmp_path / "journal.sqlite3", 10)
            teller = Teller(engines, admission, ledger, triton, journal, Metrics(), settings, time.monotonic)
            with pytest.raises(NotReady):
                await teller.generate(JOB, 1)
            with pytest.raises(NotReady):
                teller.price_image(IMAGE)
            journal.close()

    run(test)


def test_a_slow_reader_holds_no_lease(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            stream = await room.teller.generate(JOB, 10)
            await room.idle()
            assert await texts(stream) == ["t0 ", "t1 ", "t2 "]

    run(test)


def test_expected_ends_are_learned_from_statements(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            await texts(await room.teller.generate(JOB, 10))
            assert room.teller.expected_s("llama", 6) == pytest.approx(1.0)

    run(test)


def test_closing_ends_everything(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            streams = [await room.teller.generate(JOB, 60) for _ in range(3)]
            await room.teller.close(5.0)
            assert room.held_bytes == 0
            assert not room.llama.active
            for stream in streams:
                with suppress(Exception):
                    await texts(stream)

    run(test)


routes = APIRouter()
Parts = Annotated[Services, Depends(services)]


@routes.post("/stream")
async def stream_route(request: Request, parts: Parts) -> Response:
    text_run = await unless_disconnected(request, parts.teller.generate(JOB, 20))

    async def lines() -> AsyncIterator[str]:
        async for chunk in text_run:
            yield f"data: {chunk.text}\n\n"

    return EventStream(text_run, lines())


@routes.post("/text")
async def text_route(request: Request, parts: Parts) -> Response:
    async def answer() -> str:
        text_run = await parts.teller.generate(JOB, 20)
        try:
            return "".join(await texts(text_run))
        finally:
            await text_run.aclose()

    return PlainTextResponse(await unless_disconnected(request, answer()))


@routes.post("/image")
async def image_route(request: Request, parts: Parts) -> Response:
    result = await unless_disconnected(request, parts.teller.segment(IMAGE, 20))
    return PlainTextResponse(str(result.mask.shape))


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Room, str, aiohttp.ClientSession]]:
    async with bank(folder) as room:
        app = create_app(room.services.settings, room.services)
        app.include_router(routes)
        async with serving_app(app) as url, aiohttp.ClientSession() as client:
            yield room, url, client


async def hang_up(client: aiohttp.ClientSession, url: str, when: Callable[[], bool]) -> None:
    """Sends a request and closes its socket once `when` holds."""

    async def visit() -> None:
        async with client.post(url) as answer:
            await answer.read()

    task = asyncio.create_task(visit())
    try:
        await until(when)
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_answers_arrive_through_the_web(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as (room, url, client):
            for path, text in {
                "/stream": "data: t0 \n\ndata: t1 \n\ndata: t2 \n\n",
                "/text": "t0 t1 t2 ",
                "/image": "(2, 3)",
            }.items():
                async with client.post(url + path) as answer:
                    assert (answer.status, await answer.text()) == (200, text)
            await room.idle()
            assert room.llama.cancels == room.unet.cancels == []

    run(test)


@pytest.mark.parametrize("path", ["/stream", "/text", "/image"])
def test_a_client_that_leaves_while_the_engine_works_ends_the_work(tmp_path: Path, path: str) -> None:
    async def test() -> None:
        async with served(tmp_path) as (room, url, client):
            room.llama.go.clear()
            room.unet.go.clear()
            engine = room.unet if path == "/image" else room.llama
            await hang_up(client, url + path, lambda: bool(engine.active))
            await room.idle()
            assert len(engine.cancels) == 1

    run(test)


def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_the_work(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as (room, url, client):
            room.llama.go.clear()
            async with client.post(url + "/stream") as answer:
                assert await answer.content.readline() == b"data: t0 \n"
                answer.close()
            await room.idle()
            assert room.states() == ["abandoned"]

    run(test)


@pytest.mark.parametrize("path", ["/stream", "/text"])
def test_a_client_that_leaves_before_the_first_response_ends_the_work(tmp_path: Path, path: str) -> None:
    async def test() -> None:
        async with served(tmp_path) as (room, url, client):
            room.llama.admit.clear()
            await hang_up(client, url + path, lambda: bool(room.llama.active))
            await room.idle()

    run(test)


@pytest.mark.parametrize("path", ["/stream", "/text"])
def test_a_client_that_leaves_the_line_leaves_no_trace(tmp_path: Path, path: str) -> None:
    async def test() -> None:
        async with served(tmp_path) as (room, url, client):
            room.llama.go.clear()
            holder = await room.teller.generate(WHOLE, 20)
            await hang_up(client, url + path, lambda: room.services.admission.waiting == 1)
            await until(lambda: room.services.admission.waiting == 0)
            assert room.held_bytes == 10 * PAGE_BYTES
            room.llama.go.set()
            await texts(holder)
            await room.idle()
            assert len(room.llama.seen) == 1

    run(test)


def test_a_storm_of_disconnects_leaves_nothing_behind(tmp_path: Path) -> None:
    dice = random.Random(7)

    async def visit(client: aiohttp.ClientSession, url: str) -> None:
        path = dice.choice(["/stream", "/text", "/image"])
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(dice.uniform(0, 0.4)), client.post(url + path) as answer:
                await answer.read()

    async def test() -> None:
        async with served(tmp_path) as (room, url, client):
            room.llama.stop_s = room.unet.stop_s = 0.02
            for engine in room.engines:
                engine.go.clear()
            visits = [asyncio.create_task(visit(client, url)) for _ in range(60)]
            for _ in range(20):
                await asyncio.sleep(dice.uniform(0, 0.03))
                for engine in room.engines:
                    engine.go.set()
                await asyncio.sleep(0.002)
                for engine in room.engines:
                    engine.go.clear()
            await asyncio.gather(*visits)
            await room.idle()
            room.llama.go.set()
            async with client.post(url + "/text") as answer:
                assert await answer.text() == "t0 t1 t2 "

    run(test)


def test_stopping_the_server_ends_what_runs(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            app = create_app(room.services.settings, room.services)
            app.include_router(routes)
            settings = Settings.model_validate({"server": {"shutdown_s": 0.5}})
            async with aiohttp.ClientSession() as client:
                async with serving_app(app, settings) as url:
                    answer = await client.post(url + "/stream")
                    assert await answer.content.readline() == b"data: t0 \n"
                async with answer:
                    with pytest.raises(aiohttp.ClientError):
                        await answer.read()
            assert room.services.admission.closed == "the server is shutting down"
            await room.idle()

    run(test)
