"""Clients of every kind that come, and leave when they have had enough."""

import asyncio
import io
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
from PIL import Image

KINDS = ("stream", "whole", "before_first_byte", "queued", "image")
PATIENCE_S: Mapping[str, float] = {"stream": 1.0, "whole": 1.0, "before_first_byte": 0.02, "queued": 1.0, "image": 1.5}
"""The longest that one waits."""


class Load:
    """Requests to the service at `url`; whoever is still there at the end of its patience closes its socket."""

    def __init__(self, url: str, dice: random.Random) -> None:
        self.ends: Counter[str] = Counter()
        """``<kind> left`` or ``<kind> <status>``; status 0 where the connection broke."""
        self._url = url
        self._dice = dice

    @asynccontextmanager
    async def running(self, clients: int) -> AsyncIterator[None]:
        """So many clients for the time of the block, one request after the other."""

        async def one() -> None:
            while True:
                if await self.visit(self._dice.choice(KINDS)) == 0:
                    await asyncio.sleep(0.05)

        tasks = [asyncio.create_task(one()) for _ in range(clients)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def visit(self, kind: str) -> int | None:
        """One request; its status, 0 where the connection broke, None where the client left."""
        status: int | None = 0
        try:
            async with asyncio.timeout(self._dice.uniform(0, PATIENCE_S[kind])):
                status = await self._ask(kind)
        except aiohttp.ClientError:
            pass
        except TimeoutError:
            status = None
        self.ends[f"{kind} {'left' if status is None else status}"] += 1
        return status

    async def _ask(self, kind: str) -> int:
        """On a connection of its own, which closes with it."""
        path, options = self._image() if kind == "image" else self._text(kind)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as web,
            web.post(self._url + path, **options) as answer,
        ):
            await answer.read()
            return answer.status

    def _text(self, kind: str) -> tuple[str, dict[str, Any]]:
        tokens, output = {
            "stream": (8, self._dice.choice((4, 64, 512))),
            "whole": (8, self._dice.choice((4, 64, 512))),
            "before_first_byte": (2000, 16),
            "queued": (8, 50_000),
        }[kind]
        stream = kind in ("stream", "before_first_byte") or self._dice.random() < 0.5
        body = {"model": "llama", "prompt": [5] * tokens, "max_tokens": output, "stream": stream and kind != "whole"}
        return "/v1/completions", {"json": body}

    def _image(self) -> tuple[str, dict[str, Any]]:
        edge = self._dice.randrange(48, 300)
        pixels = np.full((edge, edge, 3), self._dice.randrange(256), np.uint8)
        with io.BytesIO() as file:
            Image.fromarray(pixels).save(file, "PNG", compress_level=1)
            return "/v1/segment", {"data": file.getvalue(), "headers": {"Content-Type": "image/png"}}
