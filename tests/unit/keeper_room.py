"""The keeper and the canary over a model server whose llama is told how to be."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from aiohttp import web

from common.sections import Admission as AdmissionSettings
from common.sections import Keeper as KeeperSettings
from common.wire import CanaryResult, EngineStatus
from frontend.admission import Admission
from frontend.canary import Canary
from frontend.engines import Engines
from frontend.keeper import Keeper
from frontend.ledger import Ledger
from frontend.metrics import Metrics
from tests.unit.engine_bench import STATUS, UNET
from tests.unit.fake_triton import client
from tests.unit.web import until

DEAD = "Stub process 'llama_0_0' is not healthy."
UNKNOWN = "Request for unknown model: 'llama' is not found"
PATIENCE_S = 0.8
HASTE = 2
"""How much faster the keeper's clock goes: its waits are seconds."""


@dataclass
class Server:
    """A model server whose llama is told how to be: "well", an error's text, or "silent"."""

    llama: str = "well"
    canary: str = ""
    """What is wrong with its answer to a known question."""
    canaries: int = 0
    answers: int = 0
    """Statuses of its llama that were told."""
    live: bool = True
    recovers: bool = False
    """Whether its llama is well again by the time it has said that it lives itself."""
    frozen: bool = False
    """Whether nothing at all answers."""
    refusal: str = ""
    broken_loads: int = 0
    loaded: str = "well"
    """How its llama is after a load."""
    statuses: dict[str, EngineStatus] = field(default_factory=dict)
    """Boot id -> what that process says of itself, where it is not well."""
    calls: list[str] = field(default_factory=list)
    boots: int = 1

    async def generate(self, request: web.Request) -> web.Response:
        model = request.match_info["model"]
        if self.frozen:
            await asyncio.sleep(3600)
        if model == "unet":
            return told(UNET)
        if self.llama == "silent":
            await asyncio.sleep(3600)
        if self.llama != "well":
            return web.json_response({"error": self.llama}, status=500)
        if "canary" in (await request.json())["control"]:
            self.canaries += 1
            if self.canary == "silent":
                await asyncio.sleep(3600)
            result = CanaryResult(not self.canary, self.canary, 0.1, f"boot-{self.boots}")
            return web.json_response({"control": result.to_json()})
        boot_id = f"boot-{self.boots}"
        self.answers += 1
        return told(self.statuses.get(boot_id, replace(STATUS, boot_id=boot_id)))

    async def repository(self, request: web.Request) -> web.Response:
        model, verb = request.match_info["model"], request.match_info["verb"]
        self.calls.append(f"{verb} {model}")
        if request.headers.get("x-vramgate-admin") != "secret":
            return web.json_response({"error": "This API is restricted"}, status=403)
        if self.refusal:
            return web.json_response({"error": self.refusal}, status=400)
        if verb == "unload":
            self.llama = UNKNOWN
        elif self.broken_loads:
            self.broken_loads -= 1
            return web.json_response({"error": "failed to load 'llama'"}, status=400)
        elif self.llama == UNKNOWN:
            self.llama, self.boots = self.loaded, self.boots + 1
        return web.Response()

    async def health(self, request: web.Request) -> web.Response:
        if self.frozen:
            await asyncio.sleep(3600)
        if self.recovers:
            self.llama = "well"
            answered = self.answers
            await until(lambda: self.answers >= answered + 2)
        return web.Response(status=200 if self.live else 503)


def told(status: EngineStatus) -> web.Response:
    return web.json_response({"control": status.to_json()})


@dataclass
class FakeProcess:
    """A process that can be seen; killed, it has ended."""

    server: Server
    runs: bool = True

    def lives(self) -> bool:
        return self.runs

    def kill(self) -> None:
        self.runs = False
        self.server.calls.append("kill")


@dataclass
class Room:
    server: Server
    help_calls: list[str]
    processes: list[FakeProcess]
    ledger: Ledger
    engines: Engines
    metrics: Metrics

    @property
    def reason(self) -> str:
        return self.engines.ready()[1].get("llama", "")

    @property
    def restarts(self) -> int:
        sample = 'vramgate_engine_restarts_total{model="llama"} '
        lines = self.metrics.render().decode().splitlines()
        return int(sum(float(line.removeprefix(sample)) for line in lines if line.startswith(sample)))


@asynccontextmanager
async def room(*, may_manage: bool = True, seen: bool = False, canary_s: float | None = None) -> AsyncIterator[Room]:
    """A keeper over a healthy server, whose llama process can be `seen`; with a canary every `canary_s`."""
    server, ledger, metrics = Server(), Ledger(time.monotonic), Metrics()
    routes = (
        ("POST", "/v2/models/{model}/generate", server.generate),
        ("POST", "/v2/repository/models/{model}/{verb}", server.repository),
        ("GET", "/v2/health/live", server.health),
    )
    async with client(*routes, control_s=PATIENCE_S / 4) as triton:
        help_calls: list[str] = []
        processes: list[FakeProcess] = []

        def find(model: str) -> FakeProcess | None:
            if not seen or model != "llama":
                return None
            processes.append(FakeProcess(server))
            return processes[-1]

        admission = Admission(ledger, AdmissionSettings(), time.monotonic)
        engines = Engines(triton, ledger, admission, poll_s=0.01, find_process=find)
        keeper = Keeper(
            triton,
            engines,
            metrics,
            lambda: HASTE * time.monotonic(),
            KeeperSettings(patience_s=PATIENCE_S),
            may_manage=may_manage,
            last_resort=help_calls.append,
            look_s=0.01,
        )
        asking = KeeperSettings(patience_s=PATIENCE_S, canary_s=canary_s or 1.0)
        canary = Canary(triton, engines, metrics, asking, models=("llama",), look_s=0.01, again_s=0.02)
        engines.needs_proof = False
        await engines.start()
        await keeper.start()
        if canary_s is not None:
            await canary.start()
        try:
            await until(lambda: engines.ready()[0])
            yield Room(server, help_calls, processes, ledger, engines, metrics)
        finally:
            await canary.close()
            await keeper.close()
            await engines.close()
