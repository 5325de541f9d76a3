"""A GPU as NVML shows it, found by its UUID, and which GPUs a process may see at all.

`nvml` is the module ``pynvml`` or what stands in for it. Nothing here asks for processes: containers do not show them.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from common.readings import Reading, host_memory

Found = TypeVar("Found")

PREFIXES = ("GPU-", "MIG-")


class NvmlCard:
    """A GPU or a MIG slice, whose size is the slice's; falls back from the v2 to the v1 structure, then to the host."""

    def __init__(self, nvml: Any, uuid: str, host: Callable[[], Reading | None] = host_memory) -> None:
        """`uuid` with or without its prefix; `host` reads the memory of a board that has none of its own.

        Raises NVMLError where there is no such GPU.
        """
        self._nvml = nvml
        self._host = host
        self.uuid, self._handle = _handle(nvml, uuid)

    @property
    def name(self) -> str:
        """Product name and UUID."""
        return f"{self._nvml.nvmlDeviceGetName(self._handle)} {self.uuid}"

    def read(self) -> Reading | None:
        """About 5 us. None when both structures fail, or the numbers contradict themselves.

        A board that shares the host's memory says that neither is supported: then the host's memory is the card.
        """
        unsupported = 0
        for source, arguments in (("nvml-v2", {"version": self._nvml.nvmlMemory_v2}), ("nvml-v1", {})):
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle, **arguments)
            except self._nvml.NVMLError_NotSupported:
                unsupported += 1
                continue
            except self._nvml.NVMLError:
                continue
            reserved_bytes = int(getattr(memory, "reserved", 0))
            reading = Reading(int(memory.total), int(memory.free), int(memory.used), reserved_bytes, source)
            if reading.total_bytes > 0 and 0 <= reading.free_bytes <= reading.total_bytes:
                return reading
        return self._host() if unsupported == 2 else None


def visible(nvml: Any, spelled: str | None) -> tuple[str, ...]:
    """UUIDs of the GPUs that CUDA shows where ``CUDA_VISIBLE_DEVICES`` is `spelled` (None: not set), in its order.

    Indices, UUIDs of GPUs and of MIG slices and unique beginnings of them; from the first that names nothing on there
    is nothing, and nothing at all where one is named twice. Of a GPU that is sliced CUDA shows the first slice.
    Indices are those of the PCI bus, as CUDA counts where all boards are alike or ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
    """
    boards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if spelled is None:
        return tuple(_shown(nvml, board) for board in boards)
    found: list[str] = []
    for word in spelled.split(","):
        uuid = _named(nvml, boards, word.strip())
        if uuid is None:
            break
        if uuid in found:
            return ()
        found.append(uuid)
    return tuple(found)


def choose(uuids: tuple[str, ...], wanted: str) -> str | None:
    """Of the visible GPUs the one that ``card.device`` names; None where it names none, or not one alone."""
    if wanted in ("auto", "cuda"):
        return next(iter(uuids), None)
    if wanted.isdecimal():
        return uuids[int(wanted)] if int(wanted) < len(uuids) else None
    return _only([uuid for uuid in uuids if _begins(uuid, wanted)])


def _handle(nvml: Any, uuid: str) -> tuple[str, Any]:
    """CUDA says the UUID of a slice without saying that it is one."""
    bare = _bare(uuid)
    spellings = [uuid, *(prefix + bare for prefix in PREFIXES if prefix + bare != uuid)]
    for spelling in spellings[:-1]:
        try:
            return spelling, nvml.nvmlDeviceGetHandleByUUID(spelling)
        except nvml.NVMLError:
            continue
    return spellings[-1], nvml.nvmlDeviceGetHandleByUUID(spellings[-1])


def _named(nvml: Any, boards: list[Any], word: str) -> str | None:
    if word.isdecimal():
        return _shown(nvml, boards[int(word)]) if int(word) < len(boards) else None
    if word.startswith("GPU-"):
        board = _only([board for board in boards if _begins(nvml.nvmlDeviceGetUUID(board), word)])
        return None if board is None else _shown(nvml, board)
    if word.startswith("MIG-"):
        return _only([uuid for board in boards for uuid in _slices(nvml, board) if _begins(uuid, word)])
    return None


def _shown(nvml: Any, board: Any) -> str:
    return next(_slices(nvml, board), None) or str(nvml.nvmlDeviceGetUUID(board))


def _slices(nvml: Any, board: Any) -> Iterator[str]:
    """UUIDs of the MIG slices of a board; none where it is whole, or this process may not ask."""
    try:
        is_sliced = nvml.nvmlDeviceGetMigMode(board)[0]
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(board) if is_sliced else 0
    except nvml.NVMLError:
        return
    for index in range(most):
        try:
            yield str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index)))
        except nvml.NVMLError:
            continue


def _begins(uuid: str, beginning: str) -> bool:
    return uuid.lower().startswith(beginning.lower())


def _bare(uuid: str) -> str:
    return uuid[4:] if uuid.startswith(PREFIXES) else uuid


def _only(found: list[Found]) -> Found | None:
    return found[0] if len(found) == 1 else None
