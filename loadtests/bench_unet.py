"""The UNet engine beside a plain loop over tiles, and its memory under images of all sizes.

``python -m loadtests.bench_unet`` on a CUDA card writes ``results/unet_h200.json`` (width 64, fp16, random weights);
without one ``results/unet_cpu.json`` (the demo model, width 16, float32). Where the nuclei images are there
(``--data``, or in ``shared/data`` beside the checkout) the demo model's IoU is measured as well, and how far its masks
from tiles are those of whole images.
"""

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from backend import allocator
from backend.unet import engine as unet_engine
from backend.unet import load
from backend.unet.engine import UnetEngine
from common.sections import Unet
from common.settings import Settings
from common.wire import UNET_CANVAS
from estimator.unet import grid, price_request
from loadtests import nuclei, record, seams, unet_driver
from loadtests.plain_loop import PlainLoop
from loadtests.unet_driver import Image

SMALL_PIXELS = 64

Figures = dict[str, float]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Sizes:
    """How much is run; edges in pixels."""

    speed_edge: int = 7808
    """Of the image whose tiles are counted for `pixels_ratio`: 20 x 20 tiles of 512, so no batch is partly filled."""
    images: int = 128
    """Of one tile each, at once."""
    largest_edge: int = 12_000
    varied_images: int = 500
    small_images: int = 100
    repeats: int = 7


CARD = Sizes()
CPU = Sizes(images=32, varied_images=60, repeats=21)


def main() -> None:
    """Runs what this machine can run and writes its record."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench_unet", description="Measures the UNet engine.")
    parser.add_argument(
        "--data", type=Path, default=nuclei.DATA, help="npz with nuclei images X and masks Y, for the IoU"
    )
    data: Path = parser.parse_args().data
    figures: Figures = {}
    rows: Rows = []
    bench_masks(data, figures, rows)
    if torch.cuda.is_available():
        bench_card(Settings(unet=Unet(width=64, dummy_weights=True)), CARD, figures, rows)
        path = record.write("unet_h200", figures, rows, torch.cuda.get_device_name())
    else:
        bench_cpu(Settings(), CPU, figures, rows)
        path = record.write("unet_cpu", figures, rows)
    print(path)


def bench_card(settings: Settings, sizes: Sizes, figures: Figures, rows: Rows) -> None:
    """All figures of the card. Memory first, within the engine's grant; the loops it is compared with need more."""
    image = unet_driver.noise(sizes.largest_edge, sizes.largest_edge)
    with opened(settings, figures) as engine:
        memory_figures(engine, image, sizes, figures, rows)
        waiting_figures(engine, image, sizes, figures, rows)
        if engine._runner.device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0)
        pixels_figures(engine, settings, sizes, figures, rows)
        images_figures(engine, settings, "images_ratio", sizes, figures, rows)


def bench_cpu(settings: Settings, sizes: Sizes, figures: Figures, rows: Rows) -> None:
    """The demo model on the CPU, where there is no allocator whose peak could be read."""
    image = unet_driver.noise(sizes.largest_edge, sizes.largest_edge)
    with opened(settings, figures) as engine:
        images_figures(engine, settings, "cpu_images_ratio", sizes, figures, rows)
        memory_figures(engine, image[:4000, :4000], sizes, figures, rows)
        waiting_figures(engine, image, sizes, figures, rows)


def bench_masks(data: Path, figures: Figures, rows: Rows) -> None:
    """The demo model's IoU on the test part, and its masks from tiles against whole images; nothing without images."""
    if data.is_file():
        with opened(Settings(), {}) as engine:
            iou = nuclei.test_iou(engine, data)
            for row in seams.rows(engine, data):
                _add(rows, row)
        figures["iou"] = iou["mean"]
        figures["differing_ratio"], figures["differing_near_seams_ratio"] = row["all"], row["near_seams"]
        _add(rows, {"what": "iou, test part", "device": engine.device} | iou)


def memory_figures(engine: UnetEngine, image: Image, sizes: Sizes, figures: Figures, rows: Rows) -> None:
    """Images of all sizes: how far the peak rises above the warm-up's, and how far prices are from what was held.

    The pool of canvases is part of what is allocated before any request, so it is in neither peak.
    """
    base_bytes = engine._base_bytes
    warm_bytes = max(0, allocator.peak_bytes(engine._runner.device) - base_bytes)
    highest_bytes, tiles = 0, 0
    errors = [abs(engine._books._pool.logits.nbytes - engine.limits.canvas_bytes)]
    shapes = varied_shapes(sizes.varied_images, image.shape[0])
    started_s = time.perf_counter()
    for first in range(0, len(shapes), 20):
        wave = shapes[first : first + 20]
        results = unet_driver.together(engine, [image[:height, :width] for height, width in wave])
        for (height, width), (_, statement) in zip(wave, results, strict=True):
            price = price_request(engine.limits, height, width, encoded_bytes=0, probabilities=False)
            errors.append(abs(statement.held_bytes - price.by_account().get(UNET_CANVAS, 0)))
            highest_bytes = max(highest_bytes, statement.process_peak_bytes)
            tiles += statement.tiles or 0
    if engine._runner.device.type == "cuda":
        figures["unpriced_peak_drift_bytes"] = highest_bytes - warm_bytes
    figures["canvas_price_error_bytes"] = max(errors)
    peaks = {"base_bytes": base_bytes, "warm_peak_bytes": warm_bytes, "highest_bytes": highest_bytes}
    elapsed_s = time.perf_counter() - started_s
    _add(
        rows,
        {
            "what": "images of all sizes",
            "images": len(shapes),
            "largest_edge": image.shape[0],
            "tiles": tiles,
            "s": elapsed_s,
        }
        | peaks,
    )


def waiting_figures(engine: UnetEngine, image: Image, sizes: Sizes, figures: Figures, rows: Rows) -> None:
    """Small images, one after the other, while a large one runs: how many tile batches each waits behind at most.

    Counted are the batches that were not yet computed when the small image came, up to the one that it is part of. Each
    comes at a random moment, since the device's queue is empty just after the one before has been answered.
    """
    small = image[:SMALL_PIXELS, :SMALL_PIXELS]
    alone_s = statistics.median(_seconds(lambda: unet_driver.together(engine, [small])) for _ in range(10))
    choices = random.Random(3)
    behind: list[int] = []
    waits_s: list[float] = []
    with unet_driver.batches(engine._runner) as log:
        large = unet_driver.Run()
        large_id = unet_driver.start(engine, image, large)
        while log.done < 2:
            time.sleep(1e-3)
        while len(behind) < sizes.small_images and not large.ended.is_set():
            time.sleep(choices.uniform(0, 4 * alone_s))
            at_end: list[int] = []
            run = unet_driver.Run(on_mask=lambda counts=at_end: counts.append(log.queued))  # type: ignore[misc]
            done, started_s = log.done, time.perf_counter()
            unet_driver.start(engine, small, run)
            run.wait()
            waits_s.append(time.perf_counter() - started_s)
            behind.append(at_end[0] - done - 1)
        engine.cancel(large_id)
        large.ended.wait(unet_driver.WAIT_S)
    figures["small_behind_large_batches"] = max(behind)
    times = {"alone_s": alone_s, "median_s": statistics.median(waits_s), "most_s": max(waits_s)}
    counts = {"images": len(behind), "mean_batches": statistics.mean(behind), "most_batches": max(behind)}
    _add(rows, {"what": "small behind large", "large_edge": image.shape[0]} | counts | times)


def pixels_figures(engine: UnetEngine, settings: Settings, sizes: Sizes, figures: Figures, rows: Rows) -> None:
    """One large image: tile pixels a second, overlaps counted, against the plain loop over the same tiles.

    The loop has the engine's own network. Also against the network as it is loaded, batch normalisation not folded,
    and against passes of the network alone.
    """
    image = unet_driver.noise(sizes.speed_edge, sizes.speed_edge)
    tiles = grid(engine.limits, sizes.speed_edge, sizes.speed_edge)
    loop, unfolded = PlainLoop(engine._runner.network, settings.unet), unfolded_loop(engine, settings)
    resident = loop.normalised([image[: tiles.tile_pixels, : tiles.tile_pixels]] * settings.unet.tile_batch)
    medians_s = _medians_s(
        {
            "engine": lambda: unet_driver.together(engine, [image]),
            "plain": lambda: loop.mask(image, tiles),
            "plain_unfolded": lambda: unfolded.mask(image, tiles),
            "forward_only": lambda: loop.forward_only(resident, tiles.tiles),
        },
        sizes.repeats,
        {"what": "one large image", "edge": sizes.speed_edge, "tiles": tiles.tiles},
        rows,
    )
    tile_pixels = tiles.tiles * tiles.tile_pixels**2
    figures["engine_tile_pixels_per_s"] = tile_pixels / medians_s["engine"]
    figures["plain_tile_pixels_per_s"] = tile_pixels / medians_s["plain"]
    figures["pixels_ratio"] = medians_s["plain"] / medians_s["engine"]
    figures["pixels_ratio_to_unfolded"] = medians_s["plain_unfolded"] / medians_s["engine"]
    figures["pixels_ratio_to_forward_only"] = medians_s["forward_only"] / medians_s["engine"]


def images_figures(
    engine: UnetEngine, settings: Settings, figure: str, sizes: Sizes, figures: Figures, rows: Rows
) -> None:
    """Many images of one tile each, at once, against the plain loop over them; with the networks of the other ratio."""
    edge = engine.limits.tile_pixels
    images = [unet_driver.noise(edge, edge, seed) for seed in range(sizes.images)]
    loop, unfolded = PlainLoop(engine._runner.network, settings.unet), unfolded_loop(engine, settings)
    pairs = zip(unet_driver.together(engine, images), loop.masks(images), strict=True)
    differing = statistics.mean(float((ours != theirs).mean()) for (ours, _), theirs in pairs)
    medians_s = _medians_s(
        {
            "engine": lambda: unet_driver.together(engine, images),
            "plain": lambda: loop.masks(images),
            "plain_unfolded": lambda: unfolded.masks(images),
        },
        sizes.repeats,
        {"what": "images of one tile", "images": len(images), "edge": edge, "differing_pixels": differing},
        rows,
    )
    figures[f"{figure.removesuffix('_ratio')}_per_s"] = len(images) / medians_s["engine"]
    figures[figure] = medians_s["plain"] / medians_s["engine"]
    figures[f"{figure}_to_unfolded"] = medians_s["plain_unfolded"] / medians_s["engine"]


def unfolded_loop(engine: UnetEngine, settings: Settings) -> PlainLoop:
    """The loop over the network as it is loaded, on the engine's device, in its dtype and memory format."""
    network, runner = load.open_network(settings), engine._runner
    network.to(device=runner.device, dtype=runner.dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return PlainLoop(network, settings.unet)


def varied_shapes(count: int, largest: int) -> list[tuple[int, int]]:
    """Heights and widths, each log-uniform from SMALL_PIXELS to `largest`, both extreme squares among them."""
    choices = random.Random(2)
    span = largest / SMALL_PIXELS
    drawn = [tuple(round(SMALL_PIXELS * span ** choices.random()) for _ in range(2)) for _ in range(count - 2)]
    shapes = [(height, width) for height, width in drawn] + [(SMALL_PIXELS, SMALL_PIXELS), (largest, largest)]
    choices.shuffle(shapes)
    return shapes


@contextmanager
def opened(settings: Settings, figures: Figures) -> Iterator[UnetEngine]:
    """A loaded engine; its loading time is a figure."""
    _empty_device()
    started_s = time.monotonic()
    engine = unet_engine.load(settings)
    figures["load_s"] = time.monotonic() - started_s
    try:
        yield engine
    finally:
        engine.close()


def _empty_device() -> None:
    """Frees what an engine left that nobody refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _medians_s(
    ways: dict[str, Callable[[], object]], repeats: int, row: dict[str, Any], rows: Rows
) -> dict[str, float]:
    seconds = unet_driver.in_turn_s(ways, repeats)
    _add(rows, row | {f"{name}_s": values for name, values in seconds.items()})
    return {name: statistics.median(values) for name, values in seconds.items()}


def _seconds(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def _add(rows: Rows, row: dict[str, Any]) -> None:
    rows.append(row)
    print(row, flush=True)


if __name__ == "__main__":
    main()
