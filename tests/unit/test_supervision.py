import asyncio
import os
import sys
import time
from pathlib import Path

from rich.console import Console

from common.errors import VramgateError
from frontend.child import Child
from frontend.restarts import Restarts
from frontend.steps import Steps
from frontend.supervision import Keeper

FOREVER = "import time; time.sleep(60)"


class Scripted:
    """A part whose lives run these pieces of Python, one after the other."""

    name = "part"

    def __init__(self, log: Path, *lives: str, faults: dict[int, str] | None = None) -> None:
        self.log = log
        self.children: list[Child] = []
        self._lives = lives
        self._faults = faults or {}
        self._begun = asyncio.Condition()

    async def lives_begun(self, count: int | None) -> None:
        """Returns once `count` lives have begun; never for None."""
        async with self._begun:
            await self._begun.wait_for(lambda: len(self.children) == count)

    async def start(self) -> Child:
        code = self._lives[len(self.children)]
        self.children.append(await Child.start(self.name, [sys.executable, "-c", code], os.environ, self.log))
        async with self._begun:
            self._begun.notify_all()
        return self.children[-1]

    async def settle(self) -> None:
        if len(self.children) in self._faults:
            raise VramgateError(self._faults[len(self.children)])
        if "hang" in self._lives[len(self.children) - 1]:
            await asyncio.sleep(60)


def keep(part: Scripted, until_life: int | None = None, most: int = 3) -> str:
    """Keeps the part until it is given up, which is told, or until its n-th life has begun."""

    async def run() -> str:
        keeper = Keeper(part, Steps(Console(quiet=True)), Restarts(time.monotonic, most=most))
        keeping = asyncio.create_task(keeper.run())
        lived = asyncio.create_task(part.lives_begun(until_life))
        try:
            await asyncio.wait({keeping, lived}, return_when=asyncio.FIRST_COMPLETED)
            return str(keeping.exception()) if keeping.done() else "running"
        finally:
            keeping.cancel()
            lived.cancel()
            await asyncio.gather(keeping, lived, return_exceptions=True)
            await keeper.stop(1)

    return asyncio.run(run())


def test_what_ends_by_itself_is_started_again(tmp_path: Path) -> None:
    part = Scripted(tmp_path / "log", "import time; time.sleep(0.2); raise SystemExit(9)", FOREVER)
    assert keep(part, until_life=2) == "running"


def test_what_ends_before_it_ever_served_is_not_started_again_and_its_last_words_are_told(tmp_path: Path) -> None:
    part = Scripted(tmp_path / "log", "print('no such card'); raise SystemExit(1) # hang")
    told = keep(part)
    assert told.startswith("part ended with status 1")
    assert "no such card" in told
    assert len(part.children) == 1


def test_what_never_serves_is_told_with_its_reason(tmp_path: Path) -> None:
    part = Scripted(tmp_path / "log", FOREVER, faults={1: "unet cannot be loaded: too large"})
    assert keep(part) == "unet cannot be loaded: too large"


def test_a_part_that_fails_to_serve_later_gets_another_chance(tmp_path: Path) -> None:
    part = Scripted(
        tmp_path / "log", "import time; time.sleep(0.2)", FOREVER, FOREVER, faults={2: "unet cannot be loaded"}
    )
    assert keep(part, until_life=3, most=5) == "running"
    assert [child.running for child in part.children] == [False, False, False]


def test_what_ends_again_and_again_is_given_up(tmp_path: Path) -> None:
    part = Scripted(tmp_path / "log", *["import time; time.sleep(0.2)"] * 2)
    assert keep(part, most=2).startswith("given up after 2 ends: part ended with status 0")


def test_unusable_settings_are_not_tried_again(tmp_path: Path) -> None:
    part = Scripted(tmp_path / "log", "import time; time.sleep(0.2); raise SystemExit(2)")
    assert keep(part).startswith("part ended with status 2")
