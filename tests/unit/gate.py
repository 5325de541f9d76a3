"""Admission over a small ledger, on the time of the running loop."""

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic import ByteSize

from common.sections import Admission as AdmissionSettings
from estimator.price import Line, Price
from frontend.admission import Admission
from frontend.claim import ANYONE, Caller, Claim
from frontend.ledger import Lease, Ledger

PAGES, CANVAS, HOST = "llama.pages", "unet.canvas", "host"


class Gate:
    """Every account has 100 bytes; what is admitted is for `llama`, process ``boot``."""

    def __init__(self, max_waiting: int = 64, max_wait_s: float = 10.0) -> None:
        loop = asyncio.get_running_loop()
        self.ledger = Ledger(loop.time)
        for account in (PAGES, CANVAS, HOST):
            self.ledger.set_capacity(account, 100)
        settings = AdmissionSettings(max_waiting=max_waiting, max_waiting_bytes=ByteSize(1000), max_wait_s=max_wait_s)
        self.admission = Admission(self.ledger, settings, loop.time)
        self.now_s: Callable[[], float] = loop.time

    async def admit(
        self, wait_s: float = 10.0, expected_s: float = 1.0, caller: Caller = ANYONE, body_bytes: int = 0, **lines: int
    ) -> Lease:
        claim = Claim("llama", price(**lines), "boot", expected_s, caller=caller, body_bytes=body_bytes)
        return await self.admission.admit(claim, wait_s + expected_s)

    async def queue(self, *args: Any, **options: Any) -> asyncio.Task[Lease]:
        """A request that has gone as far as it can at once."""
        task = asyncio.create_task(self.admit(*args, **options))
        await steps()
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
