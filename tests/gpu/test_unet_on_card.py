"""The segmentation engine on a card: the masks of the CPU, nothing allocated beside the price, work that ends."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from backend import allocator
from backend.unet import engine as unet_engine
from backend.unet.engine import UnetEngine
from backend.unet.load import open_network, open_runner
from backend.unet.tiles import reflect
from backend.unet.train import predict
from common.errors import Cancelled
from common.settings import Settings
from common.wire import Lease
from estimator.unet import canvas_bytes
from tests.backend.unet_kit import Recorder, noise, request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA card"),
]
Image = NDArray[np.uint8]

SETTINGS = Settings.model_validate({"unet": {"canvas": "64MiB", "tile_pixels": 512}})


@pytest.fixture(scope="module")
def engine() -> Iterator[UnetEngine]:
    started = unet_engine.load(SETTINGS)
    yield started
    started.close()
    torch.cuda.set_per_process_memory_fraction(1.0)


def smooth(height: int, width: int) -> Image:
    """Blobs: an image that the demo model has an opinion of."""
    y, x = np.mgrid[:height, :width]
    levels = 127 + 100 * np.sin(x / 9) * np.sin(y / 11)
    return np.repeat(levels.astype(np.uint8)[:, :, None], 3, axis=2)


def segment(engine: UnetEngine, image: Image, lease: Lease | None = None, **options: Any) -> Recorder:
    outlet = Recorder()
    engine.submit(request(image, lease, **options), outlet)
    return outlet.wait()


@pytest.mark.parametrize("size", [(512, 512), (512, 300), (90, 70), (1, 1)])
def test_masks_in_half_precision_are_those_of_the_cpu(engine: UnetEngine, size: tuple[int, int]) -> None:
    image = smooth(*size)
    tile = image[reflect(0, 512, size[0])[:, None], reflect(0, 512, size[1])]
    expected = predict(open_network(SETTINGS), tile[None])[0][: size[0], : size[1]] > 0.5
    mask = segment(engine, image).mask
    assert mask.shape == size
    assert (mask != expected).mean() <= 0.002


def test_tiles_in_half_precision_are_those_of_the_cpu_in_single(engine: UnetEngine) -> None:
    """The same tiles, blended alike: only the precision differs.

    Rounding every layer to float16 moves the demo model's probabilities by 0.004 at the most, and 0.04 % of the mask.
    """
    image = smooth(1300, 1900)
    on_cpu = UnetEngine(open_runner(SETTINGS, torch.device("cpu")), SETTINGS.unet)
    on_cpu.start()
    try:
        single, half = segment(on_cpu, image, want_probabilities=True), segment(engine, image, want_probabilities=True)
    finally:
        on_cpu.close()
    assert single.statement is not None
    assert half.statement is not None
    assert single.statement.tiles == half.statement.tiles
    assert (half.mask != single.mask).mean() <= 0.001
    expected, probabilities = single.results[0].probabilities, half.results[0].probabilities
    assert expected is not None
    assert probabilities is not None
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=0.02)


def test_an_answer_does_not_depend_on_what_shares_its_batches(engine: UnetEngine) -> None:
    images = [smooth(400 + 10 * n, 500) for n in range(9)]
    alone = [segment(engine, image).mask for image in images]
    outlets = [Recorder() for _ in images]
    for image, outlet in zip(images, outlets, strict=True):
        engine.submit(request(image), outlet)
    for mask, outlet in zip(alone, outlets, strict=True):
        assert (outlet.mask != mask).mean() <= 0.001


def test_nothing_is_allocated_that_was_not_there_when_it_was_warm(engine: UnetEngine) -> None:
    device = engine._runner.device
    torch.cuda.synchronize(device)
    standing_bytes = torch.cuda.memory_allocated(device)
    sizes = ((64, 64), (900, 4100), (3000, 200), (2000, 12_000), (5000, 5000), (700, 513))
    ended = [segment(engine, noise(*size), want_probabilities=size[1] > 4000) for size in sizes]
    together = [Recorder() for _ in sizes]
    for size, outlet in zip(sizes, together, strict=True):
        engine.submit(request(noise(*size)), outlet)
    statements = [outlet.wait().statement for outlet in (*ended, *together)]
    highest_bytes = max(statement.process_peak_bytes for statement in statements if statement is not None)
    assert all(statements)
    assert highest_bytes <= max(0, engine.warm_peak_bytes - engine._base_bytes)
    assert torch.cuda.memory_allocated(device) == standing_bytes
    assert allocator.statistics(device)["num_alloc_retries"] == 0
    assert torch.cuda.memory_reserved(device) <= sum(engine.footprint().standing.values())


def test_cancel_in_the_middle_of_an_image_frees_its_canvas(engine: UnetEngine) -> None:
    outlet = Recorder()
    engine.submit(request(noise(8000, 8000), Lease("gone", {}, 60.0, canvas_bytes=2**26)), outlet)
    while not engine.footprint().used_bytes:
        assert not outlet.ended
    engine.cancel("gone")
    assert isinstance(outlet.wait().error, Cancelled)
    assert engine.footprint().used_bytes == 0
    np.testing.assert_array_equal(segment(engine, smooth(300, 300)).mask, segment(engine, smooth(300, 300)).mask)


def test_a_canvas_on_the_host_gives_the_same_mask_and_holds_nothing_on_the_card(engine: UnetEngine) -> None:
    image = smooth(1300, 1900)
    on_card = segment(engine, image, Lease("paid", {}, 60.0, canvas_bytes=canvas_bytes(1300, 1900, engine.limits)))
    on_host = segment(engine, image, Lease("unpaid", {}, 60.0, canvas_bytes=0))
    assert on_card.statement is not None
    assert on_host.statement is not None
    assert (on_card.statement.rung, on_host.statement.rung) == ("none", "host_canvas")
    assert on_host.statement.held_bytes == 0
    assert (on_card.mask != on_host.mask).mean() <= 0.0005


def test_small_images_run_while_the_canvas_account_is_full(engine: UnetEngine) -> None:
    large = [Recorder() for _ in range(8)]
    for outlet in large:
        engine.submit(request(noise(2000, 12_000)), outlet)
    assert segment(engine, smooth(200, 200)).mask.shape == (200, 200)
    assert all(outlet.wait().error is None for outlet in large)
