"""A model whose process dies, hangs or fails comes back, where anything can be done about it."""

import asyncio
from dataclasses import replace

import pytest

from common.errors import NotReady
from estimator.price import Line, Price
from frontend.engines import Outage
from frontend.keeper import cause_of, needs_restart
from frontend.tries import Tries
from tests.unit.books import Clock
from tests.unit.engine_bench import PAGES, STATUS
from tests.unit.keeper_room import DEAD, HASTE, PATIENCE_S, UNKNOWN, room
from tests.unit.web import run, until


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


def test_a_process_that_answers_again_in_the_last_moment_is_not_killed() -> None:
    async def test() -> None:
        async with room(seen=True) as kept:
            kept.server.llama, kept.server.recovers = "silent", True
            await until(lambda: kept.server.llama == "well" and kept.engines.ready()[0])
            await asyncio.sleep(PATIENCE_S / 2)
            assert kept.server.calls == []

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


def test_what_comes_after_a_load_that_went_well_is_judged_anew() -> None:
    async def test() -> None:
        async with room() as kept:
            kept.server.llama, kept.server.loaded = DEAD, "somebody has unloaded it again"
            await until(lambda: kept.server.boots == 2)
            await asyncio.sleep(PATIENCE_S)
            assert kept.server.calls == ["unload llama", "load llama"]
            kept.server.llama = "well"
            await until(lambda: kept.engines.ready()[0])

    run(test)


def test_a_server_that_refuses_is_asked_once() -> None:
    async def test() -> None:
        async with room() as kept:
            kept.server.refusal = "explicit model load / unload is not allowed if polling is enabled"
            kept.server.llama = DEAD
            await until(lambda: "cannot be restarted from here" in kept.reason)
            await asyncio.sleep(3 / HASTE)
            assert kept.server.calls == ["unload llama"]
            assert "cannot be restarted from here" in kept.help_calls[-1]
            assert "not allowed if polling is enabled" in kept.reason

    run(test)


def test_without_the_admin_key_nothing_is_asked() -> None:
    async def test() -> None:
        async with room(may_manage=False) as kept:
            kept.server.llama = DEAD
            await until(lambda: "admin key is not known" in kept.reason)
            assert kept.server.calls == []

    run(test)


def test_a_process_that_is_seen_to_end_voids_its_leases_before_anything_answers() -> None:
    async def test() -> None:
        async with room(seen=True) as kept:
            lease = kept.ledger.reserve("llama", Price((Line(PAGES, 100, "a page"),)), "boot-1", 5.0)
            kept.ledger.start(lease.id)
            kept.server.llama, kept.server.refusal = "silent", "not now"
            kept.processes[-1].runs = False
            await until(lambda: kept.ledger.lease(lease.id) is None)
            assert (kept.server.boots, kept.engines.ready()[0]) == (1, False)
            kept.ledger.check()

    run(test)


def test_a_process_that_hangs_is_killed_before_it_is_replaced_and_one_that_is_stopped_is_no_dead_one() -> None:
    async def test() -> None:
        async with room(seen=True) as kept:
            kept.server.llama = DEAD
            await asyncio.sleep(PATIENCE_S / 2)
            assert kept.server.calls == []
            await until(lambda: kept.server.boots == 2 and kept.engines.ready()[0])
            assert kept.server.calls == ["kill", "unload llama", "load llama"]

    run(test)


def test_a_server_that_hangs_itself_is_told_to_whoever_started_it() -> None:
    async def test() -> None:
        async with room() as kept:
            kept.server.frozen = True
            await until(lambda: bool(kept.help_calls))
            assert "has not answered" in kept.help_calls[0]
            assert kept.server.calls == []

    run(test)


def test_an_engine_that_calls_itself_stuck_for_long_is_restarted() -> None:
    async def test() -> None:
        async with room() as kept:
            stuck = replace(STATUS, boot_id="boot-1", ready=False, reason="no step for 31 s")
            kept.server.statuses["boot-1"] = stuck
            await until(lambda: kept.server.boots == 2 and kept.engines.ready()[0])
            assert kept.server.calls == ["unload llama", "load llama"]

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


def test_only_death_wrong_answers_and_a_long_silence_call_for_a_restart() -> None:
    reasons = (Outage(dead=True), Outage(fault="x"), Outage(silent_s=6.1), Outage(unready_s=6.1, trouble="y"))
    assert all(needs_restart(outage, 6.0) for outage in reasons)
    assert not any(needs_restart(outage, 6.0) for outage in (Outage(), Outage(silent_s=6.0), Outage(unready_s=6.0)))
    assert [cause_of(outage) for outage in reasons] == [
        "its process is gone",
        "x",
        "no answer for 6 s",
        "not ready for 6 s: y",
    ]
