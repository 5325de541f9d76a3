"""When memory runs out for the language model, a rung of the ladder answers with the same tokens, and says so."""

import random
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from backend.llama import host
from backend.llama.engine import LlamaEngine, host_engine
from backend.llama.request import Generation
from backend.llama.scheduler import Slice
from common import errors
from common.tokenizer import Tokenizer
from tests.backend.llama_faults import FaultyRunner, faulty_runner, until
from tests.backend.llama_kit import (
    Collector,
    engine_of,
    lease_of,
    run,
    settings_of,
    start,
)

CHANCE = random.Random(11)
PROMPTS = [tuple(CHANCE.choices(range(256), k=k)) for k in (30, 7, 19, 50, 3, 41)]
TOKENS = 12

Fails = Callable[[Sequence[Slice]], bool]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    with engine_of(settings_of(folder)) as engine:
        return [run(engine, Generation(prompt, TOKENS)).ids() for prompt in PROMPTS]


def runner_that_fails(folder: Path, fails: Fails) -> FaultyRunner:
    """Refuses memory to the steps that `fails` names."""

    def refuse(step: Sequence[Slice]) -> None:
        if fails(step):
            torch.empty(2**60, dtype=torch.uint8)

    return faulty_runner(folder, refuse)


def answers(engine: LlamaEngine) -> list[Collector]:
    """All prompts at once, to their ends."""
    started = [start(engine, Generation(prompt, TOKENS, lease=lease_of(f"l{i}"))) for i, prompt in enumerate(PROMPTS)]
    return [answer.wait() for answer in started]


def once() -> Fails:
    left = [True]
    return lambda step: bool(left) and left.pop()


def test_a_step_whose_memory_is_back_is_simply_done_again(
    folder: Path, expected: list[list[int]], overlaps: bool
) -> None:
    with engine_of(settings_of(folder), runner_that_fails(folder, once()), overlaps=overlaps) as engine:
        told = answers(engine)
        assert [answer.ids() for answer in told] == expected
        assert "reclaim" in {answer.statement.rung for answer in told if answer.statement}
        assert engine.footprint().totals["oom_reclaim"] == 1
        assert engine.footprint().used_bytes == 0


def test_steps_that_fit_only_by_halves_are_halved(folder: Path, expected: list[list[int]], overlaps: bool) -> None:
    runner = runner_that_fails(folder, lambda step: sum(slice_.count for slice_ in step) > 12)
    with engine_of(settings_of(folder), runner, overlaps=overlaps) as engine:
        told = answers(engine)
        assert [answer.ids() for answer in told] == expected
        assert {answer.statement.rung for answer in told if answer.statement} <= {"none", "halve"}
        assert engine.footprint().totals["oom_halve"] > 0
        assert "oom_failed" not in engine.footprint().totals


def test_where_a_few_sequences_fit_the_newest_wait(folder: Path, expected: list[list[int]], overlaps: bool) -> None:
    runner = runner_that_fails(folder, lambda step: len(step) > 2)
    with engine_of(settings_of(folder), runner, overlaps=overlaps) as engine:
        told = answers(engine)
        assert [answer.error for answer in told] == [None] * len(told)
        assert [answer.ids() for answer in told] == expected
        totals = engine.footprint().totals
        assert totals["oom_preempt"] > 0
        assert totals["preemptions"] > 0


def with_host(folder: Path, runner: FaultyRunner, overlaps: bool = False) -> LlamaEngine:
    settings, tokenizer = settings_of(folder), Tokenizer.load(folder)
    make_host = partial(host_engine, runner, tokenizer, settings.llama)
    engine = LlamaEngine(runner, tokenizer, settings.llama, overlaps=overlaps, make_host=make_host)
    engine.start()
    return engine


def test_what_finds_no_memory_at_all_goes_on_on_the_host_with_the_same_tokens(
    folder: Path, expected: list[list[int]], overlaps: bool
) -> None:
    seen: list[int] = []

    def fails(step: Sequence[Slice]) -> bool:
        seen.append(len(step))
        return len(seen) > 8

    engine = with_host(folder, runner_that_fails(folder, fails), overlaps)
    try:
        told = answers(engine)
        assert [answer.error for answer in told] == [None] * len(told)
        assert [answer.ids() for answer in told] == expected
        assert {answer.statement.rung for answer in told if answer.statement} == {"host_cpu"}
        assert all(answer.ends == 1 for answer in told)
        footprint = engine.footprint()
        assert (footprint.used_bytes, footprint.leases) == (0, ())
        assert footprint.totals["ended_well"] == footprint.totals["requests"] == len(PROMPTS)
    finally:
        engine.close()


def test_a_request_on_the_host_has_its_lease_and_can_be_cancelled_or_be_late(folder: Path) -> None:
    engine = with_host(folder, runner_that_fails(folder, lambda step: True))
    try:
        gone = start(engine, Generation(PROMPTS[0], 90, lease=lease_of("gone")))
        assert gone.progress.wait(60)
        (lease,) = engine.footprint().leases
        assert (lease.id, lease.held_bytes) == ("gone", 0)
        engine.cancel("gone")
        assert isinstance(gone.wait().error, errors.Cancelled)
        late = start(engine, Generation(PROMPTS[0], 90, lease=lease_of("late", deadline_s=0.01)))
        assert isinstance(late.wait().error, errors.DeadlineExceeded)
        until(lambda: engine.footprint().leases == ())
    finally:
        engine.close()


def test_the_host_takes_only_so_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_WAITING", 2)
    engine = with_host(folder, runner_that_fails(folder, lambda step: True))
    try:
        told = [start(engine, Generation(prompt, 60)) for prompt in PROMPTS]
        ends = [answer.wait().error for answer in told]
        assert any(isinstance(error, errors.InternalFault) for error in ends)
        assert ends.count(None) >= 2
        assert engine.footprint().used_bytes == 0
    finally:
        engine.close()


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_third_of_all_tries_refused_costs_nobody_the_answer(
    folder: Path, expected: list[list[int]], overlaps: bool, phase: str
) -> None:
    chance = random.Random(4)

    def fails(step: Sequence[Slice]) -> bool:
        in_phase = any(slice_.is_decode for slice_ in step) == (phase == "decode")
        return in_phase and chance.random() < 1 / 3

    engine = with_host(folder, runner_that_fails(folder, fails), overlaps)
    try:
        for _ in range(2):
            told = answers(engine)
            assert [answer.error for answer in told] == [None] * len(told)
            assert [answer.ids() for answer in told] == expected
            assert engine.footprint().used_bytes == 0
            engine.check()
        assert engine.footprint().totals["oom_reclaim"] > 0
        assert engine.canary() == ""
    finally:
        engine.close()


def test_without_a_host_the_request_gets_a_plain_error_and_the_next_one_an_answer(
    folder: Path, expected: list[list[int]]
) -> None:
    short = [True]
    with engine_of(settings_of(folder), runner_that_fails(folder, lambda step: short[0])) as engine:
        told = answers(engine)
        assert {type(answer.error) for answer in told} == {errors.InternalFault}
        assert "memory ran out" in str(told[0].error)
        assert engine.footprint().totals["oom_failed"] > 0
        short[0] = False
        assert run(engine, Generation(PROMPTS[0], TOKENS)).ids() == expected[0]
        assert engine.health().ready
        assert engine.footprint().used_bytes == 0


def test_the_tensors_of_a_failed_attempt_are_gone_before_the_next_one(folder: Path) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def before(step: Sequence[Slice]) -> None:
        alive.append(sum(ref() is not None for ref in held))
        activations = torch.zeros(100)
        held.append(weakref.ref(activations))
        if len(held) <= 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with engine_of(settings_of(folder), faulty_runner(folder, before)) as engine:
        engine.on_failure = lambda work, error: None
        assert run(engine, Generation(PROMPTS[0], 2)).error is None
    assert alive[:3] == [0, 0, 0]


def test_only_models_that_fit_it_have_a_host_rung(folder: Path) -> None:
    runner = faulty_runner(folder, lambda step: None)
    settings = settings_of(folder).llama
    assert not host.is_allowed(runner, settings)  # it is on the host already
    assert host._pages(runner, settings) == 2 * 8
    assert host._pages(runner, settings.model_copy(update={"host_rung": 2**16})) == 0
