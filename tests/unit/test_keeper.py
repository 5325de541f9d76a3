import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from aiohttp import web

from common.errors import NotReady
from common.sections import Admission as AdmissionSettings
from common.wire import EngineStatus
from estimator.price import Line, Price
from frontend.admission import Admission
from frontend.engines import Engines, Outage
from frontend.keeper import Keeper, Tries, needs_restart
from frontend.ledger import Ledger
from frontend.metrics import Metrics
from tests.unit.books import Clock
from tests.unit.engine_bench import PAGES, STATUS, UNET
from tests.unit.fake_triton import client
from tests.unit.web import run, until

DEAD = "Stub process 'llama_0_0' is not healthy."
UNKNOWN = "Request for unknown model: 'llama' is not found"
PATIENCE_S = 0.8
HASTE = 2
"""How much faster the keeper's clock goes: its waits are seconds."""


@dataclass
class Server:
    """A model server whose llama is told how to be: "well", an error's text, or "silent"."""

    llama: str = "well"
    live: bool = True
    refusal: str = ""
    broken_loads: int = 0
    calls: list[str] = field(default_factory=list)
    boots: int = 1

    async def generate(self, request: web.Request) -> web.Response:
        model = request.match_info["model"]
        if model == "unet":
            return told(UNET)
        if self.llama == "silent":
            await asyncio.sleep(3600)
        if self.llama != "well":
            return web.json_response({"error": self.llama}, status=500)
        return told(replace(STATUS, boot_id=f"boot-{self.boots}"))

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
            self.llama, self.boots = "well", self.boots + 1
        return web.Response()

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.live else 503)


def told(status: EngineStatus) -> web.Response:
    return web.json_response({"control": status.to_json()})


@dataclass
class Room:
    server: Server
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
async def room(*, may_manage: bool = True) -> AsyncIterator[Room]:
    """A keeper over a healthy server."""
    server, ledger, metrics = Server(), Ledger(time.monotonic), Metrics()
    routes = (
        ("POST", "/v2/models/{model}/generate", server.generate),
        ("POST", "/v2/repository/models/{model}/{verb}", server.repository),
        ("GET", "/v2/health/live", server.health),
    )
    async with client(*routes, control_s=PATIENCE_S / 4) as triton:
        engines = Engines(triton, ledger, Admission(ledger, AdmissionSettings(), time.monotonic), poll_s=0.01)
        keeper = Keeper(
            triton,
            engines,
            metrics,
            lambda: HASTE * time.monotonic(),
            may_manage=may_manage,
            patience_s=PATIENCE_S,
            look_s=0.01,
        )
        await engines.start()
        await keeper.start()
        try:
            await until(lambda: engines.ready()[0])
            yield Room(server, ledger, engines, metrics)
        finally:
            await keeper.close()
            await engines.close()


def test_a_dead_process_is_unloaded_then_loaded_and_its_leases_are_void() -> None:
    async def test() -> None:
        async with room() as kept:
            lease = kept.ledger.reserve("llama", Price((Line(PAGES, 100, "a page"),)), "boot-1", 5.0)
            kept.ledger.start(lease.id)
            kept.server.llama = DEAD
            await until(lambda: kept.server.boots == 2 and kept.engines.ready()[0])
            assert kept.server.calls == ["unload llama", "load llama"]
            assert (kept.restarts, kept.ledger.held(PAGES)) == (1, 0)
            kept.ledger.check()

    run(test)


def test_a_process_that_dies_again_at_once_has_to_wait() -> None:
    async def test() -> None:
        async with room() as kept:
            kept.server.llama = DEAD
            await until(lambda: kept.server.boots == 2 and kept.engines.ready()[0])
            kept.server.llama = DEAD
            await until(lambda: "restarting, try 2 in" in kept.reason)
            assert kept.restarts == 1
            kept.server.llama = "well"
            await until(lambda: kept.engines.ready()[0])

    run(test)


def test_a_process_that_stays_silent_is_restarted() -> None:
    async def test() -> None:
        async with room() as kept:
            kept.server.llama = "silent"
            await until(lambda: kept.server.boots == 2 and kept.engines.ready()[0])
            assert kept.server.calls == ["unload llama", "load llama"]

    run(test)


def test_a_model_that_is_silent_for_a_moment_or_not_loaded_is_left_alone() -> None:
    async def test() -> None:
        async with room() as kept:
            kept.server.llama = "silent"
            await asyncio.sleep(PATIENCE_S / 3)
            kept.server.llama = UNKNOWN
            await until(lambda: "unknown model" in kept.reason)
            await asyncio.sleep(PATIENCE_S)
            assert kept.server.calls == []
            assert "unknown model" in kept.reason

    run(test)


def test_nothing_is_done_while_the_server_itself_is_down() -> None:
    async def test() -> None:
        async with room() as kept:
            kept.server.live = False
            kept.server.llama = DEAD
            await until(lambda: not kept.engines.ready()[0])
            await asyncio.sleep(0.2)
            assert kept.server.calls == []
            kept.server.live = True
            await until(lambda: kept.engines.ready()[0])

    run(test)


def test_nothing_is_done_during_a_stop() -> None:
    async def test() -> None:
        async with room() as kept:
            kept.engines.stop("shutting down")
            kept.server.llama = DEAD
            await until(lambda: bool(kept.reason))
            await asyncio.sleep(0.2)
            assert kept.server.calls == []

    run(test)


def test_a_load_that_fails_is_tried_again_later_with_its_reason() -> None:
    async def test() -> None:
        async with room() as kept:
            kept.server.broken_loads = 1
            kept.server.llama = DEAD
            await until(lambda: "try 2 in 1 s: its process is gone; the last one failed" in kept.reason)
            with pytest.raises(NotReady, match="restarting, try 2"):
                kept.engines.require("llama")
            await until(lambda: kept.engines.ready()[0])
            assert kept.server.calls == ["unload llama", "load llama"] * 2
            assert kept.restarts == 2

    run(test)


def test_a_server_that_refuses_is_asked_once() -> None:
    async def test() -> None:
        async with room() as kept:
            kept.server.refusal = "explicit model load / unload is not allowed if polling is enabled"
            kept.server.llama = DEAD
            await until(lambda: "cannot be restarted from here" in kept.reason)
            await asyncio.sleep(3 / HASTE)
            assert kept.server.calls == ["unload llama"]
            assert "not allowed if polling is enabled" in kept.reason

    run(test)


def test_without_the_admin_key_nothing_is_asked() -> None:
    async def test() -> None:
        async with room(may_manage=False) as kept:
            kept.server.llama = DEAD
            await until(lambda: "admin key is not known" in kept.reason)
            assert kept.server.calls == []

    run(test)


def test_waits_double_up_to_a_minute_and_end_at_the_limit_of_an_hour() -> None:
    clock = Clock()
    tries, waits_s = Tries(clock, most=9), []
    assert tries.wait_s() == 0
    for _ in range(9):
        tries.note()
        waits_s.append(tries.wait_s())
        clock.now_s += waits_s[-1]
    assert waits_s[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert waits_s[8] == 3600 - sum(waits_s[:8])
    assert not tries.used_up


def test_only_death_and_a_long_silence_call_for_a_restart() -> None:
    outages = (Outage(True, 0.0), Outage(False, 6.1), Outage(False, 6.0), Outage(False, 0.0))
    assert [needs_restart(outage, 6.0) for outage in outages] == [True, True, False, False]
