"""The network over a batch of tiles: constant shapes, constant memory."""

import logging
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend import allocator
from backend.unet.marks import Mark, mark
from backend.unet.network import UNet
from common.errors import SettingsError

log = logging.getLogger(__name__)

AHEAD_BATCHES = 1
"""One is computed while the next is prepared. More would only keep those waiting who come meanwhile."""


class TileRunner:
    """Tiles in, logits out. One thread fills `slots` and calls `run`; on CUDA `run` only queues the work.

    The network is in channels_last, on the device and of the dtype that it runs in. Batches come in few sizes, the
    *buckets*, so that every shape that runs has been warmed up. On CUDA each is captured once as a graph: a pass is one
    launch, and its activations stand in the graphs' own memory, which the buckets share.
    """

    def __init__(
        self,
        network: UNet,
        tile_pixels: int,
        tile_batch: int,
        mean: Sequence[float],
        std: Sequence[float],
        mark: Callable[[torch.device], Mark | None] = mark,
    ) -> None:
        """`mean` and `std` normalise RGB in [0, 1]."""
        parameter = network.segmentation_head[0].weight
        assert isinstance(parameter, Tensor)
        self.network = network
        self.device, self.dtype = parameter.device, parameter.dtype
        self.tile_pixels, self.tile_batch = tile_pixels, tile_batch
        self.buckets = _buckets(tile_batch, self.device)
        self._mark = mark
        self._ahead: deque[Mark] = deque()
        """Marks behind batches that may still have to be computed."""
        self._scale = torch.tensor([1 / (255 * s) for s in std]).to(self.device, self.dtype).view(1, 3, 1, 1)
        self._shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).to(self.device, self.dtype)
        self._shift = self._shift.view(1, 3, 1, 1)
        size = (tile_batch, tile_pixels, tile_pixels, 3)
        pinned = self.device.type == "cuda"
        self._hosts = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in self._hosts] if pinned else []  # type: ignore[no-untyped-call]
        self._tiles = torch.zeros(size, dtype=torch.uint8, device=self.device) if pinned else None
        """What the graphs read."""
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        """Bucket -> its graph, and the logits that the graph writes."""

    @property
    def weights_bytes(self) -> int:
        """Bytes of the parameters on the device."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.network.parameters())

    def wait(self) -> None:
        """Returns when no more than AHEAD_BATCHES are still to be computed.

        Who chooses the next batch after that has it computed behind these alone.
        """
        while len(self._ahead) > AHEAD_BATCHES:
            self._ahead.popleft().synchronize()

    def slots(self) -> NDArray[np.uint8]:
        """[tile_batch, T, T, 3]: where the tiles of the next `run` go. Waits until the device has read the old ones."""
        self.wait()
        if self._copied:
            self._copied[0].synchronize()
        return self._hosts[0].numpy()

    @torch.inference_mode()
    def run(self, count: int) -> Tensor:
        """Logits of the first `count` slots: float16 [count, C, T, T] on the device.

        The caller may change them. Work that is queued after the next `run` finds others there.
        """
        bucket = next(size for size in self.buckets if size >= count)
        tiles = self._upload(bucket)
        if bucket in self._graphs:
            graph, logits = self._graphs[bucket]
            graph.replay()
        else:
            logits = self._forward(tiles)
        if (mark := self._mark(self.device)) is not None:
            self._ahead.append(mark)
        return logits[:count]

    def warm_up(self) -> None:
        """Runs every shape that will run, so that nothing is chosen or allocated later; on CUDA captures the graphs.

        Raises SettingsError when the logits of a test pattern are no numbers, or too large for float16.
        """
        torch.backends.cudnn.benchmark = True
        self._rehearse()
        allocator.release_free_segments(self.device)
        if self._tiles is not None:
            self._capture(self._tiles)
        self._rehearse()

    def _upload(self, count: int) -> Tensor:
        """The first `count` slots on the device, uint8 [count, T, T, 3]; the next slots are others."""
        if self._tiles is None:
            return self._hosts[0][:count]
        tiles = self._tiles[:count].copy_(self._hosts[0][:count], non_blocking=True)
        self._copied[0].record(torch.cuda.current_stream(self.device))
        self._copied.reverse()
        self._hosts.reverse()
        return tiles

    def _forward(self, tiles: Tensor) -> Tensor:
        pixels = torch.addcmul(self._shift, tiles.permute(0, 3, 1, 2).to(self.dtype), self._scale)
        logits: Tensor = self.network(pixels)
        return logits.half()

    @torch.inference_mode()
    def _capture(self, tiles: Tensor) -> None:
        """The largest first, so that the smaller ones find their memory there."""
        memory = torch.cuda.graph_pool_handle()
        for bucket in reversed(self.buckets):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
                logits = self._forward(tiles[:bucket])
            self._graphs[bucket] = graph, logits

    def _rehearse(self) -> None:
        pattern = np.random.default_rng(0).integers(0, 256, self.slots().shape, dtype=np.uint8)
        for bucket in reversed(self.buckets):
            self.slots()[:bucket] = pattern[:bucket]
            if not bool(self.run(bucket).isfinite().all()):
                raise SettingsError(f"unet.weights: the network does not give finite numbers in {self.dtype}")


def _buckets(tile_batch: int, device: torch.device) -> tuple[int, ...]:
    """Batch sizes that run: all on the CPU, which needs no plan for them; powers of two and the full one on CUDA."""
    if device.type != "cuda":
        return tuple(range(1, tile_batch + 1))
    return (*(1 << n for n in range(tile_batch.bit_length()) if 1 << n < tile_batch), tile_batch)
