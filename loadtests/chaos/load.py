"""Clients that ask the same questions again and again, and remember every answer."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

IMAGE = Path(__file__).resolve().parents[2] / "docs" / "nuclei.png"
PROMPT = "The capital of France is"
SAME_CHARS = 8
"""So much of a greedy answer has to be the same every time: later tokens may differ with the batch, on a card."""
SAME_SHARE = 0.02
"""So much may the segmented area differ, of itself: half precision rounds otherwise in another batch."""
TRANSIT_S = 0.5
"""An answer that comes so soon after a fault was on its way already."""
SLACK_S = 1.0
"""What an answer may take beyond its deadline."""


@dataclass(frozen=True)
class Answer:
    """One request, as its client saw it; times on the monotonic clock."""

    model: str
    began_s: float
    ended_s: float
    status: int
    """HTTP status; 0 where the connection broke, or nothing came within the deadline and a few seconds."""
    right: bool
    """Whether a 200 says what the same question was answered before the fault."""
    deadline_s: float

    @property
    def seconds(self) -> float:
        """From the question to the answer."""
        return self.ended_s - self.began_s

    @property
    def hung(self) -> bool:
        """Whether its client waited longer than it had said it would."""
        return self.seconds > self.deadline_s + SLACK_S


@dataclass
class Load:
    """`texts` and `images` clients, each with one question at a time, every answer due within `deadline_s`."""

    url: str
    texts: int = 2
    images: int = 2
    deadline_s: float = 30.0
    max_tokens: int = 12
    answers: list[Answer] = field(default_factory=list)
    _expected: dict[str, Any] = field(default_factory=dict)

    @asynccontextmanager
    async def running(self, warm_s: float = 3.0) -> AsyncIterator[None]:
        """Asks during the block, which begins after the first answers; then lets every client have its last one."""
        async with aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(limit=0)) as web:
            self._expected = {"llama": await self._text(web), "unet": await self._image(web)}
            stop = asyncio.Event()
            asks = [("llama", self._text)] * self.texts + [("unet", self._image)] * self.images
            clients = [asyncio.create_task(self._client(web, model, ask, stop)) for model, ask in asks]
            try:
                await asyncio.sleep(warm_s)
                yield
            finally:
                stop.set()
                await asyncio.gather(*clients)

    def of(self, model: str, since_s: float = 0.0) -> list[Answer]:
        """Answers of one model that came after `since_s`."""
        return [answer for answer in self.answers if answer.model == model and answer.ended_s > since_s]

    def first_good_s(self, model: str, since_s: float) -> float:
        """Seconds from a fault to the first right answer that was not on its way by then; NaN where none came."""
        after = self.of(model, since_s + TRANSIT_S)
        good = [answer.ended_s for answer in after if answer.status == 200 and answer.right]
        return min(good, default=float("nan")) - since_s

    async def until_good(self, model: str, since_s: float, limit_s: float) -> None:
        """Waits for that answer, or `limit_s`."""
        while not self.first_good_s(model, since_s) >= 0 and time.monotonic() - since_s < limit_s:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def _client(
        self, web: aiohttp.ClientSession, model: str, ask: Callable[..., Any], stop: asyncio.Event
    ) -> None:
        while not stop.is_set():
            began_s, status, right = time.monotonic(), 0, False
            try:
                async with asyncio.timeout(self.deadline_s + 10):
                    told = await ask(web)
                status, right = 200, self._is_same(model, told)
            except aiohttp.ClientResponseError as error:
                status = error.status
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass
            self.answers.append(Answer(model, began_s, time.monotonic(), status, right, self.deadline_s))
            if status != 200:
                await asyncio.sleep(0.1)

    async def _text(self, web: aiohttp.ClientSession) -> str:
        body = {"model": "llama", "prompt": PROMPT, "max_tokens": self.max_tokens, "temperature": 0}
        async with web.post("/v1/completions", json=body, headers=self._headers, raise_for_status=True) as answer:
            return str((await answer.json())["choices"][0]["text"])

    async def _image(self, web: aiohttp.ClientSession) -> int:
        headers = self._headers | {"Content-Type": "image/png"}
        async with web.post(
            "/v1/segment?format=json", data=IMAGE.read_bytes(), headers=headers, raise_for_status=True
        ) as answer:
            return sum(int(one["area_pixels"]) for one in json.loads(await answer.text())["classes"])

    @property
    def _headers(self) -> dict[str, str]:
        return {"X-Request-Timeout": f"{self.deadline_s:g}"}

    def _is_same(self, model: str, told: Any) -> bool:
        expected = self._expected[model]
        if model == "llama":
            return bool(str(told)[:SAME_CHARS] == expected[:SAME_CHARS])
        return bool(abs(told - expected) <= SAME_SHARE * expected)


def tally(answers: list[Answer]) -> dict[str, int]:
    """How many answers had which status."""
    return {str(status): count for status, count in sorted(Counter(answer.status for answer in answers).items())}
