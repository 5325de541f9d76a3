"""Calibration without a card: what it chooses, what it learns from measurements, what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from backend import calibrate
from backend.plain import Measured, PlainLlama, PlainUnet
from common.errors import SettingsError
from estimator.llama import LlamaShape
from estimator.plain import Call, Peak
from estimator.plain_unet import Images
from estimator.rounding import LARGE_PAGE_BYTES, Footprint
from estimator.unet import UnetShape

MIB = 2**20
TINY = LlamaShape(2, 64, 4, 2, 16, 128, 1000, 512)


def run_of(path: str, large_bytes: int, mapped_bytes: int, free_bytes: int = 0) -> calibrate.Run:
    peak = Peak("", (), large_bytes, Footprint(0, large_bytes))
    return path, peak, Measured(large_bytes, Footprint(0, mapped_bytes), Footprint(0, free_bytes))


@pytest.mark.parametrize(
    "call", [Call(3, 7, 4, False), Call(3, 7, 4, True), Call(1, 1, 1, False), Call(2, 5, 2, True, sampled=True)]
)
def test_a_plain_model_generates_what_a_call_asks_for(call: Call) -> None:
    PlainLlama(TINY, torch.float32, torch.device("cpu")).generate(call)


def test_a_plain_network_takes_images_of_any_size() -> None:
    PlainUnet(UnetShape(4, 2), torch.float32, torch.device("cpu")).forward(Images(2, 33, 70))


def test_a_factor_is_the_smallest_that_would_have_predicted_every_mapped_page() -> None:
    runs = [run_of("plain long", 100 * MIB, pages * LARGE_PAGE_BYTES) for pages in (5, 6, 6)]
    holes = calibrate._paths(runs)["plain long"]
    assert holes.large_factor == pytest.approx(1.0, abs=1e-3)
    runs.append(run_of("plain long", 100 * MIB, 6 * LARGE_PAGE_BYTES, free_bytes=15 * MIB))
    holes = calibrate._paths(runs)["plain long"]
    assert holes.large_factor == pytest.approx(1.15, abs=1e-3)
    assert (holes.samples, holes.coverage, holes.small_factor) == (4, 0.8, 1.0)


def test_paths_are_learned_apart_and_short_ones_hold_a_page_to_spare() -> None:
    runs = [run_of("plain long", 100 * MIB, 140 * MIB), run_of("plain short", 10 * MIB, 40 * MIB)]
    found = calibrate._paths(runs)
    assert found["plain long"].large_factor == pytest.approx(1.2, abs=1e-3)
    assert (found["plain short"].large_factor, found["plain short"].large_spare_pages) == (1.0, 1)


def test_without_a_card_it_says_that_there_is_nothing_to_calibrate(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    command = [sys.executable, "-m", "backend.calibrate", "llama-3-8b", "--out", str(tmp_path / "p.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "sees no CUDA card" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_segmentation_model_is_named_by_its_sizes() -> None:
    assert calibrate.unet_shape("unet-64x2") == UnetShape(64, 2)
    assert calibrate.unet_shape("llama-3-8b") is None
    with pytest.raises(SettingsError, match="unet-WIDTHxCLASSES"):
        calibrate.unet_shape("unet-64")
