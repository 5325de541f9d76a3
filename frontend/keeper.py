"""The keeper: brings back a model whose process has died, hangs, or answers wrongly, while the model server lives."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from common.errors import RequestError
from common.sections import Keeper as KeeperSettings
from frontend import faults
from frontend.engines import MODELS, Engines, Outage
from frontend.metrics import Metrics
from frontend.tries import Tries
from frontend.triton import Triton, is_refusal, is_silence

LOG = logging.getLogger(__name__)

LOOK_S = 0.2


class Keeper:
    """Unloads and loads a model through the repository API when its process is gone, hangs or gives wrong answers.

    A bare load does nothing for a model that the server counts as loaded, dead or not, hence the unload; a process that
    hangs would survive that and keep its memory, so it is killed before. Whatever the old process held is voided by
    :class:`Engines`. A server that is down is left to whoever started it; one that hangs itself, or may not load
    models, is told to `last_resort`.
    """

    def __init__(
        self,
        triton: Triton,
        engines: Engines,
        metrics: Metrics,
        clock: Callable[[], float],
        settings: KeeperSettings,
        *,
        may_manage: bool,
        last_resort: Callable[[str], None],
        models: Sequence[str] = MODELS,
        look_s: float = LOOK_S,
    ) -> None:
        """`may_manage`: whether we hold the key of the server's management API; `look_s`: between two looks.

        `last_resort` hears why nothing can be done from here; again and again, while that is so.
        """
        self._triton = triton
        self._engines = engines
        self._metrics = metrics
        self._patience_s = settings.patience_s
        self._last_resort = last_resort
        self._look_s = look_s
        self._refusal = "" if may_manage else "the model server's admin key is not known (triton.admin_key)"
        """Why nothing can be restarted here; empty while it can."""
        self._tries = {model: Tries(clock, settings.max_restarts) for model in models}
        self._causes: dict[str, str] = {}
        """Model -> why it is restarted, until it answers or a load went well: half-way, it is merely unknown."""
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
        self._engines.examine(model)
        outage = self._engines.outage(model)
        if outage is not None and needs_restart(outage, self._patience_s):
            self._causes[model] = cause_of(outage)
        server_lives = outage is not None and model in self._causes and await self._triton.live()
        outage = self._engines.outage(model)  # it may have answered in the meantime
        if outage is None:
            self._forget(model)
        elif model in self._causes and not server_lives:
            self._forget(model)
            if outage.silent_s > self._patience_s:
                self._last_resort(f"the model server has not answered for {outage.silent_s:.0f} s")
        elif model in self._causes:
            await self._treat(model, outage, self._causes[model])

    def _forget(self, model: str) -> None:
        """It answers, or the server is down, and whoever starts that loads it."""
        self._failures.pop(model, None)
        if self._causes.pop(model, None):
            self._engines.explain(model, "")

    async def _treat(self, model: str, outage: Outage, cause: str) -> None:
        """One try if it is due, else the reason why not."""
        tries = self._tries[model]
        wait_s = tries.wait_s()
        if self._refusal:
            text = f"{cause}; it cannot be restarted from here: {self._refusal}"
            self._engines.explain(model, text, hopeless=True)
            self._last_resort(f"{model}: {text}")
        elif wait_s > 0:
            self._engines.explain(model, self._waiting(model, cause, wait_s), hopeless=tries.used_up)
        else:
            self._engines.explain(model, f"restarting, try {tries.made + 1}: {cause}")
            await self._restart(model, outage, cause)

    async def _restart(self, model: str, outage: Outage, cause: str) -> None:
        tries = self._tries[model]
        LOG.warning("%s: restarting, try %d: %s", model, tries.made + 1, cause)
        self._metrics.engine_restarted(model)
        self._failures.pop(model, None)
        try:
            if outage.silent_s > 0:
                self._engines.kill(model)
            await self._triton.unload(model)
            await self._triton.load(model)
            self._engines.renew(model)
            self._engines.explain(model, f"restarted, it has not answered yet; before: {cause}")
            self._causes.pop(model, None)
        except RequestError as error:
            self._note_failure(model, error)
        finally:
            tries.note()

    def _note_failure(self, model: str, error: RequestError) -> None:
        self._failures[model] = error.message
        LOG.error("%s could not be restarted: %s", model, error.message)
        if is_refusal(error):
            self._refusal = error.message
        if is_silence(error):
            self._last_resort(f"{model} could not be restarted: {error.message}")

    def _waiting(self, model: str, cause: str, wait_s: float) -> str:
        tries = self._tries[model]
        if tries.used_up:
            text = f"{cause}; after {tries.made} restarts within an hour the next one is in {wait_s:.0f} s"
        else:
            text = f"restarting, try {tries.made + 1} in {wait_s:.0f} s: {cause}"
        return f"{text}; the last one failed: {self._failures[model]}" if model in self._failures else text


def needs_restart(outage: Outage, patience_s: float) -> bool:
    """Whether the process is known to be dead or wrong, or has not worked for longer than any that does."""
    return outage.dead or bool(outage.fault) or max(outage.silent_s, outage.unready_s) > patience_s


def cause_of(outage: Outage) -> str:
    """The outage in a few words."""
    if outage.dead:
        return "its process is gone"
    if outage.fault:
        return outage.fault
    if outage.silent_s >= outage.unready_s:
        return f"no answer for {outage.silent_s:.0f} s"
    return f"not ready for {outage.unready_s:.0f} s: {outage.trouble}"
