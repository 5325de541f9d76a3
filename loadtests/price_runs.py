"""Held-out runs of a plain model: what its profile says beside what the card says, one row each.

``python -m loadtests.price_runs PROFILE SEED SECONDS OUT`` draws calls by SEED until the time is up.
"""

import json
import random
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from backend.calibrate import log_uniform, setup_of, warm_llama, warm_unet
from backend.plain import measure
from estimator import profile
from estimator.llama import LlamaShape
from estimator.plain import Call, GenerateLaw, path_of
from estimator.plain_unet import ForwardLaw, Images

MOST_TOKENS, MOST_PIXELS = 24_576, 8_000_000


def main() -> None:
    """One process, one model."""
    warnings.simplefilter("ignore")
    file, seed, seconds, out = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    known = profile.read(file)
    torch.set_num_threads(2)
    rows = _llama_rows if isinstance(known.shape, LlamaShape) else _unet_rows
    found = list(rows(known, file.stem, random.Random(seed), time.monotonic() + seconds))
    out.write_text(json.dumps(found), encoding="utf-8")


def draw_call(dice: random.Random) -> Call:
    """Batches to 16, prompts to 8,192 tokens, 24,576 together, outputs to 24; every other one padded."""
    batch = log_uniform(dice, 1, 16)
    tokens = log_uniform(dice, 32, min(8192, MOST_TOKENS // batch))
    return Call(batch, tokens, log_uniform(dice, 1, 24), dice.random() < 0.5)


def draw_images(dice: random.Random) -> Images:
    """Batches to 8, sides from 256 to 2048 in steps of 32, 8 million pixels together; one in eight of any sides."""
    while True:
        step = 1 if dice.random() < 0.125 else 32
        sides = [step * log_uniform(dice, 256 // step, 2048 // step) for _ in range(2)]
        images = Images(log_uniform(dice, 1, 8), *sides)
        if images.batch * images.height * images.width <= MOST_PIXELS:
            return images


def _llama_rows(known: profile.Profile, name: str, dice: random.Random, until_s: float) -> Iterator[dict[str, Any]]:
    device = torch.device("cuda", 0)
    assert isinstance(known.shape, LlamaShape)
    known.require(setup_of(known.setup.dtype, "sdpa", device), known.shape)
    plain, law = warm_llama(known.shape, known.setup.dtype, device), GenerateLaw(known.shape, known.setup.dtype)
    while time.monotonic() < until_s:
        call = draw_call(dice)
        peak, measured = law.peak(call), measure(lambda call=call: plain.generate(call), device)  # type: ignore[misc]
        path = path_of(call, peak)
        yield {
            "what": name,
            "call": [call.batch, call.prompt_tokens, call.new_tokens, int(call.padded)],
            "path": path,
            "predicted": peak.allocated_bytes,
            "measured": measured.allocated_bytes,
            "bound": known.bound_bytes(peak, path),
            "reserved": measured.reserved_bytes,
        }


def _unet_rows(known: profile.Profile, name: str, dice: random.Random, until_s: float) -> Iterator[dict[str, Any]]:
    device = torch.device("cuda", 0)
    assert not isinstance(known.shape, LlamaShape)
    known.require(setup_of(known.setup.dtype, "none", device), known.shape)
    plain = warm_unet(known.shape, known.setup.dtype, device)
    law = ForwardLaw(known.shape, known.setup.dtype, known.slots)
    while time.monotonic() < until_s:
        images = draw_images(dice)
        peak, measured = law.peak(images), measure(lambda images=images: plain.forward(images), device)  # type: ignore[misc]
        bound = {"bound": known.bound_bytes(peak, images.path)} if images.path in known.paths else {}
        yield {
            "what": name,
            "call": [images.batch, images.height, images.width],
            "path": images.path,
            "predicted": peak.allocated_bytes,
            "measured": measured.allocated_bytes,
            "reserved": measured.reserved_bytes,
        } | bound


if __name__ == "__main__":
    main()
