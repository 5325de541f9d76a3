"""Engines that no client's answer has proved are asked what is known."""

import asyncio
from dataclasses import replace

import pytest

from common.errors import NotReady
from tests.unit.engine_bench import STATUS
from tests.unit.keeper_room import room
from tests.unit.web import run, until


def test_a_wrong_answer_to_the_canary_closes_the_engine_and_replaces_its_process() -> None:
    async def test() -> None:
        async with room(canary_s=0.05) as kept:
            await until(lambda: kept.server.canaries > 1)
            kept.server.canary = "token 17 in place of 4"
            await until(lambda: "token 17" in kept.reason)
            with pytest.raises(NotReady, match="token 17"):
                kept.engines.require("llama")
            await until(lambda: kept.server.boots > 1)
            kept.server.canary = ""
            await until(lambda: kept.engines.ready()[0])
            assert kept.server.calls[:2] == ["unload llama", "load llama"]

    run(test)


def test_a_new_process_takes_no_work_before_its_canary() -> None:
    async def test() -> None:
        async with room(canary_s=30.0) as kept:
            kept.engines.needs_proof = True
            kept.server.canary = "nonsense"
            kept.server.boots += 1
            await until(lambda: "canary" in kept.reason)
            with pytest.raises(NotReady, match="canary"):
                kept.engines.require("llama")
            kept.server.canary = ""
            await until(lambda: kept.engines.ready()[0])

    run(test)


def test_an_engine_that_works_or_has_just_answered_a_client_is_not_asked() -> None:
    async def test() -> None:
        async with room(canary_s=0.3) as kept:
            kept.server.statuses["boot-1"] = replace(STATUS, boot_id="boot-1", used_bytes=100)
            await asyncio.sleep(0.1)
            asked = kept.server.canaries
            await asyncio.sleep(0.4)
            assert kept.server.canaries == asked
            kept.server.statuses.clear()
            for _ in range(20):
                kept.engines.watch("llama").prove("boot-1", asyncio.get_running_loop().time())
                await asyncio.sleep(0.02)
            assert kept.server.canaries == asked
            await until(lambda: kept.server.canaries > asked)

    run(test)


def test_an_idle_engine_that_answers_its_status_and_not_its_canary_is_replaced() -> None:
    async def test() -> None:
        async with room(canary_s=0.05) as kept:
            kept.server.canary = "silent"
            await until(lambda: "its canary failed: the model server did not answer in time" in kept.reason)
            await until(lambda: kept.server.boots > 1)

    run(test)
