"""Engines loaded one after another, each in a process of its own: what NVML says against what was predicted.

``python -m loadtests.standing_runs`` loads all; with MODEL DTYPE GRANT one, when a line comes on standard input, so
that imports are done before, and prints a row of JSON.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ByteSize

from backend.device import open_card
from backend.llama import engine as llama_engine
from backend.unet import engine as unet_engine
from common.readings import Card
from common.sections import Llama, Unet
from common.settings import Settings
from estimator import llama, unet
from estimator.grants import CONTEXT_BYTES
from estimator.llama import LlamaShape
from estimator.shapes import named
from loadtests import dummy_model

MIB = 2**20
SHAPES = {
    "llama-3-8b": 20480 * MIB,
    "llama-3.2-3b": 12288 * MIB,
    "llama-3.2-1b": 8192 * MIB,
    "tinyllama-1.1b": 8192 * MIB,
}
"""Name -> the grant."""
CASES: Sequence[tuple[str, str, int]] = (
    *((name, dtype, grant_bytes) for name, grant_bytes in SHAPES.items() for dtype in ("bfloat16", "float16")),
    ("unet-64", "float16", 0),
)


def rows() -> list[dict[str, Any]]:
    """Every case that loads, with nothing else on the card; the next one's imports run while one is loaded."""
    found: list[dict[str, Any]] = []
    waiting = [_start(case) for case in CASES[:1]]
    for index in range(len(CASES)):
        waiting += [_start(case) for case in CASES[index + 1 : index + 2]]
        told, _ = waiting[index].communicate("go\n")
        if waiting[index].returncode:
            print(f"{CASES[index]} did not load", flush=True)
            continue
        found.append(json.loads(told.splitlines()[-1]))
        print(found[-1], flush=True)
    return found


def main() -> None:
    """One case."""
    name, dtype, grant_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sys.stdin.readline()
    device = torch.device("cuda", 0)
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(name, dtype, grant_bytes, Path(folder))
        card = open_card(settings, device)
        before_bytes = _used_bytes(card)
        engine = llama_engine.load(settings) if grant_bytes else unet_engine.load(settings)
        torch.cuda.synchronize()
        used_bytes = _used_bytes(card) - before_bytes
        limits = engine.limits
        row = {"what": "standing", "engine": name, "dtype": dtype, "used": used_bytes}
        stats = torch.cuda.memory_stats(device)
        reserved_bytes = stats["reserved_bytes.all.current"]
        if isinstance(engine, llama_engine.LlamaEngine):
            predicted_bytes = _llama_bytes(named(name), settings.llama, limits.pages)  # type: ignore[union-attr]
            row["page"], row["leftover"] = limits.page_bytes, grant_bytes - reserved_bytes  # type: ignore[union-attr]
        else:
            predicted_bytes = _unet_bytes(settings.unet)
        print(
            json.dumps(
                row
                | {
                    "predicted": predicted_bytes + CONTEXT_BYTES["cuda"],
                    "reserved": reserved_bytes,
                    "reserved_peak": stats["reserved_bytes.all.peak"],
                    "allocated": stats["allocated_bytes.all.current"],
                    "allocated_peak": stats["allocated_bytes.all.peak"],
                    "outside": used_bytes - reserved_bytes,
                    "retries": stats["num_alloc_retries"],
                }
            ),
            flush=True,
        )


def _llama_bytes(shape: LlamaShape, settings: Llama, pages: int) -> int:
    """What the engine's allocator is predicted to hold."""
    sizes = (settings.page_tokens, pages, settings.step_tokens, settings.max_batch)
    return llama.standing(shape, settings.dtype_on("cuda"), *sizes, "cuda").total_bytes


def _unet_bytes(settings: Unet) -> int:
    shape = unet.UnetShape(settings.width, len(settings.class_names))
    sizes = (settings.tile_pixels_on("cuda"), settings.tile_batch, settings.canvas_bytes_on("cuda"))
    return unet.standing(shape, settings.dtype_on("cuda"), *sizes).total_bytes


def _settings(name: str, dtype: str, grant_bytes: int, folder: Path) -> Settings:
    if not grant_bytes:
        return Settings(unet=Unet(width=int(name.partition("-")[2]), dummy_weights=True))
    dummy_model.write(folder, dummy_model.config_of(named(name)))
    llama_settings = Llama.model_validate(
        {"model": str(folder), "dummy_weights": True, "dtype": dtype, "grant": ByteSize(grant_bytes)}
    )
    return Settings(llama=llama_settings)


def _start(case: tuple[str, str, int]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", __spec__.name, *map(str, case)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _used_bytes(card: Card) -> int:
    reading = card.read()
    if reading is None:
        raise RuntimeError("the card does not answer")
    return reading.used_bytes


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main()
    else:
        rows()
