import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest

from common.errors import DeadlineExceeded, InvalidRequest, NeverFits, NotNow, NotReady, UpstreamBroken
from common.sections import State
from common.settings import Settings
from common.wire import Lease
from frontend.admission import Admission
from frontend.engines import Engines
from frontend.journal import Journal
from frontend.ledger import Ledger
from frontend.metrics import Metrics
from frontend.runs import TextChunk, TextJob
from frontend.teller import Teller
from frontend.triton import Triton
from tests.unit.bank import IMAGE, JOB, WHOLE, bank, texts
from tests.unit.fake_engine import PAGE_BYTES
from tests.unit.fake_triton import serving
from tests.unit.web import run, until


def test_a_text_runs_from_price_to_statement(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            stream = await room.teller.generate(TextJob((5, 6, 7), 3, stop=("x",), seed=4, logprobs=1), 10)
            chunks = [chunk async for chunk in stream]
            assert chunks[0] == TextChunk(0, "t0 ", (0,))
            assert [chunk.finish_reason for chunk in chunks] == [None, None, "length"]
            assert stream.vram() == {
                "quoted_bytes": 2 * PAGE_BYTES,
                "held_bytes": 2 * PAGE_BYTES,
                "peak_bytes": 7,
                "rung": "none",
            }
            assert room.held_bytes == 0
            sent = room.llama.seen[0]
            lease = Lease.from_json(sent.pop("lease"))
            assert (lease.id, dict(lease.lines), lease.max_tokens) == (
                stream.lease_id,
                {"llama.pages": 2 * PAGE_BYTES},
                3,
            )
            assert 9 < lease.deadline_s <= 10
            assert sent == {
                "input_ids": [5, 6, 7],
                "max_tokens": 3,
                "n": 1,
                "temperature": 1.0,
                "top_p": 1.0,
                "top_k": 0,
                "repetition_penalty": 1.0,
                "stream": True,
                "stop": ["x"],
                "seed": 4,
                "logprobs": 1,
            }
            assert room.states() == ["settled"]
            assert room.llama.cancels == []

    run(test)


def test_an_image_runs_from_price_to_statement(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            result = await room.teller.segment(IMAGE, 10)
            assert result.mask.tolist() == [[1, 1, 1], [1, 1, 1]]
            assert result.probabilities is None
            assert result.vram()["held_bytes"] == result.price.by_account().get("unet.canvas", 0)
            assert room.held_bytes == 0
            assert room.unet.seen[0]["outputs"] == ["mask", "statement"]
            assert room.states() == ["settled"]

    run(test)


def test_a_request_that_never_fits_is_not_sent(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            with pytest.raises(NeverFits) as caught:
                await room.teller.generate(TextJob((5,) * 30, 11), 10)
            assert caught.value.numbers["capacity_bytes"] == 10 * PAGE_BYTES
            assert room.llama.seen == []

    run(test)


def test_a_request_waits_for_bytes_and_then_runs(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            first = await room.teller.generate(WHOLE, 10)
            second = asyncio.create_task(room.teller.generate(JOB, 10))
            await until(lambda: room.services.admission.waiting == 1)
            assert len(room.llama.seen) == 1
            room.llama.go.set()
            assert await texts(first) == await texts(await second)
            await room.idle()

    run(test)


def test_a_request_that_cannot_wait_is_refused_with_the_numbers(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path, Settings.model_validate({"admission": {"max_waiting": 0}})) as room:
            room.llama.go.clear()
            first = await room.teller.generate(WHOLE, 10)
            with pytest.raises(NotNow) as caught:
                await room.teller.generate(JOB, 10)
            assert caught.value.numbers["available_bytes"] == 0
            assert caught.value.retry_after_s is not None
            await first.aclose()
            await room.idle()

    run(test)


def test_the_deadline_cancels_the_work(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            stream = await room.teller.generate(JOB, 0.3)
            with pytest.raises(DeadlineExceeded):
                await texts(stream)
            room.unet.go.clear()
            with pytest.raises(DeadlineExceeded):
                await room.teller.segment(IMAGE, 0.1)
            await room.idle()
            assert len(room.llama.cancels) == len(room.unet.cancels) == 1

    run(test)


def test_the_deadline_counts_before_the_first_response(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.admit.clear()
            with pytest.raises(DeadlineExceeded):
                await room.teller.generate(JOB, 0.1)
            await room.idle()

    run(test)


def test_cancelled_work_is_held_until_it_has_ended(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            room.llama.stop_s = 0.3
            stream = await room.teller.generate(JOB, 10)
            await stream.aclose()
            await stream.aclose()
            await until(lambda: bool(room.llama.cancels))
            assert room.llama.active
            assert room.held_bytes == 2 * PAGE_BYTES
            await room.idle()
            assert room.states() == ["client_closed_request"]

    run(test)


def test_an_engine_that_fails_fails_one_request(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.failure = room.unet.failure = "[INVALID_ARG] token id out of range"
            stream = await room.teller.generate(JOB, 10)
            assert (await anext(stream)).text == "t0 "
            with pytest.raises(InvalidRequest, match="out of range"):
                await anext(stream)
            with pytest.raises(InvalidRequest):
                await anext(stream)
            with pytest.raises(InvalidRequest):
                await room.teller.segment(IMAGE, 10)
            room.llama.failure = room.unet.failure = None
            assert len(await texts(await room.teller.generate(JOB, 10))) == 3
            await room.teller.segment(IMAGE, 10)
            await room.idle()

    run(test)


def test_an_answer_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.hangup = True
            stream = await room.teller.generate(JOB, 10)
            with pytest.raises(UpstreamBroken):
                await texts(stream)
            await room.idle()

    run(test)


def test_a_dead_engine_fails_a_stream_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            stream = await room.teller.generate(JOB, 30)
            room.llama.restart("boot-2")
            with pytest.raises(UpstreamBroken, match="restarted"):
                await asyncio.wait_for(texts(stream), 5)
            await room.idle()
            assert room.states() == ["void"]

    run(test)


def test_what_is_made_of_an_answer_that_came_outlives_the_engine(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            async with room.teller.segmenting(IMAGE, 30) as result:
                room.unet.restart("boot-2")
                await until(lambda: not room.services.ledger.leases())
                await asyncio.sleep(0)
                assert result.mask.any()
            await room.idle()
            assert room.states() == ["settled"]

    run(test)


def test_an_engine_that_is_not_there_is_not_ready(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving() as url:
            triton = Triton(url)
            ledger = Ledger(time.monotonic)
            settings = Settings()
            admission = Admission(ledger, settings.admission, time.monotonic)
            engines = Engines(triton, ledger, admission)
            journal = Journal(tmp_path / "journal.sqlite3", State())
            teller = Teller(engines, admission, ledger, triton, journal, Metrics(), settings, time.monotonic)
            with pytest.raises(NotReady):
                await teller.generate(JOB, 1)
            with pytest.raises(NotReady):
                teller.price_image(IMAGE)
            journal.close()

    run(test)


def test_a_slow_reader_holds_no_lease(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            stream = await room.teller.generate(JOB, 10)
            await room.idle()
            assert await texts(stream) == ["t0 ", "t1 ", "t2 "]

    run(test)


def test_expected_ends_are_learned_from_statements(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            await texts(await room.teller.generate(JOB, 10))
            assert room.teller.expected_s("llama", 6) == pytest.approx(1.0)

    run(test)


def test_closing_ends_everything(tmp_path: Path) -> None:
    async def test() -> None:
        async with bank(tmp_path) as room:
            room.llama.go.clear()
            streams = [await room.teller.generate(JOB, 60) for _ in range(3)]
            await room.teller.close(5.0)
            assert room.held_bytes == 0
            assert not room.llama.active
            for stream in streams:
                with suppress(Exception):
                    await texts(stream)

    run(test)
