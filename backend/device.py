"""Which device an engine runs on, and the card behind it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from common.errors import SettingsError
from common.readings import Card, HostCard, NvmlCard, host_total_bytes
from common.settings import Settings


def pick(settings: Settings) -> torch.device:
    """The device that ``card.device`` names; raises SettingsError when torch cannot see it."""
    wanted = settings.card.device
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SettingsError(
            f"card.device: {wanted!r} asked for, but this torch ({torch.__version__}) sees no CUDA device"
        )
    if wanted in ("auto", "cuda"):
        return torch.device("cuda", torch.cuda.current_device())
    for index in range(torch.cuda.device_count()):
        if wanted in (str(index), uuid_of(torch.device("cuda", index))):
            return torch.device("cuda", index)
    raise SettingsError(f"card.device: torch sees no device {wanted!r}")


def uuid_of(device: torch.device) -> str:
    """UUID in NVML's spelling, ``GPU-…`` (or ``MIG-…``)."""
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def label(device: torch.device) -> str:
    """``cpu`` or ``cuda:<uuid>``."""
    return f"cuda:{uuid_of(device)}" if device.type == "cuda" else "cpu"


def upload(values: Sequence[float] | Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`values` on the device, by a copy that neither waits for the device's work nor lets the caller wait."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


class Fetch:
    """A small tensor on its way from the device; later work of the device does not hold it up."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._host = tensor
        self._arrived: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def read(self) -> list[Any]:
        """Its numbers, once they are here."""
        if self._arrived is not None:
            self._arrived.synchronize()
        numbers: list[Any] = self._host.tolist()
        return numbers


def open_card(settings: Settings, device: torch.device, beside_bytes: int = 0) -> Card:
    """The card behind `device`; on the CPU a slice of host memory shared with the other engines' processes.

    `beside_bytes` are lent to the engines beside the card: their resident sets hold them too, so the slice has them.
    """
    if device.type == "cuda":
        import pynvml

        pynvml.nvmlInit()
        return NvmlCard(pynvml, uuid_of(device))
    folder = settings.state.dir.expanduser() / "engines"
    return HostCard(host_total_bytes(settings.card) + beside_bytes, lambda: _engine_pids(folder))


def total_bytes_of(device: torch.device, settings: Settings) -> int:
    """The card's size as torch and the settings know it, whether or not the card answers."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return host_total_bytes(settings.card)


def announce(settings: Settings, model: str) -> None:
    """Writes this process's id where the other engines' host cards look for it."""
    folder = settings.state.dir.expanduser() / "engines"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / f"{model}.pid").write_text(str(os.getpid()), encoding="ascii")


def _engine_pids(folder: Path) -> list[int]:
    pids = []
    for file in folder.glob("*.pid"):
        text = file.read_text(encoding="ascii").strip()
        if text.isdigit():
            pids.append(int(text))
    return pids
