"""The service in pieces, for benchmarks that kill one of them: a real tritonserver, and a frontend at a time."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from common import settings as settings_module
from common.wire import EngineStatus
from frontend import tritonserver
from frontend.child import Child
from frontend.parts import ModelServer
from frontend.steps import Steps
from frontend.triton import Triton
from loadtests import dummy_model
from tests.integration.running import environ, free_ports

MODELS = ("llama", "unet")
TINY: dict[str, Any] = dummy_model.LLAMA_3_8B | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 2**16,
    "bos_token_id": 1,
}
READY_S = 120.0
STOP_S = 12.0


class Stack:
    """A model server that stays, and the frontend in front of it, which can be killed and started again."""

    def __init__(self, folder: Path, given: Mapping[str, str]) -> None:
        self.port, http, grpc, metrics = free_ports(4)
        self.url = f"http://127.0.0.1:{self.port}"
        ports = {"server.port": self.port, "triton.http_port": http, "triton.grpc_port": grpc}
        named = {name: str(port) for name, port in (ports | {"triton.metrics_port": metrics}).items()}
        self._environ = environ(folder / "state", named | dict(given) | {"log.level": "warning"})
        self.settings = settings_module.load(self._environ)
        self.triton_url = self.settings.triton.address
        self.triton = Triton(self.triton_url, control_s=60.0)
        self._frontend: Child | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Stack"]:
        """Everything up for the time of the block."""
        server = ModelServer(self.settings, self._environ, "bench", Steps(Console(quiet=True)))
        child = await server.start()
        await self.triton.start()
        try:
            await server.settle()
            await self.start_frontend()
            yield self
        finally:
            await self.triton.close()
            if self._frontend is not None:
                await self._frontend.stop(STOP_S)
            await child.stop(STOP_S)
            tritonserver.remove_shared_memory(self.settings)

    async def start_frontend(self) -> None:
        """A new one; returns once it is ready."""
        command = [sys.executable, "-P", "-m", "frontend.serve"]
        self._frontend = await Child.start("frontend", command, self._environ)
        async with asyncio.timeout(READY_S), aiohttp.ClientSession() as web:
            while not await _is_ready(web, self.url):  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(0.05)

    async def kill_frontend(self) -> None:
        """Ends it as the kernel would: nothing of it gets to say goodbye."""
        assert self._frontend is not None
        os.kill(self._frontend.pid, signal.SIGKILL)
        await self._frontend.wait()

    async def ledger(self) -> dict[str, Any]:
        """What the frontend says of its books."""
        async with aiohttp.ClientSession() as web, web.get(f"{self.url}/v1/ledger") as answer:
            told = await answer.json()
        assert isinstance(told, dict)
        return told

    async def held_bytes(self) -> int:
        """What all leases hold together, and what engines hold without one."""
        accounts = (await self.ledger())["accounts"]
        return sum(account["held_bytes"] + account["unleased_bytes"] for account in accounts)

    async def working(self) -> list[EngineStatus]:
        """The engines that work for somebody, as they say themselves."""
        told = [await self.triton.status(model) for model in MODELS]
        return [status for status in told if status.leases or status.used_bytes]

    async def engines_at_rest(self, limit_s: float = 120.0) -> None:
        """Returns once no engine works for anybody."""
        async with asyncio.timeout(limit_s):
            while await self.working():  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(0.02)


def tiny(folder: Path, **more: str) -> Stack:
    """Real engines over random weights: a text model of two layers, and the demo UNet."""
    llama = {"llama.model": str(dummy_model.write(folder / "tiny", TINY)), "llama.dummy_weights": "true"}
    small = {"llama.page_tokens": "64", "llama.pages": "1024", "unet.canvas": "16MiB", "card.total": "2GiB"}
    threads = {"llama.threads": "1", "unet.threads": "1"}
    return Stack(folder, llama | small | threads | {name.replace("__", "."): value for name, value in more.items()})


def echo(folder: Path) -> Stack:
    """Models that cost nothing."""
    for model in MODELS:
        (folder / "echo" / model / "1").mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("echo_model.py"), folder / "echo" / model / "1" / "model.py")
        shutil.copy(f"model_repository/{model}/config.pbtxt", folder / "echo" / model / "config.pbtxt")
    _undecouple(folder / "echo" / "llama" / "config.pbtxt")
    return Stack(folder, {"triton.model_repository": str(folder / "echo")})


def _undecouple(config: Path) -> None:
    """The echo answers once, so its ``execute`` returns its answers."""
    config.write_text(
        config.read_text().replace("decoupled: True", "decoupled: False").replace("decoupled: true", "decoupled: false")
    )


async def _is_ready(web: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with web.get(f"{url}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
