"""The engine's protocol: streams, statements, cancels, deadlines, refusals, faults, and the books behind them."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.llama.engine import LlamaEngine
from backend.llama.request import Generation, Sampling
from common import errors
from common.wire import ActiveLease, CancelOutcome
from tests.backend.llama_faults import faulty_runner, until, wait_for
from tests.backend.llama_kit import (
    WAIT_S,
    Collector,
    engine_of,
    lease_of,
    run,
    settings_of,
    start,
)

PROMPT = tuple(random.Random(5).choices(range(256), k=30))


@pytest.fixture(params=[False, True], ids=["in turn", "overlapping"])
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[LlamaEngine]:
    with engine_of(settings_of(folder), overlaps=request.param) as engine:
        yield engine


def test_a_stream_ends_with_one_statement_of_what_was_used(engine: LlamaEngine) -> None:
    answer = run(engine, Generation(PROMPT, 20, n=2, lease=lease_of("a", paid_bytes=12345 * 10**3)))
    statement = answer.statement
    assert statement is not None
    assert answer.ends == 1
    assert (statement.lease, statement.model, statement.rung) == ("a", "llama", "none")
    assert (statement.prompt_tokens, statement.output_tokens) == (30, 40)
    assert statement.pages == 8
    assert statement.held_bytes == 8 * engine.limits.page_bytes
    assert statement.quoted_bytes == 12345 * 10**3
    assert statement.queue_s >= 0
    assert statement.prefill_s > 0
    assert statement.decode_s > 0
    assert statement.run_s == pytest.approx(statement.prefill_s + statement.decode_s)


def test_each_of_n_sequences_has_its_own_chunks_and_end(engine: LlamaEngine) -> None:
    answer = run(engine, Generation(PROMPT, 12, n=3, sampling=Sampling(seed=1)))
    assert len({tuple(answer.ids(index)) for index in range(3)}) == 3
    assert [answer.finish_reason(index) for index in range(3)] == ["length"] * 3
    again = run(engine, Generation(PROMPT, 12, n=3, sampling=Sampling(seed=1)))
    assert [again.ids(index) for index in range(3)] == [answer.ids(index) for index in range(3)]


def test_a_seed_gives_the_same_text_whatever_the_neighbours(engine: LlamaEngine) -> None:
    request = Generation(PROMPT, 25, sampling=Sampling(0.9, 0.95, seed=11))
    alone = run(engine, request)
    neighbours = [start(engine, Generation(PROMPT[: k + 1], 30, sampling=Sampling())) for k in range(8)]
    among = run(engine, request)
    assert among.ids() == alone.ids()
    assert among.text() == alone.text()
    for neighbour in neighbours:
        neighbour.wait()


def test_streamed_text_is_the_text_of_the_tokens_and_never_broken(engine: LlamaEngine) -> None:
    for seed in range(5):
        answer = run(engine, Generation(PROMPT, 60, sampling=Sampling(seed=seed)))
        prompt_text = engine.tokenizer.decode(PROMPT)
        whole = engine.tokenizer.decode([*PROMPT, *answer.ids()])
        if not prompt_text.endswith("\N{REPLACEMENT CHARACTER}"):
            assert prompt_text + answer.text() == whole
        for chunk in answer.chunks:
            chunk.text.encode("utf-8")


def test_a_stop_string_ends_the_answer_before_it(engine: LlamaEngine) -> None:
    free = run(engine, Generation(PROMPT, 60, sampling=Sampling(seed=2)))
    middle = len(free.text()) // 2
    stop = free.text()[middle : middle + 3]
    answer = run(engine, Generation(PROMPT, 60, sampling=Sampling(seed=2), stop=(stop,)))
    assert answer.text() == free.text()[: free.text().index(stop)]
    assert answer.finish_reason() == "stop"
    assert len(answer.ids()) < len(free.ids())


def test_logprobs_come_with_their_tokens(engine: LlamaEngine) -> None:
    answer = run(engine, Generation(PROMPT, 6, sampling=Sampling(0.0, logprobs=2)))
    for chunk in answer.chunks:
        assert chunk.logprobs is not None
        (entry,) = chunk.logprobs
        assert (entry.token_id,) == chunk.token_ids
        assert entry.top[0] == (entry.token_id, entry.token, entry.logprob)
        assert entry.logprob >= entry.top[1][2]


def test_a_cancel_ends_the_work_within_a_step_and_frees_its_pages(folder: Path) -> None:
    steps: list[int] = []
    with engine_of(settings_of(folder), faulty_runner(folder, lambda step: steps.append(len(step)))) as engine:
        answer = start(engine, Generation((1,), 127, lease=lease_of("a")))
        assert answer.progress.wait(WAIT_S)
        assert engine.cancel("a") == CancelOutcome.CANCELLED
        done = len(steps)
        answer.wait()
        assert isinstance(answer.error, errors.Cancelled)
        assert len(steps) <= done + 1
        assert engine.footprint().used_bytes == 0
        assert engine.footprint().leases == ()
        assert engine.cancel("a") == CancelOutcome.UNKNOWN


def test_waiting_work_is_cancelled_without_having_run(folder: Path) -> None:
    gate = threading.Event()
    with engine_of(settings_of(folder), faulty_runner(folder, lambda _: wait_for(gate))) as engine:
        first = start(engine, Generation(PROMPT, 5))
        second = start(engine, Generation(PROMPT, 5, lease=lease_of("b")))
        engine.cancel("b")
        gate.set()
        assert isinstance(second.wait().error, errors.Cancelled)
        assert second.chunks == []
        assert first.wait().error is None


def test_a_cancel_that_overtakes_its_work_refuses_it(engine: LlamaEngine) -> None:
    assert engine.cancel("early") == CancelOutcome.UNKNOWN
    outlet = Collector()
    with pytest.raises(errors.Cancelled):
        engine.submit(Generation(PROMPT, 5, lease=lease_of("early")), outlet)
    assert outlet.ends == 0


def test_only_the_newest_cancelled_ids_are_remembered(engine: LlamaEngine) -> None:
    for number in range(4097):
        engine.cancel(f"never-{number}")
    assert run(engine, Generation(PROMPT, 1, lease=lease_of("never-0"))).error is None
    with pytest.raises(errors.Cancelled):
        engine.submit(Generation(PROMPT, 1, lease=lease_of("never-4096")), Collector())


def test_a_lease_in_use_is_not_used_twice(folder: Path) -> None:
    gate = threading.Event()
    with engine_of(settings_of(folder), faulty_runner(folder, lambda _: wait_for(gate))) as engine:
        first = start(engine, Generation(PROMPT, 5, lease=lease_of("a")))
        with pytest.raises(errors.InvalidRequest, match="in use"):
            engine.submit(Generation(PROMPT, 5, lease=lease_of("a")), Collector())
        gate.set()
        assert first.wait().error is None


def test_a_deadline_ends_the_work(folder: Path) -> None:
    now = [100.0]
    runner = faulty_runner(folder, lambda _: now.__setitem__(0, now[0] + 1.0))
    with engine_of(settings_of(folder), runner, clock=lambda: now[0]) as engine:
        late = run(engine, Generation((1,), 100, lease=lease_of("late", deadline_s=10.0)))
        assert isinstance(late.error, errors.DeadlineExceeded)
        assert len(late.ids()) == 10
        in_time = run(engine, Generation((1,), 5, lease=lease_of("in time", deadline_s=10.0)))
        assert in_time.error is None


def test_the_waiting_line_is_bounded(folder: Path) -> None:
    gate = threading.Event()
    settings = settings_of(folder, max_waiting=2)
    with engine_of(settings, faulty_runner(folder, lambda _: wait_for(gate))) as engine:
        running = start(engine, Generation(PROMPT, 5))
        until(lambda: engine.footprint().used_bytes > 0)
        waiting = [start(engine, Generation(PROMPT, 5)) for _ in range(2)]
        with pytest.raises(errors.NotNow) as caught:
            engine.submit(Generation(PROMPT, 5), Collector())
        assert caught.value.retry_after_s is not None
        gate.set()
        for answer in (running, *waiting):
            assert answer.wait().error is None


def test_what_no_pool_could_hold_never_fits(folder: Path) -> None:
    with engine_of(settings_of(folder, pages=2)) as engine, pytest.raises(errors.NeverFits) as caught:
        engine.submit(Generation(PROMPT, 20), Collector())
    assert caught.value.numbers["price_bytes"] > caught.value.numbers["capacity_bytes"]


def test_the_footprint_tells_leased_from_unleased_work(folder: Path) -> None:
    gate = threading.Event()
    with engine_of(settings_of(folder), faulty_runner(folder, lambda _: wait_for(gate))) as engine:
        leased = start(engine, Generation(PROMPT, 2, lease=lease_of("a")))
        direct = start(engine, Generation(PROMPT, 18))
        waiting = start(engine, Generation(PROMPT, 2, lease=lease_of("b")))
        until(lambda: engine.footprint().used_bytes > 0)
        page_bytes = engine.limits.page_bytes
        footprint = engine.footprint()
        assert footprint.account == "llama.pages"
        assert footprint.capacity_bytes == 24 * page_bytes
        lines = lease_of("a").lines
        assert ActiveLease("a", 2 * page_bytes, cancelling=False, lines=lines) in footprint.leases
        assert footprint.used_bytes == footprint.unleased_bytes + sum(lease.held_bytes for lease in footprint.leases)
        engine.cancel("b")
        assert ActiveLease("b", 0, cancelling=True, lines=lines) in engine.footprint().leases
        gate.set()
        for answer in (leased, direct, waiting):
            answer.wait()
        assert engine.footprint().used_bytes == 0
        assert set(footprint.standing) >= {"weights", "pages", "logits"}


def test_a_step_that_never_ends_makes_the_engine_unready(folder: Path) -> None:
    gate = threading.Event()
    now = [0.0]
    runner = faulty_runner(folder, lambda _: wait_for(gate))
    with engine_of(settings_of(folder, stall_s=5), runner, clock=lambda: now[0]) as engine:
        now[0] = 1000.0
        assert engine.health().ready, "idleness is no stall"
        answer = start(engine, Generation(PROMPT, 2))
        until(lambda: engine.footprint().used_bytes > 0)
        assert engine.health().ready
        now[0] += 6.0
        health = engine.health()
        assert not health.ready
        assert "no step for 6 s with 1 requests" in health.reason
        gate.set()
        answer.wait()
        assert engine.health().ready


def test_closing_ends_what_runs(folder: Path) -> None:
    gate = threading.Event()
    with engine_of(settings_of(folder), faulty_runner(folder, lambda _: wait_for(gate))) as engine:
        answers = [start(engine, Generation(PROMPT, 50)) for _ in range(3)]
        threading.Timer(0.05, gate.set).start()
        engine.close()
        for answer in answers:
            assert isinstance(answer.wait().error, errors.NotReady)
            assert answer.ends == 1
        with pytest.raises(errors.NotReady):
            engine.submit(Generation(PROMPT, 5), Collector())
