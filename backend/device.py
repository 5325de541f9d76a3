"""Which device an engine runs on, and the card behind it."""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from common.errors import SettingsError
from common.nvml import NvmlCard, choose
from common.readings import Card, FirstOf, HostCard, Reading, host_total_bytes
from common.settings import Settings

LOG = logging.getLogger(__name__)


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
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    uuids = tuple(uuid_of(device) for device in devices)
    chosen = choose(uuids, wanted.replace("MIG-", "GPU-", 1))
    if chosen is not None:
        return devices[uuids.index(chosen)]
    raise SettingsError(f"card.device: torch sees no device {wanted!r}")


def uuid_of(device: torch.device) -> str:
    """UUID as ``GPU-…``, also of a MIG slice: CUDA does not tell them apart."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def label(device: torch.device) -> str:
    """``cpu`` or ``cuda:<uuid>``."""
    return f"cuda:{uuid_of(device)}" if device.type == "cuda" else "cpu"


def run_on(device: torch.device, work: Callable[[], None]) -> None:
    """Runs `work` with `device` as the thread's own, whose queue events and kernels go to unless told otherwise."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        work()


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
        return FirstOf((*_nvml_cards(device), CudaCard(device)))
    folder = settings.state.dir.expanduser() / "engines"
    return HostCard(host_total_bytes(settings.card) + beside_bytes, lambda: _engine_pids(folder))


class CudaCard:
    """What CUDA itself says, for where NVML is missing or has lost the card: free and total, of a slice too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def name(self) -> str:
        """Product name and UUID."""
        return f"{torch.cuda.get_device_name(self._device)} {uuid_of(self._device)}"

    def read(self) -> Reading | None:
        """None where the process has lost the card, too."""
        try:
            free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        except RuntimeError:
            return None
        return Reading(total_bytes, free_bytes, total_bytes - free_bytes, 0, "cuda") if total_bytes else None


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


def _nvml_cards(device: torch.device) -> tuple[NvmlCard, ...]:
    """The card in NVML; none where the library is missing or does not know it."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return (NvmlCard(pynvml, uuid_of(device)),)
    except pynvml.NVMLError as error:
        LOG.warning("NVML does not show the card, CUDA is asked instead: %s", error)
        return ()


def _engine_pids(folder: Path) -> list[int]:
    pids = []
    for file in folder.glob("*.pid"):
        text = file.read_text(encoding="ascii").strip()
        if text.isdigit():
            pids.append(int(text))
    return pids
