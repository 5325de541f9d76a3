"""A model of the language engine's speed: continuous batching, one step after the other, with no step really taken."""

import asyncio
import json
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

from common.errors import SettingsError
from estimator import llama
from estimator.llama import LlamaShape

GUESSED_LENGTH = 512
"""Tokens of a sequence in a step whose speed is guessed."""


@dataclass(frozen=True)
class Rates:
    """How long the steps of an engine take."""

    decode_steps: tuple[tuple[int, float], ...]
    """(sequences, seconds) of a step that decodes one token of each; straight lines between."""
    prefill_token_s: float
    """Seconds that one prompt token adds to a step."""
    step_tokens: int = 512
    """Tokens in one step: decodes first, then a piece of a prompt."""
    max_batch: int = 256
    """Sequences in work at once."""

    @classmethod
    def from_record(cls, path: Path) -> "Rates":
        """The rates in a record of ``python -m loadtests.bench_llama``; raises SettingsError where it is none."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            steps = sorted((row["batch"], row["s"]) for row in record["rows"] if row["what"] == "decode step")
            prefill_s = record["figures"]["ttft_ms_1024"] / 1000 - steps[0][1]
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            text = f"{path}: no record of bench_llama with decode steps and ttft_ms_1024: {error}"
            raise SettingsError(text) from None
        return cls(tuple(steps), prefill_s / 1024)

    @classmethod
    def guess(cls, shape: LlamaShape, bytes_per_s: float, flops_per_s: float) -> "Rates":
        """What a 16-bit model does on a card of that bandwidth and arithmetic.

        A decode step reads the weights and the cached tokens of its batch at three quarters of the bandwidth, a prompt
        token takes two operations a weight at half of the arithmetic.
        """
        weights = llama.weights_bytes(shape, "bfloat16")
        cached = GUESSED_LENGTH * llama.page_bytes(shape, "bfloat16", 1)
        steps = tuple((batch, (weights + batch * cached) / (0.75 * bytes_per_s)) for batch in (1, 256))
        return cls(steps, weights / (0.5 * flops_per_s))

    def decode_s(self, batch: int) -> float:
        """Seconds of a step that decodes `batch` sequences; 0 for none."""
        if batch == 0:
            return 0.0
        steps = self.decode_steps
        index = min(max(1, bisect_left(steps, (batch, 0.0))), len(steps) - 1)
        (b0, s0), (b1, s1) = (steps[index - 1], steps[index]) if len(steps) > 1 else ((0, steps[0][1]), steps[0])
        return s0 + (s1 - s0) * (batch - b0) / (b1 - b0)


@dataclass
class _Job:
    prompt_tokens: float
    """Still to be read."""
    output_tokens: int
    done: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False


class EngineModel:
    """Runs jobs on the time of the running loop. Between two changes of the batch all steps take equally long."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Job] = deque()
        """Not yet, or not wholly, read; the first is being read."""
        self._decoding: list[tuple[float, int, _Job]] = []
        """(number of the step with its last token, order, job), the soonest first."""
        self._batch = 0
        self._order = count()
        self._steps = 0.0
        """Steps taken so far."""
        self._since_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, prompt_tokens: int, output_tokens: int) -> None:
        """Returns when the last token is there; cancelled, the job leaves the batch."""
        job = _Job(prompt_tokens, output_tokens)
        self._advance()
        self._queue.append(job)
        self._plan()
        try:
            await job.done.wait()
        except asyncio.CancelledError:
            self._advance()
            self._drop(job)
            self._plan()
            raise

    def _advance(self) -> None:
        """Takes the steps that have passed since the last change."""
        now_s = self._loop.time()
        step_s, chunk = self._step()
        steps = (now_s - self._since_s) / step_s if step_s else 0.0
        self._since_s = now_s
        self._steps += steps
        if chunk:
            self._read(self._queue[0], steps * chunk)
        while self._decoding and (self._decoding[0][2].gone or self._decoding[0][0] <= self._steps + 1e-6):
            _, _, job = heappop(self._decoding)
            if not job.gone:
                self._batch -= 1
                job.done.set()

    def _read(self, job: _Job, tokens: float) -> None:
        job.prompt_tokens -= tokens
        if job.prompt_tokens <= 1e-6:
            self._queue.popleft()
            self._batch += 1
            heappush(self._decoding, (self._steps + job.output_tokens, next(self._order), job))

    def _drop(self, job: _Job) -> None:
        if job in self._queue:
            self._queue.remove(job)
        elif not job.done.is_set():
            job.gone = True
            self._batch -= 1

    def _step(self) -> tuple[float, int]:
        """Seconds of a step as things stand, and the prompt tokens in it."""
        rates = self._rates
        chunk = max(1, rates.step_tokens - self._batch) if self._queue and self._batch < rates.max_batch else 0
        return rates.decode_s(self._batch) + chunk * rates.prefill_token_s, chunk

    def _plan(self) -> None:
        """Wakes up at the next change."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._decoding and self._decoding[0][2].gone:
            heappop(self._decoding)
        step_s, chunk = self._step()
        ahead = [self._decoding[0][0] - self._steps] if self._decoding else []
        if chunk:
            ahead.append(self._queue[0].prompt_tokens / chunk)
        if ahead:
            self._timer = self._loop.call_later(max(0.0, min(ahead)) * step_s, self._wake)

    def _wake(self) -> None:
        self._advance()
        self._plan()
