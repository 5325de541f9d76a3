import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from common.errors import DeadlineExceeded, NeverFits, SettingsError, UpstreamBroken
from common.sections import State
from common.settings import Settings
from common.wire import CARD
from frontend import guests as guests_module
from frontend.admission import Admission
from frontend.guests import Guests
from frontend.journal import Journal
from frontend.ledger import Ledger
from frontend.metrics import Metrics
from frontend.quotas import Quotas
from frontend.triton import Triton
from tests.unit.fake_triton import serving
from tests.unit.web import run, until

LAW = {"fixed": 100, "per_body_byte": 2.0, "expected_s": 0.1}
SETTINGS = Settings.model_validate({"card": {"foreign": 1000}, "guests": {"capacity": 1000, "models": {"edges": LAW}}})
BODY = b"x" * 200
"""Costs 500 of the 1000."""


@dataclass
class Room:
    guests: Guests
    ledger: Ledger
    journal: Journal
    turn: asyncio.Event
    """Until it is set the model works."""
    running: int = 0
    most: int = 0
    status: int = 200
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def ask(self, body: bytes = BODY, timeout_s: float = 20.0) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.guests.infer("edges", {}, body, timeout_s))


@asynccontextmanager
async def room(folder: Path) -> AsyncIterator[Room]:
    ledger, turn = Ledger(time.monotonic), asyncio.Event()
    admission = Admission(ledger, SETTINGS.admission, time.monotonic)
    journal = Journal(folder / "journal.sqlite3", State())

    async def infer(request: web.Request) -> web.Response:
        opened.running += 1
        opened.most = max(opened.most, opened.running)
        await turn.wait()
        opened.running -= 1
        return web.json_response({"outputs": []}, status=opened.status)

    async with serving(("POST", "/v2/models/edges/infer", infer)) as url:
        triton = Triton(url)
        await triton.start()
        guests = Guests(SETTINGS, ledger, admission, triton, journal, Metrics(), Quotas(time.monotonic), time.monotonic)
        opened = Room(guests, ledger, journal, turn)
        try:
            yield opened
        finally:
            turn.set()
            await guests.close()
            await triton.close()
            journal.close()


def in_room(folder: Path, test: Callable[[Room], Coroutine[Any, Any, None]]) -> None:
    async def opened() -> None:
        async with room(folder) as one:
            await test(one)

    run(opened)


def test_what_does_not_fit_beside_the_others_waits_and_nothing_is_left_over(tmp_path: Path) -> None:
    async def test(here: Room) -> None:
        asked = [here.ask() for _ in range(5)]
        await until(lambda: here.running == 2)
        assert here.ledger.held(CARD) == 1000
        here.turn.set()
        assert [reply.status for reply in await asyncio.gather(*asked)] == [200] * 5
        assert here.most == 2
        assert here.ledger.held(CARD) == 0
        here.journal.flush()
        assert [entry.outcome for entry in here.journal.recent(10)] == ["settled"] * 5

    in_room(tmp_path, test)


def test_a_price_is_its_law_with_the_numbers_put_in(tmp_path: Path) -> None:
    async def test(here: Room) -> None:
        (line,) = here.guests.price("edges", 300).lines
        assert (line.account, line.bytes) == (CARD, 700)
        assert "edges: 100 + 2 x 300 bytes" in line.why

    in_room(tmp_path, test)


def test_a_body_too_large_for_all_that_guests_have_never_fits(tmp_path: Path) -> None:
    async def test(here: Room) -> None:
        with pytest.raises(NeverFits):
            await here.guests.infer("edges", {}, b"x" * 500, 1.0)

    in_room(tmp_path, test)


def test_after_its_deadline_or_without_its_client_a_lease_lasts_until_the_model_has_answered(tmp_path: Path) -> None:
    async def test(here: Room) -> None:
        late, left = here.ask(timeout_s=0.2), here.ask()
        await until(lambda: here.running == 2)
        left.cancel()
        with pytest.raises(DeadlineExceeded):
            await late
        assert here.ledger.held(CARD) == 1000
        assert {lease.state for lease in here.ledger.leases()} == {"abandoned"}
        here.turn.set()
        await until(lambda: here.ledger.held(CARD) == 0)

    in_room(tmp_path, test)


def test_a_model_server_that_is_gone_is_paid_for_no_longer(tmp_path: Path) -> None:
    async def test(here: Room) -> None:
        asked = here.ask()
        await until(lambda: here.running == 1)
        await here.guests._triton.close()
        with pytest.raises(UpstreamBroken):
            await asked
        assert here.ledger.held(CARD) == 0

    in_room(tmp_path, test)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"guests": {"capacity": 10, "models": {"edges": LAW}}}, "card.foreign"),
        ({"guests": {"models": {"llama": LAW}}}, "has an engine"),
    ],
    ids=["money that is not there", "a name that is taken"],
)
def test_guests_that_could_not_be_kept_to_what_is_theirs_are_refused(told: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        guests_module.require(Settings.model_validate(told))
