"""Where canvases lie, in a pool on the device or on the host when they have to leave it, and where they are reduced."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from backend.unet.canvas import StripPool
from backend.unet.job import Job
from backend.unet.workspace import Workspace
from common.wire import UnetLimits

_HOST = torch.device("cpu")


class Pools:
    """Both pools of one engine; used by its thread, whose canvases they are."""

    def __init__(self, limits: UnetLimits, device: torch.device, host: StripPool | None = None) -> None:
        """`host`: None makes one where the device is not the host itself, which then has the only one."""
        self.device = StripPool(limits, device)
        self.host = host or (self.device if device.type == "cpu" else StripPool(limits, _HOST))
        self._limits = limits
        self._on_device = Workspace(limits, device)
        self._on_host = self._on_device if device.type == "cpu" else Workspace(limits, _HOST)

    def take(self, job: Job, tile: int, logits: Tensor) -> None:
        """Has `job` take in a tile's logits; what it has finished by that is reduced where it lies."""
        has_left = job.canvas is not None and job.pool.logits.device == _HOST
        job.take(tile, logits, self._on_host if has_left else self._on_device)

    @property
    def can_leave(self) -> bool:
        """There is a host beside the device, and the device's pool has not left yet."""
        return self.host is not self.device and not self.device.is_released

    @property
    def away_bytes(self) -> int:
        """What the device's pool took there; 0 while it still does."""
        return self._limits.canvas_bytes if self.device.is_released else 0

    def is_on_device(self, job: Job) -> bool:
        """Whether its canvas is, or would be, in the device's pool, and could be on the host."""
        return job.pool is self.device and self.host is not self.device

    def send(self, job: Job) -> None:
        """Has a job go on with a canvas on the host: of its own, where the pool there is full."""
        if self.is_on_device(job):
            strips = job.grid.strips if job.canvas is not None else 0
            own = replace(self._limits, canvas_bytes=strips * self.host.strip_bytes)
            job.go_to_host(self.host if strips <= self.host.free else StripPool(own, _HOST))

    def leave(self, jobs: Iterable[Job]) -> None:
        """Sends all that have a canvas on the device to the host and gives the device's pool back."""
        if self.can_leave:
            for job in jobs:
                if job.canvas is not None:
                    self.send(job)
            self.device.release()
