"""Which operators take memory while one request runs: ``python -m backend.profile llama --prompt-tokens 512``.

The network runs once, eagerly, in a process of its own beside the service: captured graphs would hide the operators.
Printed is JSON; ``vramgate profile`` draws it. Counted are bytes handed out by the allocator, operator by operator,
whether or not they were given back since: where a step's memory goes, not how much it holds at once (that is the peak).
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from backend.device import label, pick
from backend.llama import load as llama_load
from backend.llama.model import Layer, Llama
from backend.llama.runner import Runner
from backend.llama.scheduler import Sequence, Slice
from backend.unet import load as unet_load
from common import model_folder
from common import settings as settings_module
from common.errors import SettingsError, VramgateError
from common.settings import Settings
from estimator.llama import pages_for

SCOPE = "part: "
REST = "the rest"
LOGITS = "logits"
"""The last pass through the vocabulary's matrix."""


@dataclass(frozen=True)
class Operator:
    """One kind of operator, over the whole request."""

    name: str
    calls: int
    allocated_bytes: int


@dataclass(frozen=True)
class Profile:
    """Where the memory of one request went."""

    model: str
    device: str
    work: str
    """What ran, in words."""
    standing_bytes: int
    """Weights, and for llama the pages of this request."""
    peak_bytes: int | None
    """Most that was allocated at once beyond standing; None where torch cannot tell (CPU)."""
    allocated_bytes: int
    """Handed out in all."""
    parts: dict[str, int]
    """Part of the network -> bytes handed out in it."""
    operators: tuple[Operator, ...]
    """The largest first."""


def measure(run: Callable[[], object], device: torch.device) -> tuple[dict[str, int], tuple[Operator, ...], int | None]:
    """Bytes by part (:func:`part`), operators by bytes, and the peak, of one `run`."""
    is_cuda = device.type == "cuda"
    run()  # kernels and workspaces that are taken once
    if is_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before_bytes = torch.cuda.memory_allocated(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with profile(activities=activities, profile_memory=True) as seen:
        run()
    peak_bytes = torch.cuda.max_memory_allocated(device) - before_bytes if is_cuda else None
    parts: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for event in seen.events() or ():
        own_bytes = event.self_device_memory_usage if is_cuda else event.self_cpu_memory_usage
        if own_bytes > 0 and not event.name.startswith(("[", SCOPE)):
            parts[_part_of(event)] += own_bytes
            calls[event.name] += 1
            taken[event.name] += own_bytes
    operators = tuple(Operator(name, calls[name], bytes_) for name, bytes_ in taken.most_common())
    return dict(parts.most_common()), operators, peak_bytes


def part(name: str) -> record_function:
    """A block whose operators belong to a part of the network; the innermost counts."""
    return record_function(SCOPE + name)


class Parted(Llama):
    """The network with its parts named."""

    def _attention(self, index: int, layer: Layer, *rest: Any) -> torch.Tensor:
        with part("attention"):
            return super()._attention(index, layer, *rest)

    def _mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        with part("MLP"):
            return super()._mlp(layer, x)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        with part(LOGITS):
            return super()._logits(x)


def of_llama(settings: Settings, prompt_tokens: int) -> Profile:
    """A prompt in chunks of ``llama.step_tokens``, then one decode. Raises SettingsError."""
    pages = pages_for(prompt_tokens + 1, settings.llama.page_tokens)
    llama = settings.llama.model_copy(update={"pages": pages, "max_batch": 1})
    device, folder = pick(settings), model_folder.resolve(settings)
    opened = llama_load.open_runner(settings.model_copy(update={"llama": llama}), folder, device)
    most = opened.model.shape.context_tokens - 1
    if not 1 <= prompt_tokens <= most:
        raise SettingsError(f"--prompt-tokens: 1 to {most:,}, the model's context with one token to answer")
    runner = Runner(Parted(**vars(opened.model)), opened.pool, llama.step_tokens, 1)
    sequence = Sequence([0] * (prompt_tokens + 1), max_tokens=1, pages=list(range(pages)))

    def run() -> None:
        chunks = [*range(0, prompt_tokens, llama.step_tokens), prompt_tokens]
        for start, end in zip(chunks, [*chunks[1:], prompt_tokens + 1], strict=True):
            runner.forward([Slice(sequence, start, end - start, samples=end >= prompt_tokens)])

    parts, operators, peak_bytes = measure(run, device)
    pool_bytes = pages * llama_load.limits_of(runner, "").page_bytes
    weights_bytes = llama_load.standing_of(runner, llama)["weights"]
    work = f"{prompt_tokens} prompt tokens in steps of {llama.step_tokens}, then one decode"
    standing_bytes, total = weights_bytes + pool_bytes, sum(parts.values())
    return Profile("llama", label(device), work, standing_bytes, peak_bytes, total, parts, operators)


def of_unet(settings: Settings, tiles: int) -> Profile:
    """One batch of tiles through the network. Raises SettingsError."""
    if not 1 <= tiles <= settings.unet.tile_batch:
        raise SettingsError(f"--tiles: 1 to {settings.unet.tile_batch}, the batch that is set (unet.tile_batch)")
    device = pick(settings)
    runner = unet_load.open_runner(settings, device)
    network, edge = runner.network, runner.tile_pixels
    for name, child in network.named_children():
        _name_part(child, name.removeprefix("segmentation_"))
    images = torch.zeros((tiles, 3, edge, edge), device=device, dtype=runner.dtype)
    images = images.contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def run() -> None:
        network(images)

    parts, operators, peak_bytes = measure(run, device)
    work = f"batch of {tiles}, tiles of {edge} x {edge} pixels"
    total = sum(parts.values())
    return Profile("unet", label(device), work, runner.weights_bytes, peak_bytes, total, parts, operators)


def _name_part(module: torch.nn.Module, name: str) -> None:
    """From now on what runs in `module` belongs to the part `name`."""
    plain = module.forward

    def named(*arguments: Any) -> Any:
        with part(name):
            return plain(*arguments)

    module.forward = named


def _part_of(event: Any) -> str:
    while event is not None:
        if event.name.startswith(SCOPE):
            return str(event.name.removeprefix(SCOPE))
        event = event.cpu_parent
    return REST


def main(arguments: Iterable[str]) -> None:
    """Prints the profile as JSON."""
    parser = argparse.ArgumentParser(prog="backend.profile", description=__doc__)
    parser.add_argument("model", choices=("llama", "unet"))
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--tiles", type=int, default=1)
    parser.add_argument("--most", type=int, default=10, help="how many operators")
    asked = parser.parse_args(list(arguments))
    settings = settings_module.load()
    told = of_llama(settings, asked.prompt_tokens) if asked.model == "llama" else of_unet(settings, asked.tiles)
    print(json.dumps(asdict(replace(told, operators=told.operators[: asked.most]))))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except VramgateError as error:
        sys.exit(f"vramgate: {error}")
