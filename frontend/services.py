"""The parts of the frontend, made once, and what a route asks of them."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fastapi import Request

from common import model_folder
from common.errors import InvalidRequest
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import HOST, LLAMA_PAGES
from frontend import record
from frontend.admission import Admission
from frontend.canary import Canary
from frontend.engines import Engines
from frontend.guests import Guests
from frontend.journal import Journal
from frontend.keeper import Keeper
from frontend.last_resort import LastResort
from frontend.ledger import Clock, Ledger
from frontend.metrics import Metrics
from frontend.stubs import Stubs
from frontend.teller import Teller
from frontend.triton import Triton
from frontend.tritonserver import shm_prefix

TIMEOUT_HEADER = "x-request-timeout"
JOURNAL_FILE = "journal.sqlite3"
DRAIN_S = 2.0
"""At shutdown: time for cancelled work to end, so that the engines are left clean."""


@dataclass(frozen=True)
class Services:
    """Everything a route needs; at ``app.state.services``."""

    settings: Settings
    clock: Clock
    ledger: Ledger
    admission: Admission
    journal: Journal
    metrics: Metrics
    triton: Triton
    engines: Engines
    teller: Teller
    tokenizers: "Tokenizers"
    last_resort: LastResort | None = None
    guests: Guests | None = None

    @property
    def stuck(self) -> bool:
        """Whether the process ends because it cannot help itself."""
        return self.last_resort is not None and self.last_resort.stuck

    def leave(self) -> None:
        """Readiness off; new work is still taken, so that a balancer's last requests are answered."""
        self.engines.leave("the server is about to shut down")

    def stop(self) -> None:
        """Readiness off, nothing new is admitted; what runs goes on."""
        self.engines.stop("the server is shutting down")


async def services(request: Request) -> Services:
    """The services of the app that serves `request`; a dependency of every route, async so that no thread runs it."""
    return services_of(request)


def services_of(request: Request) -> Services:
    """The same, for routes that are not the framework's."""
    return cast(Services, request.app.state.services)


def deadline_s(request: Request, settings: Settings, asked_s: float | None = None) -> float:
    """Seconds this request may take: `asked_s` from its body, else the header ``X-Request-Timeout``, else the default
    of its tenant, else that of the server.

    Raises InvalidRequest for what is no positive number or longer than the server allows.
    """
    header = request.headers.get(TIMEOUT_HEADER)
    longest_s = settings.server.max_request_timeout_s
    if asked_s is None and header is None:
        return min(longest_s, record.current().tenant.deadline_s or settings.server.request_timeout_s)
    param = "timeout" if asked_s is not None else TIMEOUT_HEADER
    try:
        value_s = asked_s if asked_s is not None else float(header or "")
    except ValueError:
        raise InvalidRequest(f"{param} must be a number of seconds", param=param) from None
    if not (math.isfinite(value_s) and 0 < value_s <= longest_s):
        raise InvalidRequest(f"{param} must be above 0 and at most {longest_s:g} seconds", param=param)
    return value_s


class Tokenizers:
    """The tokenizer of the language model that runs, read once per folder."""

    def __init__(self, settings: Settings, engines: Engines) -> None:
        self._settings = settings
        self._engines = engines
        self._reading: dict[str, asyncio.Task[Tokenizer]] = {}

    async def get(self) -> Tokenizer:
        """The tokenizer; the first call reads it. Raises NotReady while the engine is not there, SettingsError."""
        folder = self._engines.llama_limits().tokenizer_dir
        if folder not in self._reading:
            self._reading[folder] = asyncio.create_task(asyncio.to_thread(self._read, Path(folder)))
        try:
            return await asyncio.shield(self._reading[folder])
        except Exception:
            self._reading.pop(folder, None)
            raise

    def _read(self, folder: Path) -> Tokenizer:
        """From the engine's folder; where that is on another machine, from the one that the settings name."""
        return Tokenizer.load(folder if folder.is_dir() else model_folder.resolve(self._settings))


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """The real parts, started; on exit what still runs is cancelled and its leases ended, then all is closed."""
    clock: Clock = time.monotonic
    ledger = Ledger(clock)
    ledger.set_capacity(HOST, settings.admission.host)
    admission = Admission(ledger, settings.admission, clock)
    metrics = Metrics()
    admission.hindsight.on_known.append(lambda refusal, real_s: metrics.looked_back(refusal.predicted_s, real_s))
    triton = Triton(settings.triton.address, settings.triton.admin_key, grpc_address=settings.triton.grpc_address)
    stubs = Stubs(shm_prefix(settings)) if settings.triton.url is None else None
    engines = Engines(
        triton,
        ledger,
        admission,
        factors={LLAMA_PAGES: settings.llama.oversubscribe},
        find_process=stubs.newest if stubs else lambda model: None,
    )
    journal = Journal(settings.state.dir.expanduser() / JOURNAL_FILE, settings.state)
    canary = Canary(triton, engines, metrics, settings.keeper)
    last_resort = LastResort(may_exit=settings.keeper.exit_when_stuck)
    may_manage = settings.triton.admin_key is not None
    keeper = Keeper(triton, engines, metrics, clock, settings.keeper, may_manage=may_manage, last_resort=last_resort)
    teller = Teller(engines, admission, ledger, triton, journal, metrics, settings, clock)
    tokenizers = Tokenizers(settings, engines)
    guests = Guests(settings, ledger, admission, triton, journal, metrics, teller.quotas, clock)
    await triton.start()
    await engines.start()
    await canary.start()
    await keeper.start()
    parts = (ledger, admission, journal, metrics, triton, engines, teller, tokenizers)
    try:
        yield Services(settings, clock, *parts, last_resort=last_resort, guests=guests)
    finally:
        await guests.close()
        await keeper.close()
        await canary.close()
        await teller.close(DRAIN_S)
        await engines.close()
        await triton.close()
        await asyncio.to_thread(journal.close)
