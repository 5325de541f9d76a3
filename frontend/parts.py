"""The two processes of the service: the model server and the frontend."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from pathlib import Path

from common.errors import RequestError, VramgateError
from common.settings import Settings
from frontend import tritonserver
from frontend.child import Child
from frontend.last_resort import LAUNCHER_ENV
from frontend.service_client import ServiceClient, local_url
from frontend.steps import Steps
from frontend.triton import Triton

MODELS = ("unet", "llama")
"""In the order of loading, one after the other."""
LIVE_S = 120.0
"""For tritonserver to answer; the first start of the wheel's binary takes half a minute on a cold disk."""
READY_S = 60.0
"""For the frontend to have asked both engines."""
POLL_S = 0.1
LOG_BYTES = 16 * 2**20
"""A log that is longer when the model server starts is put aside, and the one put aside before it goes."""


class ModelServer:
    """Triton with both models loaded."""

    name = "tritonserver"

    def __init__(self, settings: Settings, environ: Mapping[str, str], admin_key: str | None, steps: Steps) -> None:
        self._settings = settings
        self._environ = environ
        self._admin_key = admin_key
        self._steps = steps
        self._state_dir = settings.state.dir.expanduser().resolve()
        self._elsewhere: tempfile.TemporaryDirectory[str] | None = None

    @cached_property
    def _links_dir(self) -> Path:
        """Where links with plain paths can be: the state directory, or one that goes when this object does."""
        if tritonserver.is_plain(self._state_dir):
            return self._state_dir
        self._elsewhere = tempfile.TemporaryDirectory(prefix="vramgate-", ignore_cleanup_errors=True)
        return Path(self._elsewhere.name)

    @property
    def log(self) -> Path:
        """Its output, and that of the models."""
        return self._state_dir / "tritonserver.log"

    async def start(self) -> Child:
        """The embedded server, with no model yet; what an earlier one left behind is removed."""
        installation = tritonserver.locate(self._environ)
        repository = tritonserver.model_repository(self._settings)
        command = tritonserver.command(
            self._settings,
            installation.binary,
            tritonserver.plain_backends(installation, self._links_dir),
            tritonserver.plain_repository(repository, self._links_dir),
            self._admin_key or "",
        )
        tritonserver.remove_shared_memory(self._settings)
        tritonserver.remove_process_ids(self._settings)
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        return await Child.start(self.name, command, tritonserver.environment(installation, self._environ), self.log)

    async def settle(self) -> None:
        """Waits for the server and loads what is not loaded; raises VramgateError."""
        url = self._settings.triton.address
        client = Triton(url, self._admin_key, grpc_address=self._settings.triton.grpc_address)
        await client.start()
        try:
            with self._steps.step(f"model server at {url}"):
                await _until(client.live, LIVE_S, f"no model server answers at {url}")
            for model in (*MODELS, *self._settings.guests.models):
                if not await _is_loaded(client, model):
                    await self._load(client, model)
        finally:
            await client.close()

    async def _load(self, client: Triton, model: str) -> None:
        limit_s = self._settings.triton.load_timeout_s
        with self._steps.step(f"loading {model}"):
            try:
                async with asyncio.timeout(limit_s):
                    await client.load(model)
            except RequestError as error:
                raise VramgateError(f"{model} cannot be loaded: {_reason(error.message)}; log: {self.log}") from None
            except TimeoutError:
                raise VramgateError(f"{model} is not loaded after {limit_s:g} s (triton.load_timeout_s)") from None


class Frontend:
    """The web service, ``python -m frontend.serve``."""

    name = "frontend"
    log = None

    def __init__(self, settings: Settings, environ: Mapping[str, str], steps: Steps) -> None:
        self._environ = environ
        self._client = ServiceClient(local_url(settings.server))
        self._steps = steps

    async def start(self) -> Child:
        """A new process; ``-P`` keeps the working directory from hiding our packages."""
        environ = dict(self._environ) | {LAUNCHER_ENV: str(os.getpid())}
        return await Child.start(self.name, [sys.executable, "-P", "-m", "frontend.serve"], environ)

    async def settle(self) -> None:
        """Waits until it answers and, for a while, until it is ready; raises VramgateError when it never answers."""
        with self._steps.step(f"frontend at {self._client.base_url}"):
            await _until(self._answers("/healthz"), LIVE_S, "the frontend does not answer")
            try:
                await _until(self._answers("/readyz"), READY_S, "the frontend is not ready")
            except VramgateError as error:
                self._steps.say(f"! {error}; why: {self._client.base_url}/readyz")

    def _answers(self, path: str) -> Callable[[], Awaitable[bool]]:
        return lambda: asyncio.to_thread(self._client.answers, path)


async def _is_loaded(client: Triton, model: str) -> bool:
    try:
        return (await client.look_up(f"/v2/models/{model}/ready")).status == 200
    except RequestError:
        return False


def _reason(text: str) -> str:
    """What model.py said, out of what Triton wraps around it."""
    return text.rpartition("TritonModelException: ")[2].partition("\n\nAt:")[0].strip()


async def _until(holds: Callable[[], Awaitable[bool]], limit_s: float, fault: str) -> None:
    """Asks until it holds; raises VramgateError with `fault` when it does not within `limit_s`."""
    latest_s = time.monotonic() + limit_s
    while not await holds():
        if time.monotonic() > latest_s:
            raise VramgateError(f"{fault} after {limit_s:g} s")
        await asyncio.sleep(POLL_S)
