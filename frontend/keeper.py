"""The keeper: brings back a model whose process has died or hangs, while the model server itself lives."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from common.errors import RequestError
from frontend import faults
from frontend.engines import MODELS, Engines, Outage
from frontend.metrics import Metrics
from frontend.triton import Triton, is_refusal

LOG = logging.getLogger(__name__)

LOOK_S = 0.2
PATIENCE_S = 30.0
"""Silence that no load of a machine explains: a process that is only slow is never restarted for it."""
FIRST_S = 1.0
LONGEST_S = 60.0
MOST = 10
WINDOW_S = 3600.0


class Tries:
    """How soon a model may be restarted again: waits double from 1 to 60 s, at most `most` tries within `window_s`."""

    def __init__(self, clock: Callable[[], float], most: int = MOST, window_s: float = WINDOW_S) -> None:
        self._clock = clock
        self._most = most
        self._window_s = window_s
        self._ends_s: deque[float] = deque()

    @property
    def made(self) -> int:
        """Tries within the window."""
        while self._ends_s and self._clock() - self._ends_s[0] >= self._window_s:
            self._ends_s.popleft()
        return len(self._ends_s)

    @property
    def used_up(self) -> bool:
        """Whether the next one has to wait until the window lets go of an old one."""
        return self.made >= self._most

    def wait_s(self) -> float:
        """Seconds until the next try may begin; 0 when it may now."""
        if not self.made:
            return 0.0
        due_s = self._ends_s[-1] + min(LONGEST_S, FIRST_S * 2.0 ** (self.made - 1))
        if self.used_up:
            due_s = self._ends_s[0] + self._window_s
        return max(0.0, due_s - self._clock())

    def note(self) -> None:
        """One try has ended now, well or badly."""
        self._ends_s.append(self._clock())


class Keeper:
    """Unloads and loads a model through the repository API when its process is gone, or silent for `patience_s`.

    A bare load does nothing for a model that the server counts as loaded, dead or not, hence the unload. Whatever the
    old process held is voided by :class:`Engines` when the new one answers. A server that is down itself is left to
    whoever started it, and one that refuses is not asked again.
    """

    def __init__(
        self,
        triton: Triton,
        engines: Engines,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        may_manage: bool,
        models: Sequence[str] = MODELS,
        patience_s: float = PATIENCE_S,
        look_s: float = LOOK_S,
    ) -> None:
        """`may_manage`: whether we hold the key of the server's management API; `look_s`: between two looks."""
        self._triton = triton
        self._engines = engines
        self._metrics = metrics
        self._patience_s = patience_s
        self._look_s = look_s
        self._refusal = "" if may_manage else "the model server's admin key is not known (triton.admin_key)"
        """Why nothing can be restarted here; empty while it can."""
        self._tries = {model: Tries(clock) for model in models}
        self._causes: dict[str, str] = {}
        """Model -> why it is restarted, from the first try until it answers: half-way, it is merely unknown."""
        self._failures: dict[str, str] = {}
        """Model -> why its last try failed."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begins to watch; does not wait."""
        self._tasks = [asyncio.create_task(self._run(model), name=f"keep {model}") for model in self._tries]

    async def close(self) -> None:
        """Ends the watch; a load under way goes on in the server."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, model: str) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            try:
                await self._look(model)
            except Exception as error:  # the next look must still come
                LOG.error("%s could not be looked after: %s", model, faults.describe(error))

    async def _look(self, model: str) -> None:
        outage = self._engines.outage(model)
        if outage is not None and needs_restart(outage, self._patience_s):
            self._causes[model] = cause_of(outage)
        if outage is None or (model in self._causes and not await self._triton.live()):
            self._forget(model)
        elif model in self._causes:
            await self._treat(model, self._causes[model])

    def _forget(self, model: str) -> None:
        """It answers, or the server is down, and whoever starts that loads it."""
        self._failures.pop(model, None)
        if self._causes.pop(model, None):
            self._engines.explain(model, "")

    async def _treat(self, model: str, cause: str) -> None:
        """One try if it is due, else the reason why not."""
        tries = self._tries[model]
        wait_s = tries.wait_s()
        if self._refusal:
            self._engines.explain(model, f"{cause}; it cannot be restarted from here: {self._refusal}")
        elif wait_s > 0:
            self._engines.explain(model, self._waiting(model, cause, wait_s))
        else:
            self._engines.explain(model, f"restarting, try {tries.made + 1}: {cause}")
            await self._restart(model, cause)

    async def _restart(self, model: str, cause: str) -> None:
        tries = self._tries[model]
        LOG.warning("%s: restarting, try %d: %s", model, tries.made + 1, cause)
        self._metrics.engine_restarted(model)
        self._failures.pop(model, None)
        try:
            await self._triton.unload(model)
            await self._triton.load(model)
            self._engines.renew(model)
        except RequestError as error:
            self._failures[model] = error.message
            if is_refusal(error):
                self._refusal = error.message
            LOG.error("%s could not be restarted: %s", model, error.message)
        finally:
            tries.note()

    def _waiting(self, model: str, cause: str, wait_s: float) -> str:
        tries = self._tries[model]
        if tries.used_up:
            text = f"{cause}; after {tries.made} restarts within an hour the next one is in {wait_s:.0f} s"
        else:
            text = f"restarting, try {tries.made + 1} in {wait_s:.0f} s: {cause}"
        return f"{text}; the last one failed: {self._failures[model]}" if model in self._failures else text


def needs_restart(outage: Outage, patience_s: float) -> bool:
    """Whether the process is known to be dead, or has been silent for longer than any that works."""
    return outage.dead or outage.silent_s > patience_s


def cause_of(outage: Outage) -> str:
    """The outage in a few words."""
    return "its process is gone" if outage.dead else f"no answer for {outage.silent_s:.0f} s"
