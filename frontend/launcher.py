"""The parent of the service: starts tritonserver, loads the models, starts the frontend, and keeps both running.

Either can die without the other: what ends by itself is started again, the models are loaded again, and the frontend
answers 503 meanwhile. At the end the frontend goes first, then tritonserver, which would otherwise wait for the
frontend's open connections. Nothing of ours survives, however the launcher ends.
"""

import asyncio
import secrets
import signal
import sys
import time
from collections.abc import Mapping

from common import model_folder
from common.errors import VramgateError
from common.settings import Settings, to_environ
from frontend import doctor, tritonserver
from frontend.banner import banner
from frontend.child import Child
from frontend.last_resort import RESTART_SIGNAL
from frontend.lockfile import sole_user
from frontend.parts import Frontend, ModelServer
from frontend.steps import Steps
from frontend.supervision import Keeper

DRAIN_S = 2.5
"""What the frontend gets beyond the time for answers: cancelled work ends, the journal is closed."""
MODEL_SERVER_S = 0.5
"""What is left to tritonserver at the least, when the frontend has used up its own time; what it needs is 2 to 3 s."""
IMPATIENCE_S = 1.0
"""A second stop signal counts from so long after the first; wrappers are known to pass one on twice."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Launcher:
    """One run of the service, from the checks to the last process."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], steps: Steps) -> None:
        """`environ` is what the processes get; read again there, it must give `settings`."""
        admin_key = settings.triton.admin_key
        if settings.triton.url is None and admin_key is None:
            admin_key = secrets.token_urlsafe(24)
        if admin_key is not None:
            environ = dict(environ) | to_environ("triton", "admin_key", admin_key)
        self._settings = settings
        self._environ = environ
        self._steps = steps
        self._models = ModelServer(settings, environ, admin_key, steps)
        self._model_keeper = Keeper(self._models, steps)
        self._frontend_keeper = Keeper(Frontend(settings, environ, steps), steps)
        self._stop = asyncio.Event()
        self._stopped_s = 0.0

    async def run(self) -> None:
        """Until a stop signal; raises VramgateError when the service cannot be started or kept running."""
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        asyncio.get_running_loop().add_signal_handler(RESTART_SIGNAL, self._on_call_for_help)
        with sole_user(self._settings.state.dir.expanduser()):
            stopped = asyncio.create_task(self._stop.wait())
            work = asyncio.create_task(self._work())
            try:
                await asyncio.wait({stopped, work}, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    work.result()
            finally:
                for task in (stopped, work):
                    task.cancel()
                await asyncio.gather(stopped, work, return_exceptions=True)
                await self._stop_processes()

    def _on_signal(self) -> None:
        """The first asks for an orderly end, a later one ends at once."""
        if not self._stop.is_set():
            self._stopped_s = time.monotonic()
            self._stop.set()
        elif time.monotonic() - self._stopped_s > IMPATIENCE_S:
            self._frontend_keeper.kill()
            self._model_keeper.kill()

    def _on_call_for_help(self) -> None:
        """The frontend says that the model server answers no more; ended, it is started again."""
        self._steps.say("! the frontend asks for a new model server")
        self._model_keeper.kill()

    async def _work(self) -> None:
        require(self._settings)
        try:
            async with asyncio.TaskGroup() as keepers:
                if self._settings.triton.url is None:
                    await self._ensure_weights()
                    keepers.create_task(self._model_keeper.run())
                    await self._model_keeper.settled.wait()
                else:
                    await self._models.settle()
                keepers.create_task(self._frontend_keeper.run())
                await self._frontend_keeper.settled.wait()
                self._steps.say(banner(self._settings, self._models.log))
        except* VramgateError as group:
            raise group.exceptions[0] from None

    async def _ensure_weights(self) -> None:
        """Makes the demo model's folder where it is missing; a folder of the operator's own has been checked."""
        if (model_folder.demo_folder(self._settings.state.cache_dir) / "config.json").is_file():
            return
        if self._settings.llama.model != model_folder.DEMO_NAME:
            return
        command = [sys.executable, "-P", "-m", "backend.checkpoint"]
        child = await Child.start("checkpoint", command, self._environ)
        try:
            if await child.wait():
                raise VramgateError("the demo model could not be made: see above")
        finally:
            await child.stop(0)

    async def _stop_processes(self) -> None:
        """The frontend first, then tritonserver; together in ``server.drain_s``, ``server.shutdown_s`` and 3 s."""
        server = self._settings.server
        frontend_s = server.drain_s + server.shutdown_s + DRAIN_S
        latest_s = time.monotonic() + frontend_s + MODEL_SERVER_S
        with self._steps.step("stopping"):
            await self._frontend_keeper.stop(frontend_s)
            await self._model_keeper.stop(latest_s - time.monotonic())
        if self._settings.triton.url is None:
            tritonserver.remove_shared_memory(self._settings)
            tritonserver.remove_process_ids(self._settings)


def require(settings: Settings) -> None:
    """Raises VramgateError with everything that stands in the way of a start, and what to do about each."""
    findings = [*doctor.requirements(settings), *doctor.ports(settings)]
    bad = [finding for finding in findings if finding.level is doctor.Level.BAD]
    if bad:
        raise VramgateError("\n".join(f"{finding.subject}: {finding.says}; {finding.advice}" for finding in bad))


def launch(settings: Settings, environ: Mapping[str, str], steps: Steps) -> None:
    """Runs the service in this thread, which must be the main one, until a stop signal; raises VramgateError."""
    asyncio.run(Launcher(settings, environ, steps).run())
