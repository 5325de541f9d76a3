"""Keeping a process running."""

import asyncio
import time
from pathlib import Path
from typing import Protocol

from common.errors import VramgateError
from frontend.child import Child
from frontend.restarts import Restarts
from frontend.steps import Steps

TAIL_LINES = 8
TAIL_COLUMNS = 300
UNUSABLE_SETTINGS = 2
"""Exit status of a process that cannot use its settings: another start would not help."""


class Part(Protocol):
    """A process that the service needs."""

    @property
    def name(self) -> str:
        """What an operator calls it."""

    @property
    def log(self) -> Path | None:
        """Where its output goes; None is where ours goes."""

    async def start(self) -> Child:
        """Starts it anew."""

    async def settle(self) -> None:
        """Returns once it serves; raises VramgateError when it never will."""


class Keeper:
    """Starts a part, and starts it again whenever it ends by itself."""

    def __init__(self, part: Part, steps: Steps, restarts: Restarts | None = None) -> None:
        self.settled = asyncio.Event()
        """Set once the part has served for the first time."""
        self._part = part
        self._steps = steps
        self._child: Child | None = None
        self._restarts = restarts or Restarts(time.monotonic)

    async def run(self) -> None:
        """For ever; raises VramgateError when the part does not come up the first time, or ends too often."""
        while True:
            fault = await self._one_life()
            wait_s = self._restarts.wait_s()
            if wait_s is None:
                raise VramgateError(f"given up after {self._restarts.most} ends: {fault}")
            self._steps.say(f"! {fault}")
            self._steps.say(f"  starting it again in {wait_s:g} s")
            await self.stop(0)
            await asyncio.sleep(wait_s)

    async def stop(self, grace_s: float) -> None:
        """Ends the process, if there is one, within `grace_s`."""
        if self._child is not None:
            await self._child.stop(grace_s)

    def kill(self) -> None:
        """Ends the process at once."""
        if self._child is not None:
            self._child.kill()

    async def _one_life(self) -> str:
        """From a start to the end, which is told; raises VramgateError when another start would not help."""
        self._child = await self._part.start()
        ended = asyncio.create_task(self._child.wait())
        settling = asyncio.create_task(self._part.settle())
        try:
            await asyncio.wait({ended, settling}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                settling.result()
                self.settled.set()
            status = await ended
            fault, hopeless = f"{self._part.name} ended with status {status}", status == UNUSABLE_SETTINGS
            fault += self._tail()
        except VramgateError as error:
            fault, hopeless = str(error), False
        finally:
            ended.cancel()
            settling.cancel()
            await asyncio.gather(ended, settling, return_exceptions=True)
        if hopeless or not self.settled.is_set():
            raise VramgateError(fault)
        return fault

    def _tail(self) -> str:
        """The last lines of its log; Triton's drawn tables say nothing here."""
        log = self._part.log
        if log is None or not log.is_file():
            return ""
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line]
        prose = [line[:TAIL_COLUMNS] for line in lines if line[0] not in "+|"]
        return "\n  ".join([f"; the end of {log}:", *prose[-TAIL_LINES:]])
