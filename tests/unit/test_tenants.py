import asyncio
import json
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import Forbidden, NotNow, SettingsError
from common.settings import Settings
from frontend import keyfile, record
from frontend.quotas import Quotas
from frontend.runs import TextJob
from frontend.tenants import Tenant
from tests.unit.bank import Room, bank, texts
from tests.unit.web import run, until

PATIENT = Settings.model_validate({"admission": {"max_wait_s": 100, "max_waiting": 32}})
ALICE, BOB = Tenant("alice"), Tenant("bob")
METERED = Tenant("metered", quota_bytes=100, burst_byte_s=1000.0)


class Hand:
    """A clock that is set by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_key_is_kept_as_a_hash_and_known_by_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key, other = keyfile.make_key(), keyfile.make_key()
    with keyfile.editing(file) as tenants:
        tenants["alice"] = replace(ALICE, keys=(keyfile.hash_of(key),))
        tenants["bob"] = replace(BOB, keys=(keyfile.hash_of(other),))
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    known = keyfile.read(file)
    assert [keyfile.owner(known, one) for one in (key, other, "", key[:-1], key + "x")] == [*known, None, None, None]
    assert len(key) > 40
    assert key != other


def test_an_edit_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with keyfile.editing(file) as tenants:
        tenants["alice"] = ALICE
    before = file.read_bytes()
    with suppress(ZeroDivisionError), keyfile.editing(file) as tenants:
        tenants.clear()
        raise ZeroDivisionError
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json", "no JSON object"),
        ("[]", "no JSON object"),
        ('{"tenants": [{"name": "Alice"}]}', r"tenants\.0\.name"),
        ('{"tenants": [{"name": "a", "share": 0}]}', r"tenants\.0\.share"),
        ('{"tenants": [{"name": "a", "quota_bytes": 0}]}', r"tenants\.0\.quota_bytes"),
        ('{"tenants": [{"name": "a", "quotas": 7}]}', r"tenants\.0\.quotas"),
        ('{"tenants": [{"name": "a", "keys": ["vg-plain"]}]}', r"tenants\.0\.keys\.0"),
        ('{"tenants": [{"name": "a"}, {"name": "a"}]}', "name a is there twice"),
        ('{"tenants": [{"name": "anyone"}]}', "no key"),
        (json.dumps({"tenants": [{"name": name, "keys": ["0" * 64]} for name in "ab"]}), "key 000.* twice"),
    ],
)
def test_a_key_file_that_is_wrong_says_where(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match=r"tenants\.file: .*" + says):
        keyfile.read(file)


@pytest.mark.parametrize(
    ("host", "tenants", "served"),
    [
        ("127.0.0.1", {}, True),
        ("localhost", {}, True),
        ("::1", {}, True),
        ("0.0.0.0", {}, False),
        ("::", {}, False),
        ("192.168.1.5", {}, False),
        ("gpu.example", {}, False),
        ("0.0.0.0", {"open": True}, True),
        ("127.0.0.1", {"file": "/nowhere/keys.json"}, False),
        ("127.0.0.1", {"file": "/nowhere/keys.json", "open": True}, False),
    ],
)
def test_without_keys_only_this_machine_is_served_unless_somebody_says_so(
    host: str, tenants: dict[str, object], served: bool
) -> None:
    settings = Settings.model_validate({"server": {"host": host}, "tenants": tenants})
    if served:
        assert keyfile.require_guard(settings) == ()
    else:
        with pytest.raises(SettingsError, match=r"tenants\.(file|open)"):
            keyfile.require_guard(settings)


def test_a_quota_refuses_with_numbers_and_the_time_that_it_takes() -> None:
    clock = Hand()
    quotas = Quotas(clock)
    with quotas.spending(METERED, 90) as first:
        first.estimate(10.0)
        first.begin()
        with quotas.spending(METERED, 90) as second, pytest.raises(NotNow) as refusal:
            second.estimate(10.0)
        clock.now_s = 10.0
    assert refusal.value.numbers == {
        "price_byte_seconds": 900,
        "available_byte_seconds": 100,
        "capacity_byte_seconds": 1000,
        "quota_bytes": 100,
    }
    assert refusal.value.retry_after_s == 8.0
    assert quotas.level_byte_s(METERED) == 1000.0, "ten seconds at 100 bytes, up to the burst"


def test_what_was_held_is_paid_not_what_was_guessed() -> None:
    clock = Hand()
    quotas = Quotas(clock)
    with quotas.spending(METERED, 200) as spending:
        spending.estimate(4.0)
        clock.now_s = 1.0
        spending.begin()
        clock.now_s = 3.0
    assert quotas.level_byte_s(METERED) == 1000 - 2 * 200 + 300
    with quotas.spending(METERED, 1000) as spending:
        clock.now_s = 10.0
        spending.estimate(1.0)
        spending.begin()
        clock.now_s = 12.0
    assert quotas.level_byte_s(METERED) == -800, "it took longer than was guessed"


def test_what_never_began_costs_nothing() -> None:
    quotas = Quotas(Hand())
    with suppress(ZeroDivisionError), quotas.spending(METERED, 90) as spending:
        spending.estimate(10.0)
        raise ZeroDivisionError
    assert quotas.level_byte_s(METERED) == 1000.0
    assert quotas.level_byte_s(ALICE) is None


def test_more_than_a_full_bucket_goes_when_it_is_full() -> None:
    clock = Hand()
    quotas = Quotas(clock)
    with quotas.spending(METERED, 500) as spending:
        spending.estimate(10.0)
        spending.begin()
        clock.now_s = 10.0
    assert quotas.level_byte_s(METERED) == 1000 - 5000 + 1000
    with quotas.spending(METERED, 500) as spending, pytest.raises(NotNow) as refusal:
        spending.estimate(10.0)
    assert refusal.value.retry_after_s == 40.0


async def _run(room: Room, tenant: Tenant, prompt: int) -> None:
    """One request that needs the whole account, told apart by its prompt."""
    record.begin("request").tenant = tenant
    await texts(await room.teller.generate(TextJob((prompt,) * 20, 20), 100))


def test_a_flood_of_one_tenant_does_not_hold_up_another(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path, PATIENT) as room:
            room.llama.go.clear()
            tasks = [asyncio.create_task(_run(room, ALICE, 5)) for _ in range(20)]
            await until(lambda: room.services.admission.waiting == 19)
            tasks += [asyncio.create_task(_run(room, BOB, 6)) for _ in range(5)]
            await until(lambda: room.services.admission.waiting == 24)
            room.llama.go.set()
            await asyncio.gather(*tasks)
            served = ["bob" if run_["input_ids"][0] == 6 else "alice" for run_ in room.llama.seen]
            assert len(served) == 25
            assert served[:11].count("bob") == 5, served
            room.services.journal.flush()
            assert {entry.tenant for entry in room.services.journal.recent(100)} == {"alice", "bob"}
            text = room.services.metrics.render().decode()
            assert 'vramgate_tenant_byte_seconds_total{tenant="bob"}' in text

    run(test)


def test_a_tenant_that_fills_the_line_leaves_room_for_another(tmp_path: Path) -> None:
    async def test() -> None:
        settings = Settings.model_validate({"admission": {"max_waiting": 8}})
        async with bank(tmp_path, settings) as room:
            room.llama.go.clear()
            flood = [asyncio.create_task(_run(room, ALICE, 5)) for _ in range(9)]
            await until(lambda: room.services.admission.waiting == 8)
            bob = asyncio.create_task(_run(room, BOB, 6))
            await until(lambda: any(task.done() for task in flood) or bob.done())
            room.llama.go.set()
            await bob
            ends = await asyncio.gather(*flood, return_exceptions=True)
            assert [type(end) for end in ends if end is not None] == [NotNow], "the newest of those that wait gave way"

    run(test)


def test_a_tenant_runs_only_the_models_it_may_and_what_its_quota_holds(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            with pytest.raises(Forbidden, match="'carol' may not use llama: its key is for unet"):
                await _run(room, Tenant("carol", models=("unet",)), 5)
            small = Tenant("small", quota_bytes=10)
            room.llama.go.clear()
            first = asyncio.create_task(_run(room, small, 5))
            await until(lambda: bool(room.llama.active))
            with pytest.raises(NotNow, match="byte-seconds of its quota") as refusal:
                await _run(room, small, 5)
            assert (refusal.value.retry_after_s or 0) > 1
            assert refusal.value.numbers["quota_bytes"] == 10
            room.llama.go.set()
            await first
            await room.idle()

    run(test)
