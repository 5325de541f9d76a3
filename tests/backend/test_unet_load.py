"""Weights come from a safetensors file or a torch checkpoint; what does not fit is refused with the setting's name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from backend.fallback import Rung
from backend.unet import engine as unet_engine
from backend.unet.books import Books
from backend.unet.canvas import StripPool
from backend.unet.load import open_network, open_runner, weights_file
from backend.unet.network import UNet
from backend.unet.workspace import Workspace
from common.errors import InvalidRequest, SettingsError
from common.settings import Settings
from tests.backend.unet_kit import TILE, Recorder, lease, limits, noise, request

CPU = torch.device("cpu")


def settings(**unet: Any) -> Settings:
    return Settings.model_validate({"unet": {"width": 4, "tile_pixels": TILE, "canvas": 2**16} | unet})


@pytest.fixture
def network() -> UNet:
    torch.manual_seed(5)
    return UNet(4)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".wrapped.pt"])
def test_both_kinds_of_files_give_the_same_network(tmp_path: Path, network: UNet, suffix: str) -> None:
    file = tmp_path / f"weights{suffix}"
    state = network.state_dict()
    if suffix == ".safetensors":
        save_file({name: value.half() if value.is_floating_point() else value for name, value in state.items()}, file)
    else:
        torch.save({"state_dict": state} if "wrapped" in suffix else state, file)
    loaded = open_network(settings(weights=file)).state_dict()
    for name, value in state.items():
        torch.testing.assert_close(loaded[name], value, rtol=1e-3, atol=1e-4)


def test_another_width_or_class_count_is_refused_and_named(tmp_path: Path, network: UNet) -> None:
    file = tmp_path / "w.safetensors"
    save_file(network.state_dict(), file)
    for wrong in ({"width": 8}, {"class_names": ("a", "b")}):
        with pytest.raises(SettingsError, match=r"unet\.width, unet\.class_names"):
            open_network(settings(weights=file, **wrong))


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    for name in ("junk.safetensors", "junk.pth"):
        (tmp_path / name).write_bytes(b"not weights at all")
        with pytest.raises(SettingsError, match=r"unet\.weights"):
            open_network(settings(weights=tmp_path / name))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nowhere"):
        weights_file(settings(weights=tmp_path / "nowhere.safetensors"))


def test_the_demo_weights_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert weights_file(settings()).is_file()


def test_random_weights_are_the_same_each_time() -> None:
    first, second = (open_network(settings(dummy_weights=True)).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("wrong", [{"mean": (0.5,)}, {"std": (1.0, 1.0, 0.0)}, {"width": 5}, {"class_names": ()}])
def test_settings_that_make_no_network_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=rf"unet\.{next(iter(wrong))}"):
        open_runner(settings(dummy_weights=True, **wrong), CPU)


def test_a_grant_below_what_the_engine_stands_on_is_refused_with_both_numbers() -> None:
    with pytest.raises(SettingsError, match=r"unet\.grant: .* needed, the grant is 1,000 B"):
        open_runner(settings(dummy_weights=True, grant=1000), CPU)


def test_weights_that_give_no_numbers_never_serve(tmp_path: Path, network: UNet) -> None:
    with torch.no_grad():
        network.decoder.blocks[0].conv1[0].weight.fill_(float("nan"))  # type: ignore[index, union-attr]
    file = tmp_path / "w.safetensors"
    save_file(network.state_dict(), file)
    with pytest.raises(SettingsError, match="finite"):
        unet_engine.load(settings(weights=file))


def test_a_loaded_engine_answers_and_stands_on_no_more_than_priced() -> None:
    engine = unet_engine.load(settings(dummy_weights=True))
    try:
        outlet = Recorder()
        engine.submit(request(noise(50, 40)), outlet)
        assert outlet.mask.shape == (50, 40)
        assert engine.footprint().capacity_bytes <= 2**16
    finally:
        engine.close()


def test_a_lease_without_money_for_a_device_canvas_gets_one_on_the_host() -> None:
    device_pool, host_pool = StripPool(limits(), CPU), StripPool(limits(), CPU)
    books = Books(limits(), device_pool, host_pool, max_waiting=8)
    job = books.open(request(noise(40, 40), lease(canvas_bytes=0)), Recorder(), now_s=0.0)
    job.image = job.request.image
    books.ready(job)
    assert books.next_to_start() is job
    job.start(classes=1, now_s=1.0)
    assert (device_pool.used_bytes, host_pool.used_bytes) == (0, job.grid.strips * host_pool.strip_bytes)
    for tile in range(job.grid.tiles):
        job.take(tile, torch.full((1, TILE, TILE), 3.0, dtype=torch.half), Workspace(limits(), CPU))
    assert job.answer is not None
    np.testing.assert_array_equal(job.answer.mask().mask, np.ones((40, 40), np.uint8))
    statement = job.statement(now_s=2.0, process_peak_bytes=0)
    assert (statement.rung, statement.held_bytes) == (Rung.HOST_CANVAS, 0)
    books.end(job, None)
    assert host_pool.used_bytes == 0


def test_an_image_that_fails_between_two_looks_at_the_line_is_not_started() -> None:
    pool = StripPool(limits(), CPU)
    books = Books(limits(), pool, pool, max_waiting=8)
    broken, sound = (books.open(request(noise(20, 20)), Recorder(), now_s=0.0) for _ in range(2))
    assert books.unwanted(now_s=0.0) == []
    broken.failure, sound.image = InvalidRequest("the image is broken"), sound.request.image
    books.ready(broken)
    books.ready(sound)
    assert books.next_to_start() is sound
    assert books.next_to_start() is None
    assert books.unwanted(now_s=0.0) == [(broken, broken.failure)]
