"""The canary: a question with a known answer, for engines that no client's answer has proved."""

import asyncio
import logging
from collections.abc import Sequence

from common.errors import InvalidRequest, RequestError
from common.sections import Keeper as KeeperSettings
from frontend import faults
from frontend.engines import MODELS, Engines
from frontend.metrics import Metrics
from frontend.triton import Triton, is_silence

LOG = logging.getLogger(__name__)

LOOK_S = 0.2
AGAIN_S = 1.0
"""Between two questions to an engine that has given no good answer yet."""
FAILURES = 2
"""Bad answers, one after the other, that speak against a process."""


class Canary:
    """Asks a new process before it takes work, and an idle one every ``keeper.canary_s``; who works is left alone.

    Health routes say only that something listens; this goes the way of clients' work, through the device and back.
    """

    def __init__(
        self,
        triton: Triton,
        engines: Engines,
        metrics: Metrics,
        settings: KeeperSettings,
        *,
        models: Sequence[str] = MODELS,
        look_s: float = LOOK_S,
        again_s: float = AGAIN_S,
    ) -> None:
        """`look_s`: between two looks whether one is due. From here on new processes need a proof."""
        self._triton = triton
        self._engines = engines
        self._metrics = metrics
        self._every_s = settings.canary_s
        self._limit_s = settings.patience_s
        self._models = models
        self._look_s = look_s
        self._again_s = again_s
        self._tasks: list[asyncio.Task[None]] = []
        engines.needs_proof = True

    async def start(self) -> None:
        """Begins to watch; does not wait."""
        self._tasks = [asyncio.create_task(self._run(model), name=f"canary {model}") for model in self._models]

    async def close(self) -> None:
        """Ends the watch."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, model: str) -> None:
        failures = 0
        while True:
            await asyncio.sleep(self._again_s if failures else self._look_s)
            try:
                if failures or self._is_due(model):
                    failures = await self._ask(model, failures)
            except Exception as error:  # the next look must still come
                LOG.error("the canary of %s failed: %s", model, faults.describe(error))

    def _is_due(self, model: str) -> bool:
        unproven_s = self._engines.watch(model).unproven_s(asyncio.get_running_loop().time())
        return unproven_s is not None and unproven_s >= self._every_s

    async def _ask(self, model: str, failures: int) -> int:
        """How many bad answers there were by now, one after the other."""
        watch = self._engines.watch(model)
        if watch.status is None or watch.lost:
            return 0
        boot_id = watch.status.boot_id
        try:
            fault = await self._fault(model)
        except RequestError as error:  # it is gone, and that is seen elsewhere
            LOG.info("%s could not be asked its canary: %s", model, error.message)
            return 0
        self._metrics.canary_answered(model, good=not fault)
        if not fault:
            watch.prove(boot_id, asyncio.get_running_loop().time(), by_canary=True)
            return 0
        LOG.error("%s: its canary failed: %s", model, fault)
        if failures + 1 >= FAILURES:
            watch.accuse(boot_id, f"its canary failed: {fault}")
        return failures + 1

    async def _fault(self, model: str) -> str:
        """What is wrong with its answer; empty where nothing is. Raises what says nothing about the engine."""
        try:
            result = await self._triton.canary(model, self._limit_s)
        except InvalidRequest:  # made before there were canaries
            return ""
        except RequestError as error:
            if is_silence(error):
                return error.message
            raise
        return "" if result.ok else result.reason or "it gives no reason"
