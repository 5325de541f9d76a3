"""Requests whose engine's process ends under them are run once more where the client has seen nothing yet."""

import asyncio
from pathlib import Path

import pytest

from common.errors import DeadlineExceeded, NotReady, UpstreamBroken
from frontend.runs import TextRun
from tests.unit.bank import IMAGE, JOB, Room, bank, texts
from tests.unit.fake_engine import FakeEngine
from tests.unit.web import run, until


async def die(engine: FakeEngine, boot_id: str) -> None:
    """The process ends with work in its hands, and the next one is not held up."""
    await until(lambda: bool(engine.active))
    engine.restart(boot_id)


async def begun(room: Room, *, whole: bool = True) -> TextRun:
    """A text whose first token has come and whose second one waits."""
    room.llama.go.clear()
    return await room.teller.generate(JOB, 20, whole=whole)


def reruns(room: Room, model: str) -> bool:
    text = room.services.metrics.render().decode()
    return f'vramgate_reruns_total{{model="{model}"}} 1.0' in text


def test_a_whole_text_is_run_again_and_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            stream = await begun(room)
            await die(room.llama, "boot-2")
            room.llama.go.set()
            assert await texts(stream) == ["t0 ", "t1 ", "t2 "]
            assert stream.vram()["reruns"] == 1
            assert reruns(room, "llama")
            assert room.llama.cancels == []
            await room.idle()

    run(test)


def test_an_image_is_run_again_and_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.unet.go.clear()
            image = asyncio.create_task(room.teller.segment(IMAGE, 20))
            await die(room.unet, "boot-2")
            room.unet.go.set()
            result = await image
            assert result.mask.tolist() == [[1, 1, 1], [1, 1, 1]]
            assert result.vram()["reruns"] == 1
            assert reruns(room, "unet")
            await room.idle()

    run(test)


def test_an_answer_without_an_accident_does_not_mention_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            stream = await room.teller.generate(JOB, 20, whole=True)
            await texts(stream)
            assert "reruns" not in stream.vram()

    run(test)


def test_a_second_death_is_the_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            stream = await begun(room)
            await die(room.llama, "boot-2")
            await until(lambda: len(room.llama.seen) == 2)
            await die(room.llama, "boot-3")
            with pytest.raises(UpstreamBroken, match="restarted"):
                await asyncio.wait_for(texts(stream), 5)
            await room.idle()

    run(test)


def test_a_process_that_lives_on_is_not_given_the_work_twice(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.hangup = True
            stream = await room.teller.generate(JOB, 20, whole=True)
            with pytest.raises(UpstreamBroken, match="broke off"):
                await asyncio.wait_for(texts(stream), 5)
            assert len(room.llama.seen) == 1
            await room.idle()

    run(test)


def test_a_second_run_keeps_to_the_deadline_of_the_first(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            stream = await room.teller.generate(JOB, 1.5, whole=True)
            await die(room.llama, "boot-2")
            with pytest.raises(DeadlineExceeded):
                await asyncio.wait_for(texts(stream), 5)
            await room.idle()

    run(test)


def test_where_nobody_brings_the_process_back_the_request_fails_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            stream = await begun(room)
            watch = room.services.engines.watch("llama")
            room.llama.restart("boot-1")
            room.llama.gone = "Stub process 'llama_0_0' is not healthy."
            await until(lambda: watch.lost)
            room.services.engines.explain("llama", "it cannot be restarted", hopeless=True)
            assert watch.status is not None
            room.services.engines.on_void[0](tuple(lease.id for lease in room.services.ledger.leases()))
            with pytest.raises((UpstreamBroken, NotReady)):
                await asyncio.wait_for(texts(stream), 5)

    run(test)
