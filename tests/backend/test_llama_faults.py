"""Faults stay with the request that has them; nothing leaks: no page, no token."""

import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from backend.llama.engine import LlamaEngine
from backend.llama.request import Chunk, Generation, Sampling
from backend.llama.scheduler import Slice
from common import errors
from tests.backend.llama_faults import faulty_runner, until, wait_for
from tests.backend.llama_kit import (
    Collector,
    engine_of,
    lease_of,
    run,
    runner_of,
    save_model,
    settings_of,
    small_config,
    start,
)

PROMPT = tuple(random.Random(5).choices(range(256), k=30))
POISON = 255
"""A prompt that starts with this token makes the faulty runner fail."""


@pytest.fixture
def engine(folder: Path, overlaps: bool) -> Iterator[LlamaEngine]:
    with engine_of(settings_of(folder), overlaps=overlaps) as engine:
        yield engine


def test_a_poisoned_request_fails_alone(folder: Path, overlaps: bool) -> None:
    def fail_on_poison(step: Sequence[Slice]) -> None:
        if any(slice_.sequence.tokens[0] == POISON for slice_ in step):
            raise RuntimeError("a kernel fell over")

    with engine_of(settings_of(folder), faulty_runner(folder, fail_on_poison), overlaps=overlaps) as engine:
        expected = run(engine, Generation(PROMPT, 30)).ids()
        good = [start(engine, Generation(PROMPT, 30)) for _ in range(2)]
        bad = start(engine, Generation((POISON, 1, 2), 30))
        more = [start(engine, Generation(PROMPT, 30)) for _ in range(2)]
        assert isinstance(bad.wait().error, errors.InternalFault)
        assert "kernel" not in str(bad.error)
        for answer in (*good, *more):
            assert answer.wait().ids() == expected
        assert engine.health().ready
        assert engine.footprint().used_bytes == 0


def test_numbers_that_are_none_reach_no_neighbour_for_whom_their_owner_gives_way(folder: Path, overlaps: bool) -> None:
    settings = settings_of(folder, pages=9, oversubscribe=4.0)
    runner = runner_of(settings)
    with torch.inference_mode():
        runner.model.embedding[POISON] = float("nan")
    healthy = [Generation(tuple(range(tokens)), 12) for tokens in (47, 31)]
    with engine_of(settings, runner, overlaps=overlaps) as engine:
        expected = [run(engine, request).ids() for request in healthy]
        with engine._wake:  # so that they start together
            grow = [start(engine, request) for request in healthy]
            gives_way = start(engine, Generation((POISON,) * 46, 5))
        assert [answer.wait().ids() for answer in grow] == expected
        assert isinstance(gives_way.wait().error, errors.InternalFault)
        assert engine.footprint().totals["preemptions"] > 0


def test_numbers_that_are_none_reach_no_neighbour_that_starts_with_them(folder: Path, overlaps: bool) -> None:
    gate = threading.Event()
    runner = faulty_runner(folder, lambda _: wait_for(gate), step_tokens=200)
    with torch.inference_mode():
        runner.model.embedding[POISON] = float("nan")
    with engine_of(settings_of(folder, step_tokens=200), runner, overlaps=overlaps) as engine:
        first = start(engine, Generation((1,), 2))
        until(lambda: engine.footprint().used_bytes > 0)
        healthy = tuple(token_id for token_id in PROMPT if token_id != POISON)
        good = [start(engine, Generation(healthy, 10)) for _ in range(2)]
        bad = start(engine, Generation((POISON, *healthy), 10))
        gate.set()
        for answer in (first, *good):
            assert answer.wait().error is None
        assert isinstance(bad.wait().error, errors.InternalFault)
        assert good[0].ids() == good[1].ids() == run(engine, Generation(healthy, 10)).ids()


def test_numbers_that_are_none_fail_one_request_and_leave_no_trace_in_its_pages(folder: Path, overlaps: bool) -> None:
    runner = runner_of(settings_of(folder, pages=3, max_batch=1))
    with torch.inference_mode():
        runner.model.embedding[POISON] = float("nan")
    with engine_of(settings_of(folder, pages=3, max_batch=1), runner, overlaps=overlaps) as engine:
        healthy = tuple(token_id for token_id in PROMPT if token_id != POISON)
        expected = run(engine, Generation(healthy, 3)).ids()
        bad = run(engine, Generation((POISON, *healthy[:17]), 20))
        assert isinstance(bad.error, errors.InternalFault)
        assert run(engine, Generation(healthy, 3)).ids() == expected
    assert bool(runner.pool.layer(0)[0][:3].isfinite().all())


def test_a_broken_turn_drops_its_work_and_the_engine_goes_on(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, now_s: float) -> list[Slice]:
        raise RuntimeError("the scheduler is confused")

    with monkeypatch.context() as patch:
        patch.setattr("backend.llama.books.Books.plan", broken)
        answer = run(engine, Generation(PROMPT, 5))
        assert isinstance(answer.error, errors.InternalFault)
        assert answer.ends == 1
    assert run(engine, Generation(PROMPT, 5)).error is None


def test_an_outlet_that_fails_harms_only_its_own_request(engine: LlamaEngine) -> None:
    class Broken(Collector):
        def put(self, result: Chunk) -> None:
            raise OSError("the other side has gone")

    broken = Broken()
    engine.submit(Generation(PROMPT, 20), broken)
    assert run(engine, Generation(PROMPT, 20)).error is None
    assert isinstance(broken.wait().error, errors.Cancelled)


@pytest.mark.parametrize("oversubscribe", [1.0, 2.5])
def test_no_page_is_lost_over_hundreds_of_requests_with_random_cancels(
    folder: Path, oversubscribe: float, overlaps: bool
) -> None:
    chance = random.Random(3)
    with engine_of(settings_of(folder, oversubscribe=oversubscribe, max_waiting=1000), overlaps=overlaps) as engine:
        answers = []
        for number in range(300):
            prompt = tuple(chance.choices(range(256), k=chance.randint(1, 60)))
            request = Generation(
                prompt,
                chance.randint(1, 30),
                n=chance.choice([1, 1, 1, 3]),
                sampling=Sampling(chance.choice([0.0, 1.0]), chance.choice([1.0, 0.8])),
                stop=("e",) if chance.random() < 0.2 else (),
                lease=lease_of(f"lease-{number}"),
            )
            answers.append(start(engine, request))
            if chance.random() < 0.3:
                engine.cancel(f"lease-{chance.randint(max(0, number - 5), number)}")
                engine.check()
        for answer in answers:
            answer.wait()
        engine.check()
        footprint = engine.footprint()
        assert footprint.used_bytes == 0
        assert footprint.leases == ()
        totals = footprint.totals
        assert totals["ended_well"] + totals["ended_cancelled"] == totals["requests"] == 300
        assert min(totals["ended_well"], totals["ended_cancelled"]) > 30
    assert all(answer.ends == 1 for answer in answers)


def test_no_token_of_one_request_appears_in_anothers(tmp_path: Path, overlaps: bool) -> None:
    """Every request repeats its own mark for ever, so whatever else comes out is somebody else's."""
    model = save_model(tmp_path, small_config(vocab_size=256, num_key_value_heads=6, tie_word_embeddings=True))
    parrot_(model)
    model.save_pretrained(tmp_path)
    chance = random.Random(9)
    with engine_of(settings_of(tmp_path, oversubscribe=2.0), overlaps=overlaps) as engine:
        marked = []
        for number in range(150):
            mark = chance.randrange(256)
            prompt = (mark,) * chance.randint(1, 50)
            marked.append((mark, start(engine, Generation(prompt, 20, lease=lease_of(f"lease-{number}")))))
            if chance.random() < 0.2:
                engine.cancel(f"lease-{chance.randint(0, number)}")
        for mark, answer in marked:
            assert set(answer.wait().ids()) <= {mark}
        assert engine.footprint().totals["ended_well"] > 50


def parrot_(model: LlamaForCausalLM) -> None:
    """Makes the model say what most of its context says: attention passes on what it reads, ten times louder."""
    with torch.no_grad():
        torch.nn.functional.normalize(model.model.embed_tokens.weight, out=model.model.embed_tokens.weight)
        for layer in model.model.layers:
            torch.nn.init.eye_(layer.self_attn.v_proj.weight)
            torch.nn.init.eye_(layer.self_attn.o_proj.weight).mul_(10.0)
            layer.mlp.down_proj.weight.zero_()
