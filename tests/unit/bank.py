"""All real parts of the frontend over scripted engines."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from common.sections import State
from common.settings import Settings
from common.wire import HOST
from frontend.admission import Admission
from frontend.engines import Engines
from frontend.journal import Journal
from frontend.ledger import Ledger
from frontend.metrics import Metrics
from frontend.runs import ImageJob, TextJob, TextRun
from frontend.services import Services, Tokenizers
from frontend.teller import Teller
from frontend.triton import Triton
from tests.unit.fake_engine import FakeEngine
from tests.unit.fake_triton import serving
from tests.unit.web import until

JOB = TextJob(prompt_ids=(5, 6, 7), max_tokens=3)
"""6 tokens: 2 of the 10 pages."""
WHOLE = TextJob(prompt_ids=(5,) * 20, max_tokens=20)
"""40 tokens: all pages."""
IMAGE = ImageJob(height=2, width=3, image=np.zeros((2, 3, 3), np.uint8))


@dataclass
class Room:
    services: Services
    llama: FakeEngine
    unet: FakeEngine
    engines: tuple[FakeEngine, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.engines = (self.llama, self.unet)

    @property
    def teller(self) -> Teller:
        return self.services.teller

    @property
    def held_bytes(self) -> int:
        return sum(view.held_bytes for view in self.services.ledger.accounts())

    async def idle(self) -> None:
        """Waits until nothing is held and nothing works; fails the test if that does not come."""
        await until(lambda: self.held_bytes == 0 and not any(engine.active for engine in self.engines))
        self.services.ledger.check()
        assert self.services.ledger.leases() == ()

    def states(self) -> list[str]:
        self.services.journal.flush()
        return [entry.outcome for entry in self.services.journal.recent(100)]


@asynccontextmanager
async def bank(folder: Path, settings: Settings | None = None) -> AsyncIterator[Room]:
    """All real parts over scripted engines."""
    settings = settings or Settings()
    llama, unet = FakeEngine("llama"), FakeEngine("unet")
    ledger = Ledger(time.monotonic)
    ledger.set_capacity(HOST, 10**6)
    admission = Admission(ledger, settings.admission, time.monotonic)
    journal, metrics = Journal(folder / "journal.sqlite3", State()), Metrics()
    async with serving(*llama.routes(), *unet.routes()) as url:
        triton = Triton(url)
        engines = Engines(triton, ledger, admission, poll_s=0.02)
        teller = Teller(engines, admission, ledger, triton, journal, metrics, settings, time.monotonic)
        await triton.start()
        await engines.start()
        parts = (ledger, admission, journal, metrics, triton, engines, teller, Tokenizers(settings, engines))
        room = Room(Services(settings, time.monotonic, *parts), llama, unet)
        try:
            await until(lambda: engines.ready()[0])
            yield room
        finally:
            for engine in room.engines:
                engine.restart("end")
            await teller.close(1.0)
            await engines.close()
            await triton.close()
            journal.close()


async def texts(stream: TextRun) -> list[str]:
    return [chunk.text async for chunk in stream]
