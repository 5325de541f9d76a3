"""On a card: memory that torch's allocator really refuses, in every kind of work, a hundred times each.

Everybody is answered, through a rung or with an error that says so, and the allocator ends where it began.
"""

import gc
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backend import allocator
from backend.llama import engine as llama_engine
from backend.llama.engine import LlamaEngine
from backend.llama.request import Generation, Sampling
from backend.unet import engine as unet_engine
from backend.unet.canvas import StripPool
from backend.unet.engine import UnetEngine
from common import errors
from common.settings import Settings
from tests.backend.llama_kit import Collector, lease_of, save_tokenizer, start
from tests.backend.unet_kit import Recorder, lease, noise, request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]
TIMES = 100
TOO_MANY_BYTES = 2**45
CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 8192,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
STEP_TOKENS = 2048


class Refusal:
    """Has the allocator refuse something huge at some calls of what it stands in front of."""

    def __init__(self) -> None:
        self.chance = random.Random(5)
        self.share = 0.0
        """Of calls that fail."""
        self.refused = 0

    def before(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if self.chance.random() < self.share:
                self.refused += 1
                torch.empty(TOO_MANY_BYTES, dtype=torch.uint8, device="cuda")
            return method(*arguments, **options)

        return wrapped


@pytest.fixture(scope="module", autouse=True)
def _without_walls() -> Iterator[None]:
    """Both engines live in this one process, each wall would be for one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocator, "wall", lambda device, grant_bytes: None)
        yield


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_tokenizer(folder)
    sizes = {"grant": 2**32, "pages": 64, "step_tokens": STEP_TOKENS, "max_batch": 8}
    started = llama_engine.load(
        Settings.model_validate({"llama": {"model": str(folder), "dummy_weights": True} | sizes})
    )
    yield started
    started.close()


@pytest.fixture(scope="module")
def unet() -> Iterator[UnetEngine]:
    started = unet_engine.load(Settings.model_validate({"unet": {"canvas": "64MiB"}}))
    yield started
    started.close()


def allocated_bytes() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def assert_answered(answers: list[Collector]) -> set[str]:
    """Every one has ended, well or with a plain error; returns the rungs."""
    for answer in answers:
        error = answer.wait().error
        assert answer.ends == 1
        assert error is None or (isinstance(error, errors.InternalFault) and "memory ran out" in str(error)), error
    return {answer.statement.rung for answer in answers if answer.statement}


def prompts(count: int, tokens: int) -> list[tuple[int, ...]]:
    chance = random.Random(count)
    return [tuple(chance.choices(range(256), k=tokens)) for _ in range(count)]


@pytest.mark.parametrize(("tokens", "output"), [(1500, 2), (20, 60)], ids=["prefill", "decode"])
def test_refusals_in_text_are_answered_through_rungs(
    llama: LlamaEngine, monkeypatch: pytest.MonkeyPatch, tokens: int, output: int
) -> None:
    refusal = Refusal()
    monkeypatch.setattr(llama._runner, "forward", refusal.before(llama._runner.forward))
    before_bytes = allocated_bytes()
    rungs: set[str] = set()
    refusal.share = 0.5
    while refusal.refused < TIMES:
        sampling = Sampling(temperature=0.8)
        answers = [
            start(llama, Generation(prompt, output, sampling=sampling, lease=lease_of(f"l{number}")))
            for number, prompt in enumerate(prompts(6, tokens))
        ]
        rungs |= assert_answered(answers)
        assert llama.footprint().used_bytes == 0
    assert {"reclaim", "halve"} <= rungs
    refusal.share = 0.0
    assert llama.canary() == ""
    assert abs(allocated_bytes() - before_bytes) < 2**20


def test_a_prefill_that_fits_only_by_halves_is_halved_under_a_real_wall(llama: LlamaEngine) -> None:
    device = llama._runner.device
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    before_bytes = allocated_bytes()
    torch.cuda.empty_cache()
    whole_bytes = 2 * 2 * CONFIG["intermediate_size"] * STEP_TOKENS  # type: ignore[operator]
    rungs = set()
    try:
        for share in (4.0, 1.2, 0.7, 0.4, 0.05):
            wall_bytes = torch.cuda.memory_reserved(device) + int(share * whole_bytes)
            torch.cuda.set_per_process_memory_fraction(wall_bytes / total_bytes, device)
            rungs |= assert_answered([start(llama, Generation(prompt, 2)) for prompt in prompts(2, 3000)])
            torch.cuda.empty_cache()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    print(f"rungs under a wall: {sorted(rungs)}")
    assert "none" in rungs
    assert len(rungs) > 1
    assert assert_answered([start(llama, Generation(prompts(1, 3000)[0], 2))]) == {"none"}
    assert abs(allocated_bytes() - before_bytes) < 2**20


def test_text_that_finds_no_memory_at_all_goes_on_on_the_host(
    llama: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = Refusal()
    with monkeypatch.context() as patch:
        patch.setattr(llama._runner, "forward", refusal.before(llama._runner.forward))
        refusal.share = 1.0
        answer = start(llama, Generation(prompts(1, 50)[0], 8))
        assert assert_answered([answer]) == {"host_cpu"}
        assert len(answer.ids()) == 8
    assert assert_answered([start(llama, Generation(prompts(1, 50)[0], 8))]) == {"none"}


PARTS: dict[str, tuple[Callable[[UnetEngine], Any], str]] = {
    "tile batch": (lambda unet: unet._runner, "run"),
    "canvas start": (lambda unet: StripPool, "take"),
    "canvas": (lambda unet: StripPool, "indices"),
}


@pytest.mark.parametrize("part", PARTS)
def test_refusals_in_images_are_answered_through_rungs(
    unet: UnetEngine, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    refusal = Refusal()
    find, name = PARTS[part]
    owner = find(unet)
    image = noise(700, 1300)
    right = mask_of(unet, image)
    before_bytes = allocated_bytes()
    monkeypatch.setattr(owner, name, refusal.before(getattr(owner, name)))
    rungs: set[str] = set()
    while refusal.refused < TIMES:
        refusal.share = 0.4
        outlets = [Recorder() for _ in range(4)]
        for number, outlet in enumerate(outlets):
            unet.submit(request(image, lease(f"l{number}", canvas_bytes=10**9)), outlet)
        for outlet in outlets:
            error = outlet.wait().error
            assert outlet.ends == 1
            assert error is None or isinstance(error, errors.InternalFault)
            if error is None:
                assert (outlet.mask != right).mean() < 0.01
        rungs |= {outlet.statement.rung for outlet in outlets if outlet.statement}
        assert unet.footprint().used_bytes == 0
        refusal.share = 0.0
        unet.advance()
        assert unet.canary() == ""
    assert "reclaim" in rungs
    assert unet.away_bytes == 0
    assert abs(allocated_bytes() - before_bytes) < 2**20


def mask_of(unet: UnetEngine, image: Any) -> Any:
    outlet = Recorder()
    unet.submit(request(image), outlet)
    return outlet.mask


def test_canvases_give_their_pool_back_to_the_card_and_take_it_again(unet: UnetEngine) -> None:
    device, image = unet._runner.device, noise(700, 1300)
    right = mask_of(unet, image)
    before = allocator.read(device)
    outlet = Recorder()
    unet.submit(request(image), outlet)
    unet.retreat()
    assert (outlet.mask != right).mean() < 0.01
    assert unet.canary() == ""
    assert unet.away_bytes == unet.limits.canvas_bytes
    away = allocator.read(device)
    assert before.allocated_bytes - away.allocated_bytes >= unet.limits.canvas_bytes
    assert before.reserved_bytes - away.reserved_bytes >= unet.limits.canvas_bytes // 2
    np.testing.assert_array_equal(mask_of(unet, image).shape, right.shape)
    unet.advance()
    assert (mask_of(unet, image) != right).mean() < 0.01
    assert unet.away_bytes == 0
    assert abs(allocated_bytes() - before.allocated_bytes) < 2**20


LOSE_THE_DEVICE = """
import sys, threading
import torch
from backend.service import end_process
from backend.unet import engine as unet_engine
from common.settings import Settings
from tests.backend.unet_kit import Recorder, noise, request
unet = unet_engine.load(Settings.model_validate({"unet": {"canvas": "64MiB", "dummy_weights": True}}))
outlet = Recorder()
def lose(count):
    index = torch.full((1,), 7, device="cuda")
    return torch.zeros(3, device="cuda")[index]
unet._runner.run = lose
def farewell():
    print(type(outlet.wait().error).__name__, unet.health().reason, flush=True)
unet.on_lost = lambda reason: end_process(farewell)
unet.submit(request(noise(700, 700)), outlet)
threading.Event().wait(60)
"""


def test_a_process_whose_device_is_lost_tells_everybody_and_is_gone() -> None:
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", LOSE_THE_DEVICE], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 70, ran.stderr
    assert ran.stdout.startswith("NotReady the device is lost"), ran.stdout
