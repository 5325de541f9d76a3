"""The last rung of the segmentation model: the same weights in float32 on the host's CPU, a tile at a time.

It is slow and complete. Its memory is an account of its own: weights and activations within ``unet.host_rung``, taken
when it is first needed; canvases and answers are in host memory already.
"""

import copy

import torch
from torch import nn

from backend.unet.runner import TileRunner
from common.sections import Unet as UnetSettings
from estimator.unet import UnetShape, tile_batch_bytes

MAX_WAITING = 4
"""Images it has in hand at the most."""


def is_allowed(runner: TileRunner, unet: UnetSettings) -> bool:
    """Whether weights and one tile fit ``unet.host_rung``, and the model does not run on the host already."""
    return runner.device.type != "cpu" and need_bytes(runner) <= int(unet.host_rung)


def need_bytes(runner: TileRunner) -> int:
    """Host memory for the weights in float32 and one tile."""
    network = runner.network
    weights_bytes = 4 * sum(parameter.numel() for parameter in network.parameters())
    shape = UnetShape(network.width, network.classes, network.in_channels)
    return weights_bytes + tile_batch_bytes(shape, runner.tile_pixels, 1, "float32")


def settings_of(runner: TileRunner, unet: UnetSettings) -> UnetSettings:
    """Those of an engine on the host in place of one around `runner`."""
    canvas_bytes = unet.canvas_bytes_on(runner.device.type)
    return unet.model_copy(update={"canvas": canvas_bytes, "tile_batch": 1, "max_waiting": MAX_WAITING})


def open_runner(runner: TileRunner, unet: UnetSettings) -> TileRunner:
    """The network of `runner` on the host, not yet warm."""
    tensors = (*runner.network.parameters(), *runner.network.buffers())
    copied = {id(tensor): _on_host(tensor) for tensor in tensors}
    network = copy.deepcopy(runner.network, copied)  # takes these for what it would copy on the device
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return TileRunner(network, runner.tile_pixels, 1, unet.mean, unet.std)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.detach().cpu()
    copied = copied.float() if copied.is_floating_point() else copied
    return nn.Parameter(copied, requires_grad=False) if isinstance(tensor, nn.Parameter) else copied
