"""Leases end with their work, however clients and engines part."""

import asyncio
import io
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
import pytest
from PIL import Image

from common.wire import LlamaLimits
from frontend.triton import Triton
from tests.integration.running import Running

LEASE_S = 2.0
"""A lease ends at most so long after its work."""
IDLE_S = 60.0
MODELS = ("llama", "unet")
PROMPT = "Once upon a time"


@dataclass
class Visitor:
    """A client of the frontend, and an ear at the engines."""

    web: aiohttp.ClientSession
    triton: Triton

    async def ledger(self) -> dict[str, Any]:
        async with self.web.get("/v1/ledger") as answer:
            told = await answer.json()
        assert isinstance(told, dict)
        return told

    async def limits(self) -> LlamaLimits:
        limits = (await self.triton.status("llama")).llama
        assert limits is not None
        return limits

    async def long(self) -> int:
        """Output tokens that take the engine long enough to be left."""
        return (await self.limits()).context_tokens - 100

    async def working(self) -> set[str]:
        """Leases the engines work for, as they say themselves."""
        return {lease.id for model in MODELS for lease in (await self.triton.status(model)).leases}

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(IDLE_S):
            while not await holds():  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(0.02)

    async def settled(self) -> None:
        """Waits for the end of all work, then for the end of its leases; fails the test if the latter takes long."""

        async def at_rest() -> bool:
            return not await self.working()

        async def paid_back() -> bool:
            return not (await self.ledger())["leases"]

        await self.until(at_rest)
        ended_s = time.monotonic()
        await self.until(paid_back)
        assert time.monotonic() - ended_s < LEASE_S
        accounts = (await self.ledger())["accounts"]
        assert {account["name"]: account["held_bytes"] for account in accounts} == dict.fromkeys(
            (account["name"] for account in accounts), 0
        )

    async def text(self, stream: bool, max_tokens: int, prompt: str = PROMPT, **headers: str) -> tuple[int, bytes]:
        body = {"model": "llama", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": stream}
        async with self.web.post("/v1/completions", json=body, headers=headers) as answer:
            return answer.status, await answer.read()

    async def generate(self, max_tokens: int) -> tuple[int, bytes]:
        body = {"text_input": PROMPT, "max_tokens": max_tokens}
        async with self.web.post("/v2/models/llama/generate", json=body) as answer:
            return answer.status, await answer.read()

    async def segment(self, edge: int) -> tuple[int, bytes]:
        async with self.web.post(
            "/v1/segment", data=io.BytesIO(picture(edge)), headers={"Content-Type": "image/png"}
        ) as answer:
            return answer.status, await answer.read()

    async def leave(self, request: Coroutine[Any, Any, tuple[int, bytes]], when: Callable[[], Awaitable[bool]]) -> None:
        """Sends the request, and closes its socket once `when` holds."""
        task = asyncio.create_task(request)

        async def reached() -> bool:
            return task.done() or await when()

        try:
            await self.until(reached)
            assert not task.done(), f"it was answered before it could be left: {task.result()}"
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def busy(self) -> bool:
        return bool(await self.working())


def picture(edge: int) -> bytes:
    pixels = np.random.default_rng(edge).integers(0, 256, (edge, edge, 3), dtype=np.uint8)
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        return file.getvalue()


@asynccontextmanager
async def visiting(service: Running) -> AsyncIterator[Visitor]:
    triton = Triton(service.triton_url, control_s=IDLE_S)
    await triton.start()
    try:
        async with aiohttp.ClientSession(service.url, connector=aiohttp.TCPConnector(limit=0)) as web:
            yield Visitor(web, triton)
    finally:
        await triton.close()


def visit(service: Running, test: Callable[[Visitor], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with visiting(service) as visitor:
            await visitor.settled()
            await test(visitor)
            await visitor.settled()
            assert (await visitor.text(stream=False, max_tokens=2))[0] == 200
            await visitor.settled()

    asyncio.run(run())


@pytest.mark.parametrize("route", ["stream", "text", "v2", "image"])
def test_a_client_that_leaves_ends_its_work_and_its_lease(service: Running, route: str) -> None:
    async def test(visitor: Visitor) -> None:
        tokens = await visitor.long()
        request = {
            "stream": lambda: visitor.text(stream=True, max_tokens=tokens),
            "text": lambda: visitor.text(stream=False, max_tokens=tokens),
            "v2": lambda: visitor.generate(tokens),
            "image": lambda: visitor.segment(2500),
        }[route]()
        await visitor.leave(request, visitor.busy)

    visit(service, test)


def test_a_client_that_leaves_before_the_first_token_ends_its_work(service: Running) -> None:
    async def test(visitor: Visitor) -> None:
        prompt = "word " * (await visitor.long())
        await visitor.leave(visitor.text(stream=True, max_tokens=10, prompt=prompt), visitor.busy)

    visit(service, test)


def test_a_client_that_leaves_the_waiting_line_takes_nothing_along(service: Running) -> None:
    async def test(visitor: Visitor) -> None:
        async def waiting() -> bool:
            return bool((await visitor.ledger())["waiting"])

        async def gone() -> bool:
            return not await waiting()

        limits = await visitor.limits()
        most = limits.context_tokens - 100
        too_much = limits.pages * limits.page_tokens - most
        holder = asyncio.create_task(visitor.text(stream=True, max_tokens=10, prompt="word " * most))
        try:
            await visitor.until(visitor.busy)
            await visitor.leave(visitor.text(stream=False, max_tokens=10, prompt="word " * too_much), waiting)
            await visitor.until(gone)
            assert len(await visitor.working()) == 1
        finally:
            holder.cancel()
            await asyncio.wait([holder])

    visit(service, test)


def test_a_deadline_ends_the_work(service: Running) -> None:
    async def test(visitor: Visitor) -> None:
        status, body = await visitor.text(False, await visitor.long(), **{"X-Request-Timeout": "0.5"})
        assert status == 504, body

    visit(service, test)


def test_sixty_random_disconnects_leave_nothing_behind(service: Running) -> None:
    dice = random.Random(60)

    async def one(visitor: Visitor) -> int | None:
        kinds: list[Callable[[], Coroutine[Any, Any, tuple[int, bytes]]]] = [
            lambda: visitor.text(stream=True, max_tokens=dice.choice([4, 64, 512])),
            lambda: visitor.text(stream=False, max_tokens=dice.choice([4, 64, 512])),
            lambda: visitor.text(stream=True, max_tokens=8, prompt="word " * 1000),
            lambda: visitor.generate(64),
            lambda: visitor.segment(dice.choice([40, 400, 1200])),
        ]
        request = dice.choice(kinds)()
        try:
            async with asyncio.timeout(dice.uniform(0, 3)):
                return (await request)[0]
        except TimeoutError:
            return None

    async def test(visitor: Visitor) -> None:
        answers = await asyncio.gather(*(one(visitor) for _ in range(60)))
        assert answers.count(None) > 10
        assert set(answers) <= {None, 200, 429}
        for model in MODELS:
            assert (await visitor.triton.status(model)).unleased_bytes == 0

    visit(service, test)
