"""From settings to a network and a runner: which weights, which device, which tile."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from backend import allocator
from backend.unet.network import UNet, fold_batch_norm
from backend.unet.runner import TileRunner
from common.errors import SettingsError
from common.sections import Unet as UnetSettings
from common.settings import Settings
from common.wire import UnetLimits
from estimator.grants import unet_need_bytes
from estimator.unet import (
    CANVAS_ITEMSIZE,
    UnetShape,
    overlap_pixels,
    rounding_bytes,
    staging_bytes,
    strip_bytes,
    strips_in,
    tile_batch_bytes,
)

DEMO_WEIGHTS = Path("unet/weights/nuclei_rn50_w16.safetensors")
"""Of the demo model, in the model repository."""
_SOURCE_TREE = Path(__file__).resolve().parents[2]
_MAX_CLASSES = 255


def open_runner(settings: Settings, device: torch.device) -> TileRunner:
    """The network that `settings` ask for on `device`, not yet warm; raises SettingsError when it cannot be."""
    unet = settings.unet
    if len(unet.mean) != 3 or len(unet.std) != 3 or min(unet.std) <= 0:
        raise SettingsError("unet.mean, unet.std: three numbers each, for RGB in [0, 1], deviations above 0")
    _wall(settings, device)
    network = fold_batch_norm(open_network(settings))
    dtype = getattr(torch, unet.dtype_on(device.type))
    return TileRunner(
        network.to(device=device, dtype=dtype, memory_format=torch.channels_last),  # type: ignore[call-overload]
        unet.tile_pixels_on(device.type),
        unet.tile_batch,
        unet.mean,
        unet.std,
    )


def limits_of(runner: TileRunner, unet: UnetSettings) -> UnetLimits:
    """What requests the engine around `runner` accepts; its canvas account is a whole number of strips."""
    classes, tile, overlap = runner.network.classes, runner.tile_pixels, overlap_pixels(runner.tile_pixels)
    strips = strips_in(unet.canvas_bytes_on(runner.device.type), classes, tile, overlap)
    return UnetLimits(
        classes=classes,
        class_names=unet.class_names,
        tile_pixels=tile,
        overlap_pixels=overlap,
        canvas_bytes=strips * strip_bytes(classes, tile, overlap),
        canvas_itemsize=CANVAS_ITEMSIZE,
        max_pixels=unet.max_pixels,
        default_threshold=unet.threshold,
    )


def standing_of(runner: TileRunner, limits: UnetLimits) -> dict[str, int]:
    """Line -> bytes that stand as long as the engine is loaded."""
    network, tile, tile_batch = runner.network, limits.tile_pixels, runner.tile_batch
    dtype = str(runner.dtype).removeprefix("torch.")
    shape = UnetShape(network.width, network.classes, network.in_channels)
    return {
        "weights": runner.weights_bytes,
        "tile batch": tile_batch_bytes(shape, tile, tile_batch, dtype),
        "rounding": rounding_bytes(shape, tile, tile_batch, dtype),
        "blending": staging_bytes(shape, tile),
        "canvas pool": limits.canvas_bytes,
    }


def pool_key(runner: TileRunner) -> str:
    """What `runner` has warmed, in a word."""
    dtype, network = str(runner.dtype).removeprefix("torch."), runner.network
    return f"unet/{dtype}/width{network.width}/{network.classes}/tile{runner.tile_pixels}/batch{runner.tile_batch}"


def open_network(settings: Settings) -> UNet:
    """The network with its weights, in float32 on the CPU."""
    unet = settings.unet
    if not 1 <= len(unet.class_names) <= _MAX_CLASSES:
        raise SettingsError(f"unet.class_names: 1 to {_MAX_CLASSES} names are needed, not {len(unet.class_names)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            network = UNet(unet.width, classes=len(unet.class_names))
        except ValueError as error:
            raise SettingsError(f"unet.width: {error}") from None
    if not unet.dummy_weights:
        _fill(network, weights_file(settings), unet)
    return network.eval()


def weights_file(settings: Settings) -> Path:
    """As set, or the demo model of the model repository; raises SettingsError when there is none."""
    if settings.unet.weights is not None:
        candidates = [settings.unet.weights.expanduser()]
    else:
        repository = settings.triton.model_repository.expanduser()
        candidates = [repository / DEMO_WEIGHTS, _SOURCE_TREE / "model_repository" / DEMO_WEIGHTS]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise SettingsError(f"unet.weights: there is no file {candidates[0]}")


def _wall(settings: Settings, device: torch.device) -> None:
    """Holds the allocator to the grant; raises SettingsError when that is less than the engine stands on."""
    need_bytes = unet_need_bytes(settings, device.type)
    grant_bytes = int(settings.unet.grant) if settings.unet.grant is not None else need_bytes
    if grant_bytes < need_bytes:
        raise SettingsError(
            f"unet.grant: {need_bytes:,} B are needed, the grant is {grant_bytes:,} B; raise it, or lower unet.canvas,"
            " unet.tile_batch or unet.tile_pixels"
        )
    allocator.wall(device, grant_bytes)


def _fill(network: UNet, file: Path, unet: UnetSettings) -> None:
    try:
        network.load_state_dict({name: value.float() for name, value in _read(file).items()})
    except Exception as error:  # the two readers raise types of their own for broken files
        raise SettingsError(
            f"unet.weights: {file} does not hold a ResNet50-UNet of width {unet.width} with {len(unet.class_names)}"
            f" classes (unet.width, unet.class_names): {str(error)[:500]}"
        ) from None


def _read(file: Path) -> dict[str, Tensor]:
    """A state dict of safetensors, or of a checkpoint that torch wrote (weights only, no code is run)."""
    if file.suffix == ".safetensors":
        return load_file(file)
    content: Any = torch.load(file, map_location="cpu", weights_only=True)
    state: dict[str, Tensor] = content.get("state_dict", content)
    return state
