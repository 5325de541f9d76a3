import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated

import aiohttp
import pytest
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse

from common.settings import Settings
from frontend.app import create_app
from frontend.disconnect import EventStream, unless_disconnected
from frontend.services import Services, services
from tests.unit.bank import IMAGE, JOB, WHOLE, Room, bank, texts
from tests.unit.fake_engine import PAGE_BYTES
from tests.unit.web import run, serving_app, until

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
            assert room.states() == ["client_closed_request"]

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
