"""A step whose tokens are not known yet, and then memory runs out, somebody leaves, or they cannot be read."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from backend.llama.flight import stand_in
from backend.llama.request import Generation, Sampling
from backend.llama.sampling import Choice, Chosen, Draw, choose
from backend.llama.scheduler import Sequence as Tokens
from backend.llama.scheduler import Slice
from common import errors
from tests.backend.llama_faults import faulty_runner
from tests.backend.llama_kit import engine_of, lease_of, run, runner_of, settings_of, start

CHANCE = random.Random(11)
PROMPTS = [tuple(CHANCE.choices(range(256), k=k)) for k in (30, 7, 19, 50, 3, 41)]


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("a kernel fell over")])
def test_who_leaves_in_the_step_that_fails_is_cancelled_and_costs_nobody_the_answer(
    folder: Path, overlaps: bool, fault: RuntimeError
) -> None:
    told: list[str] = []
    decodes: list[int] = []

    def leave_and_fail(step: Sequence[Slice]) -> None:
        if len(step) == 2 and all(slice_.is_decode for slice_ in step):
            decodes.append(len(step))
            if len(decodes) == 4:
                engine.cancel("leaves")
                raise fault

    with engine_of(settings_of(folder), faulty_runner(folder, leave_and_fail), overlaps=overlaps) as engine:
        engine.on_failure = lambda work, error: told.append(type(error).__name__)
        stays = start(engine, Generation(PROMPTS[0], 20, lease=lease_of("stays")))
        leaves = start(engine, Generation(PROMPTS[1], 20, lease=lease_of("leaves")))
        assert isinstance(leaves.wait().error, errors.Cancelled)
        assert stays.wait().error is None
    assert told == [type(fault).__name__]


def test_a_step_that_is_done_again_draws_the_same_tokens(
    folder: Path, overlaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [Generation(prompt, 8, sampling=Sampling(seed=seed)) for seed, prompt in enumerate(PROMPTS)]
    chosen = [0]

    def fail_late(logits: torch.Tensor, draws: Sequence[Draw]) -> Chosen:
        result = choose(logits, draws)
        chosen[0] += 1
        if chosen[0] % 3 == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return result

    with engine_of(settings_of(folder), overlaps=overlaps) as engine:
        expected = [run(engine, request).ids() for request in requests]
        monkeypatch.setattr("backend.llama.engine.choose", fail_late)
        answers = [start(engine, request) for request in requests]
        assert [answer.wait().ids() for answer in answers] == expected


def test_tokens_that_cannot_be_read_fail_those_who_were_preempted_meanwhile_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failed = Chosen.read, [0]

    def fail_for_the_preempted(chosen: Chosen) -> list[Choice | None]:
        if any(not sequence.pages and sequence.tokens[-1] < 0 for sequence in list(engine._books._answers)):
            failed[0] += 1
            raise ValueError("no tokens")
        return read(chosen)

    settings = settings_of(folder, pages=10, oversubscribe=4.0)
    with engine_of(settings, overlaps=True) as engine:
        told: list[str] = []
        engine.on_failure = lambda work, error: told.append(type(error).__name__)
        monkeypatch.setattr(Chosen, "read", fail_for_the_preempted)
        answers = [start(engine, Generation(prompt, 40)) for prompt in PROMPTS]
        ends = [answer.wait().error for answer in answers]
    assert failed[0] > 0
    assert any(isinstance(error, errors.InternalFault) for error in ends)
    assert set(told) == {"ValueError"}


def test_a_token_that_nobody_knows_does_not_reach_the_device(folder: Path) -> None:
    runner = runner_of(settings_of(folder))
    lost = Slice(Tokens([5, stand_in(0)], max_tokens=1, pages=[0], computed=1), 1, 1, samples=True)
    with pytest.raises(ValueError, match="not known"):
        runner.forward([lost])
