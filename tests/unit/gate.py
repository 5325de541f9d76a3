"""Admission over a small ledger, on the time of the running loop."""

import asyncio
from collections.abc import Callable

from common.sections import Admission as AdmissionSettings
from estimator.price import Line, Price
from frontend.admission import Admission
from frontend.claim import Claim
from frontend.ledger import Lease, Ledger

PAGES, CANVAS, HOST = "llama.pages", "unet.canvas", "host"


class Gate:
    """Every account has 100 bytes; what is admitted is for `llama`, process ``boot``."""

    def __init__(self, max_waiting: int = 64, max_wait_s: float = 10.0) -> None:
        loop = asyncio.get_running_loop()
        self.ledger = Ledger(loop.time)
        for account in (PAGES, CANVAS, HOST):
            self.ledger.set_capacity(account, 100)
        settings = AdmissionSettings(max_waiting=max_waiting, max_wait_s=max_wait_s)
        self.admission = Admission(self.ledger, settings, loop.time)
        self.now_s: Callable[[], float] = loop.time

    async def admit(self, wait_s: float = 10.0, expected_s: float = 1.0, **lines: int) -> Lease:
        return await self.admission.admit(Claim("llama", price(**lines), "boot", expected_s), wait_s)

    async def queue(self, wait_s: float = 10.0, expected_s: float = 1.0, **lines: int) -> asyncio.Task[Lease]:
        """A request that has gone as far as it can at once."""
        task = asyncio.create_task(self.admit(wait_s, expected_s, **lines))
        await asyncio.sleep(0)
        return task

    def idle(self) -> bool:
        self.ledger.check()
        return self.admission.waiting == 0 and all(view.held_bytes == 0 for view in self.ledger.accounts())


def price(**lines: int) -> Price:
    names = {"pages": PAGES, "canvas": CANVAS, "host": HOST}
    return Price(tuple(Line(names[name], size, "because") for name, size in lines.items()))


async def steps(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
