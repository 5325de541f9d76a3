"""Work whose engine's process ended under it, run once more by the next one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from common.errors import NotReady, UpstreamBroken
from frontend.engines import Engines
from frontend.ledger import Clock
from frontend.metrics import Metrics

Result = TypeVar("Result")

LOOK_S = 0.05


@dataclass
class Flight:
    """One try to run a request."""

    left_s: float
    """Until its deadline."""
    number: int = 0
    """How many were made before it."""
    boot_id: str | None = None
    """The process that was given the work; None while none was."""


class Reruns:
    """A second try for whom the first cost nothing but time.

    Inference changes nothing, so a request can be run twice. The first lease is void, or abandoned, before the second
    is asked for; a process that lives on may still work on the first, so there is no second then.
    """

    def __init__(self, engines: Engines, metrics: Metrics, clock: Clock) -> None:
        self._engines = engines
        self._metrics = metrics
        self._clock = clock

    async def run(
        self,
        model: str,
        timeout_s: float,
        attempt: Callable[[Flight], Awaitable[Result]],
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> Result:
        """What `attempt` gives, the first time or the second; both share `timeout_s`.

        `attempt` notes the process it gave the work to in the flight. `may_repeat` is asked when it failed: whether the
        client has not seen anything of the answer. Raises what the last attempt raised.
        """
        end_s = self._clock() + timeout_s
        flight = Flight(timeout_s)
        try:
            return await attempt(flight)
        except (UpstreamBroken, NotReady):
            left_s = end_s - self._clock()
            if flight.boot_id is None or not may_repeat() or not await self._succeeded(model, flight.boot_id, left_s):
                raise
        self._metrics.ran_again(model)
        return await attempt(Flight(max(0.0, end_s - self._clock()), number=1))

    async def _succeeded(self, model: str, boot_id: str, limit_s: float) -> bool:
        """Waits until another process takes work; False as soon as it is known that none will, and at the limit."""
        watch, asked_s = self._engines.watch(model), asyncio.get_running_loop().time()
        watch.wake.set()
        try:
            async with asyncio.timeout(limit_s):
                while (answer := watch.successor(boot_id, asked_s)) is None:  # noqa: ASYNC110 - polls change it
                    await asyncio.sleep(LOOK_S)
                return answer
        except TimeoutError:
            return False
