"""What every engine does alike: canaries between turns, a lost device that ends it, moved work that it answers for."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from backend.llama.request import Generation
from backend.llama.sampling import Chosen
from common import errors
from tests.backend.llama_faults import faulty_runner, wait_for
from tests.backend.llama_kit import engine_of, lease_of, run, runner_of, settings_of, start
from tests.backend.unet_kit import Gate, Pointwise, Recorder, lease, noise, request, running, submit

PROMPT = tuple(range(40, 70))
BROKEN = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported asynchronously"


@pytest.fixture
def network() -> Pointwise:
    return Pointwise()


def test_a_text_engine_knows_its_canary_idle_and_busy_and_holds_nothing_for_it(folder: Path) -> None:
    with engine_of(settings_of(folder)) as engine:
        before = engine.footprint()
        assert engine.canary() == ""
        assert engine.footprint() == before
        busy = [start(engine, Generation(PROMPT, 60)) for _ in range(6)]
        assert engine.canary() == ""
        assert len({tuple(answer.wait().ids()) for answer in busy}) == 1


def test_a_text_engine_whose_weights_have_changed_fails_its_canary(folder: Path) -> None:
    runner = runner_of(settings_of(folder))
    with engine_of(settings_of(folder), runner) as engine:
        with torch.inference_mode():
            runner.model.norm.neg_()
        assert "where it answered" in engine.canary()
        with torch.inference_mode():
            runner.model.norm.fill_(float("nan"))
        assert "not made of numbers" in engine.canary()


def test_an_image_engine_knows_its_canary_and_tells_when_it_is_wrong(network: Pointwise) -> None:
    with running(network) as unet:
        assert unet.canary() == ""

        def drift(images: torch.Tensor) -> None:
            images += 1

        network.before = drift
        assert "off by" in unet.canary()

        def poison(images: torch.Tensor) -> None:
            images[:] = float("nan")

        network.before = poison
        assert "not made of numbers" in unet.canary()


def test_a_hung_engine_gives_its_canary_no_answer(network: Pointwise) -> None:
    with running(network, stall_s=0.05) as unet:
        gate = Gate(network)
        held = submit(unet, noise(100, 100), wait=False)
        gate.arrived()
        assert "no answer" in unet.canary()
        gate.open()
        held.wait()
        assert unet.canary() == ""


def test_a_canary_without_memory_says_nothing_about_the_engine(network: Pointwise) -> None:
    def refuse(images: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with running(network) as unet:
        network.before = refuse
        with pytest.raises(errors.NotNow):
            unet.canary()
        assert unet.health().ready


def test_a_text_engine_whose_device_is_lost_fails_everybody_at_once_and_ends(folder: Path) -> None:
    lost: list[str] = []
    ended = threading.Event()

    def hear(reason: str) -> None:
        lost.append(reason)
        ended.set()

    gate = threading.Event()

    def fall_over(step: object) -> None:
        wait_for(gate)
        raise RuntimeError(BROKEN)

    with engine_of(settings_of(folder, max_batch=1), faulty_runner(folder, fall_over)) as engine:
        engine.on_lost = hear
        answers = [start(engine, Generation(PROMPT, 5, lease=lease_of(f"l{number}"))) for number in range(3)]
        gate.set()
        assert all(isinstance(answer.wait().error, errors.NotReady) for answer in answers)
        assert ended.wait(20)
        assert lost == ["RuntimeError: CUDA error: an illegal memory access was encountered"]
        health = engine.health()
        assert not health.ready
        assert "the device is lost" in health.reason
        assert "the device is lost" in engine.canary()
        with pytest.raises(errors.NotReady, match="lost"):
            run(engine, Generation(PROMPT, 5))
        assert engine.footprint().used_bytes == 0


def test_a_device_that_is_lost_while_tokens_are_read_is_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[str] = []
    ended = threading.Event()

    def hear(reason: str) -> None:
        lost.append(reason)
        ended.set()

    def fall_over(chosen: Chosen) -> None:
        raise RuntimeError(BROKEN)

    with engine_of(settings_of(folder), overlaps=True) as engine:
        engine.on_lost = hear
        monkeypatch.setattr(Chosen, "read", fall_over)
        assert isinstance(run(engine, Generation(PROMPT, 5)).error, errors.NotReady)
        assert ended.wait(20)
        assert lost == ["RuntimeError: CUDA error: an illegal memory access was encountered"]


def test_an_errand_after_a_long_rest_is_no_stall(folder: Path) -> None:
    with engine_of(settings_of(folder)) as engine:
        engine._progress_s -= 1000
        with engine._wake:  # so that the thread cannot come to it yet
            engine.retreat()
            assert engine.health().ready


def test_an_image_engine_whose_device_is_lost_fails_everybody_at_once_and_ends(network: Pointwise) -> None:
    ended = threading.Event()
    with running(network) as unet:
        unet.on_lost = lambda reason: ended.set()
        gate = Gate(network)
        hold = network.before

        def fall_over(images: torch.Tensor) -> None:
            hold(images)
            raise RuntimeError(BROKEN)

        network.before = fall_over
        outlets = [Recorder() for _ in range(3)]
        for number, outlet in enumerate(outlets):
            unet.submit(request(noise(60, 60), lease(f"l{number}")), outlet)
        gate.arrived()
        gate.open()
        assert all(isinstance(outlet.wait().error, errors.NotReady) for outlet in outlets)
        assert ended.wait(20)
        assert "the device is lost" in unet.health().reason
        assert unet.footprint().used_bytes == 0


def test_a_picture_after_a_canary_is_the_same_as_before(network: Pointwise) -> None:
    with running(network) as unet:
        before = submit(unet, noise(70, 70)).mask
        assert unet.canary() == ""
        np.testing.assert_array_equal(submit(unet, noise(70, 70)).mask, before)
