"""From settings to a runner: which folder, which device, how many pages."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from backend import allocator
from backend.device import open_card
from backend.llama.model import Llama
from backend.llama.pages import PagePool
from backend.llama.runner import FastPath, Runner
from backend.llama.weights import Checkpoint, RandomWeights, build, read_config
from common.errors import SettingsError
from common.sections import Llama as LlamaSettings
from common.settings import Settings
from common.wire import LlamaLimits
from estimator import grants
from estimator.llama import LlamaShape, page_bytes, pages_for, pages_in, standing
from estimator.price import Price

log = logging.getLogger(__name__)


def open_runner(settings: Settings, folder: Path, device: torch.device) -> Runner:
    """The model of `folder` on `device` with a pool that fills its grant; raises SettingsError when it cannot be."""
    llama = settings.llama
    config = read_config(folder)
    shape = served_shape(config, llama)
    dtype = llama.dtype_on(device.type)
    grant_bytes = _grant_bytes(settings, device)
    pages = pool_pages(shape, dtype, llama, grant_bytes, device.type)
    allocator.wall(device, grant_bytes)
    with torch.inference_mode():
        model = replace(_open_model(config, folder, getattr(torch, dtype), device, llama), shape=shape)
        pool = PagePool(shape, pages, llama.page_tokens, getattr(torch, dtype), device)
    log.info("llama: %s", _standing(shape, dtype, pages, llama, device.type).explain())
    return Runner(model, pool, llama.step_tokens, llama.max_batch, fast_path(model, pool, llama.max_batch))


def standing_of(runner: Runner, llama: LlamaSettings) -> dict[str, int]:
    """Line -> bytes that stand as long as the engine is loaded."""
    pool, sizes = runner.pool, (llama.step_tokens, llama.max_batch, runner.device.type)
    price = standing(runner.model.shape, _name(pool.dtype), pool.page_tokens, pool.pages, *sizes)
    return {line.why.partition(":")[0]: line.bytes for line in price.lines}


def limits_of(runner: Runner, tokenizer_dir: str) -> LlamaLimits:
    """What an engine around `runner` accepts."""
    shape, pool = runner.model.shape, runner.pool
    return LlamaLimits(
        context_tokens=shape.context_tokens,
        vocab_tokens=shape.vocab,
        page_tokens=pool.page_tokens,
        page_bytes=page_bytes(shape, _name(pool.dtype), pool.page_tokens),
        pages=pool.pages,
        tokenizer_dir=tokenizer_dir,
    )


def pool_key(runner: Runner, llama: LlamaSettings) -> str:
    """What `runner` has warmed, in a word."""
    pool = runner.pool
    sizes = f"{pool.pages}x{pool.page_tokens}/step{llama.step_tokens}/batch{llama.max_batch}"
    return f"llama/{_name(pool.dtype)}/{sizes}"


def served_shape(config: dict[str, Any], llama: LlamaSettings) -> LlamaShape:
    """The checkpoint's shape, its context cut to the one that is set."""
    shape = LlamaShape.from_config(config)
    if llama.context_tokens is None:
        return shape
    if llama.context_tokens > shape.context_tokens:
        raise SettingsError(
            f"llama.context_tokens: {llama.context_tokens:,} is more than the checkpoint's {shape.context_tokens:,}"
        )
    return replace(shape, context_tokens=llama.context_tokens)


def pool_pages(shape: LlamaShape, dtype: str, llama: LlamaSettings, grant_bytes: int, device_type: str = "cpu") -> int:
    """Pages of the pool: as set, or as many as fit; raises SettingsError with the numbers when it cannot be."""
    most = pages_in(grant_bytes, shape, dtype, llama.page_tokens, llama.step_tokens, llama.max_batch, device_type)
    pages = llama.pages if llama.pages is not None else most
    if not 1 <= pages <= most:
        need = _standing(shape, dtype, max(pages, 1), llama, device_type)
        raise SettingsError(
            f"llama: {need.total_bytes:,} B are needed for {max(pages, 1):,} pages, the grant is {grant_bytes:,} B; "
            f"raise llama.grant or card.total, or lower llama.pages, llama.step_tokens or llama.max_batch\n"
            + need.explain()
        )
    return pages


def _standing(shape: LlamaShape, dtype: str, pages: int, llama: LlamaSettings, device_type: str) -> Price:
    return standing(shape, dtype, llama.page_tokens, pages, llama.step_tokens, llama.max_batch, device_type)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _open_model(
    config: dict[str, Any], folder: Path, dtype: torch.dtype, device: torch.device, llama: LlamaSettings
) -> Llama:
    if llama.dummy_weights:
        return build(config, RandomWeights(device), dtype, device)
    with Checkpoint(folder) as checkpoint:
        return build(config, checkpoint, dtype, device)


def fast_path(model: Llama, pool: PagePool, max_batch: int) -> FastPath | None:
    """The kernels and captured steps where the device and the model allow it."""
    if pool.device.type != "cuda":
        return None
    # Their kernels need CUDA's compiler.
    from backend.llama.fast_path import CudaPath
    from backend.llama.fused import can_fuse

    if not can_fuse(model, pool.page_tokens):
        return None
    return CudaPath(model, pool, max_batch, pages_for(model.shape.context_tokens, pool.page_tokens))


def _grant_bytes(settings: Settings, device: torch.device) -> int:
    """As set by whoever divided the card, else by the same division done here."""
    if settings.llama.grant is not None:
        return int(settings.llama.grant)
    reading = open_card(settings, device).read()
    if reading is None:
        raise SettingsError("the card does not say its size; set llama.grant")
    return grants.divide(settings, device.type, reading.total_bytes, reading.reserved_bytes).llama_bytes
