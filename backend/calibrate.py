"""``python -m backend.calibrate``: few, chosen runs of a plain model on the card at hand, and the profile they come to.

Allocated bytes follow from shapes and are only checked. Measured are what libraries keep, what loading leaves unused,
and how large the holes between tensors get, on each discrete path. See :mod:`estimator.profile`.
"""

import argparse
import gc
import math
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch

from backend.plain import Measured, PlainLlama, PlainUnet, free_in, measure
from common.errors import SettingsError, VramgateError
from estimator.fit import one_sided
from estimator.llama import LlamaShape
from estimator.llama import weights_bytes as llama_weights_bytes
from estimator.plain import Call, GenerateLaw, Peak, path_of
from estimator.plain_unet import SLOT_BYTES, ForwardLaw, Images
from estimator.profile import ALLOCATOR_ENV, SPARE_BYTES, Holes, Profile, Setup
from estimator.rounding import LARGE_PAGE_BYTES, SMALL_BYTES, SMALL_PAGE_BYTES, Footprint
from estimator.shapes import named
from estimator.unet import UnetShape

SEED = 20_260
"""Of the chosen runs, so that two calibrations differ in the card alone."""
SHORTS, LONGS, DECODES, FORWARDS = 20, 40, 15, 90
"""Runs of each path; the maximum of n covers n / (n + 1) of new ones."""
MOST_TOKENS, MOST_PIXELS = 8192, 6_000_000
_ROOM = 1.35
"""What a run may take of the free memory is its predicted peak times this."""

Run = tuple[str, Peak, Measured]


def main() -> None:
    """The command line; an error of ours is one clear line and exit status 2."""
    parser = argparse.ArgumentParser(prog="vramgate calibrate", description=__doc__)
    parser.add_argument("model", help="a shape by name, such as llama-3-8b, or unet-WIDTHxCLASSES")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--out", type=Path, required=True, help="the profile to write")
    told = parser.parse_args()
    try:
        profile = calibrate(told.model, told.dtype)
        told.out.write_text(profile.to_json(), encoding="utf-8")
        print(f"{told.out}: measured in {profile.calibration_s:g} s")
    except VramgateError as error:
        print(f"vramgate calibrate: {error}", file=sys.stderr)
        sys.exit(2)


def calibrate(model: str, dtype: str) -> Profile:
    """The profile of a model of random weights; raises SettingsError where there is no card to measure."""
    if not torch.cuda.is_available():
        raise SettingsError(
            "this torch sees no CUDA card. On a CPU there is nothing to calibrate: no allocator holds memory back, and"
            " allocated bytes follow from shapes; run this on the card that the model is for"
        )
    warnings.simplefilter("ignore")
    device = torch.device("cuda", torch.cuda.current_device())
    shape = unet_shape(model) or named(model)
    try:
        profile = _of_unet(shape, dtype, device) if isinstance(shape, UnetShape) else _of_llama(shape, dtype, device)
    except torch.OutOfMemoryError:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        raise SettingsError(
            f"{model} in {dtype} does not fit what is free of this card ({free_bytes:,} of {total_bytes:,} B);"
            " calibrate before engines are loaded, or on a larger card"
        ) from None
    return replace(profile, calibration_s=round(_process_age_s(), 1))


def setup_of(dtype: str, attention: str, device: torch.device) -> Setup:
    """What a profile that is measured here and now is for."""
    return Setup(
        dtype=dtype,
        attention=attention,
        card=torch.cuda.get_device_name(device),
        torch=torch.__version__.partition("+")[0],
        transformers=version("transformers"),
        allocator=os.environ.get(ALLOCATOR_ENV, ""),
    )


def unet_shape(model: str) -> UnetShape | None:
    """``unet-64x2`` is 64 channels wide and has 2 classes; None for another kind of name."""
    kind, _, sizes = model.partition("-")
    if kind != "unet":
        return None
    width, _, classes = sizes.partition("x")
    if not (width.isdigit() and classes.isdigit()):
        raise SettingsError(f"{model!r}: a segmentation model is named unet-WIDTHxCLASSES, such as unet-64x2")
    return UnetShape(int(width), int(classes))


def warm_llama(shape: LlamaShape, dtype: str, device: torch.device) -> PlainLlama:
    """A plain model that has taken all that it keeps."""
    plain = PlainLlama(shape, getattr(torch, dtype), device)
    for padded in (False, True):
        plain.generate(Call(2, 64, 3, padded, sampled=padded))
        plain.generate(Call(1, min(2048, shape.context_tokens - 8), 3, padded))
    gc.freeze()  # what stands is no garbage, so looking for some takes no time
    return plain


def warm_unet(shape: UnetShape, dtype: str, device: torch.device) -> PlainUnet:
    """A plain network that has taken all that it keeps."""
    plain = PlainUnet(shape, getattr(torch, dtype), device)
    plain.forward(Images(1, 512, 512))
    gc.freeze()
    return plain


def _of_llama(shape: LlamaShape, dtype: str, device: torch.device) -> Profile:
    plain, law = warm_llama(shape, dtype, device), GenerateLaw(shape, dtype)
    stands = _standing(device, llama_weights_bytes(shape, dtype))
    runs: list[Run] = []
    for call in _calls(shape, law, device):
        peak = law.peak(call)
        measured = _checked(lambda call=call: plain.generate(call), peak, device, str(call))  # type: ignore[misc]
        runs.append((path_of(call, peak), peak, measured))
    return Profile(setup_of(dtype, "sdpa", device), shape, *stands, slots=0, paths=_paths(runs))


def _of_unet(shape: UnetShape, dtype: str, device: torch.device) -> Profile:
    plain = warm_unet(shape, dtype, device)
    weights_bytes = sum(tensor.nbytes for tensor in plain.tensors())
    stands = _standing(device, weights_bytes)
    slots = _slots(plain, ForwardLaw(shape, dtype), device)
    law = ForwardLaw(shape, dtype, slots)
    runs: list[Run] = []
    for images in _images(law, device):
        peak = law.peak(images)
        measured = _checked(lambda images=images: plain.forward(images), peak, device, str(images))  # type: ignore[misc]
        runs.append((images.path, peak, measured))
    return Profile(setup_of(dtype, "none", device), shape, *stands, slots=slots, paths=_paths(runs))


def _calls(shape: LlamaShape, law: GenerateLaw, device: torch.device) -> Iterator[Call]:
    """Prefills over all sizes that fit, one token each since the first step decides; short prompts that decode on."""
    dice = random.Random(SEED)
    for padded in (False, True):
        most = _most(lambda tokens, padded=padded: law.peak(Call(1, tokens, 1, padded)), device)  # type: ignore[misc]
        shortest = SMALL_BYTES // (shape.kv_heads * shape.head_dim * law.itemsize)
        for count, low, high in ((SHORTS, 32, shortest), (LONGS, shortest + 1, most)):
            for _ in range(count):
                batch, tokens = log_uniform(dice, 1, 16), log_uniform(dice, low, high)
                yield Call(batch, min(max(2, round(tokens / batch)), shape.context_tokens - 1), 1, padded)
        # Few batches and one prompt: a library that plans each new length anew finds most plans made.
        for index in range(DECODES):
            yield Call((1, 4, 16)[index % 3], 8, log_uniform(dice, 8, 32), padded)


def _images(law: ForwardLaw, device: torch.device) -> Iterator[Images]:
    """Sides from 256 to 2048 in steps of 32."""
    dice, found = random.Random(SEED), 0
    free_bytes = torch.cuda.mem_get_info(device)[0]
    while found < FORWARDS:
        images = Images(log_uniform(dice, 1, 8), *(32 * log_uniform(dice, 8, 64) for _ in range(2)))
        fits = law.peak(images).allocated_bytes * _ROOM < free_bytes
        if fits and images.path == "grid" and images.batch * images.height * images.width <= MOST_PIXELS:
            found += 1
            yield images


def _checked(run: Callable[[], object], peak: Peak, device: torch.device, what: str) -> Measured:
    """The measurement; raises SettingsError where the law of shapes does not hold, for no bound could mend that."""
    measured = measure(run, device)
    error = abs(peak.allocated_bytes - measured.allocated_bytes) / measured.allocated_bytes
    if error > 0.05 and "expandable_segments:True" in os.environ.get(ALLOCATOR_ENV, ""):
        raise SettingsError(
            f"{what}: {peak.allocated_bytes:,} B were predicted ({peak.moment}), {measured.allocated_bytes:,} B"
            f" measured; the law does not describe this transformers {version('transformers')} or torch"
        )
    return measured


def _slots(plain: PlainUnet, law: ForwardLaw, device: torch.device) -> int:
    """How many partial sums cuDNN keeps, from one forward pass where they show in the peak."""
    images = Images(1, 256, 448)
    extra_bytes = measure(lambda: plain.forward(images), device).allocated_bytes - law.peak(images).allocated_bytes
    return max(0, round(extra_bytes / SLOT_BYTES))


def _paths(runs: list[Run]) -> dict[str, Holes]:
    """The factors of each path, by split conformal prediction over the smallest ones that would have sufficed."""
    found = {}
    for path in sorted({path for path, _, _ in runs}):
        mine = [(peak.pools, measured) for name, peak, measured in runs if name == path]
        coverage, spare_pages = len(mine) / (len(mine) + 1), int(path.endswith(("short", "decode")))
        spares = (SPARE_BYTES, spare_pages * LARGE_PAGE_BYTES)
        scores = [(_least(needed, measured, *spares)) for needed, measured in mine]
        small, large = (max(1.0, one_sided(factors, coverage)) for factors in zip(*scores, strict=True))
        found[path] = Holes(
            math.ceil(small * 1e4) / 1e4, math.ceil(large * 1e4) / 1e4, spare_pages, round(coverage, 4), len(mine)
        )
    return found


def _least(need: Footprint, measured: Measured, small_spare_bytes: int, large_spare_bytes: int) -> tuple[float, float]:
    """The smallest factors on `need` with which what was mapped would have been predicted, in both pools."""
    small_bytes = measured.mapped.small_bytes - small_spare_bytes - SMALL_PAGE_BYTES + measured.free.small_bytes
    large_bytes = measured.mapped.large_bytes - large_spare_bytes - LARGE_PAGE_BYTES + measured.free.large_bytes
    return _ratio(small_bytes + 1, need.small_bytes), _ratio(large_bytes + 1, need.large_bytes)


def _ratio(least_bytes: int, need_bytes: int) -> float:
    """0 where the spares alone suffice."""
    return max(0, least_bytes) / max(need_bytes, SMALL_PAGE_BYTES)


def _standing(device: torch.device, weights_bytes: int) -> tuple[Footprint, int]:
    """Mapped and unused; kept by libraries inside the allocator."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    stats = torch.cuda.memory_stats(device)
    return free_in(stats), stats["allocated_bytes.all.current"] - weights_bytes


def _process_age_s() -> float:
    """Since this process was started, its imports included (proc(5): field 22 is the start in ticks since boot)."""
    started_ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def _most(peak: Callable[[int], Peak], device: torch.device) -> int:
    """The most tokens whose peak fits the memory that is free."""
    free_bytes, tokens = int(torch.cuda.mem_get_info(device)[0]), 32
    while tokens < MOST_TOKENS and peak(2 * tokens).allocated_bytes * _ROOM < free_bytes:
        tokens *= 2
    return tokens


def log_uniform(dice: random.Random, low: int, high: int) -> int:
    """A whole number from `low` to `high`, each octave as likely as the other."""
    return min(high, max(low, round(math.exp(dice.uniform(math.log(low), math.log(max(low, high)))))))


if __name__ == "__main__":
    main()
