from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from common.nvml import NvmlCard, choose, visible
from common.readings import GIB, Reading

UNIFIED = Reading(128 * GIB, 100 * GIB, 28 * GIB, 0, "unified")
WHOLE, SLICED, OTHER = "GPU-aaaa1111", "GPU-bbbb2222", "GPU-bbbb3333"
SLICES = ("MIG-cccc4444", "MIG-dddd5555")


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801
    pass


@dataclass
class FakeNvml:
    """Three boards, the second of them sliced; a handle is a UUID."""

    broken: dict[int, type[NVMLError]] = field(default_factory=dict)
    """Structure version -> how it fails."""
    total: int = 80 * GIB
    may_ask_for_slices: bool = True

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    nvmlMemory_v2 = 2  # noqa: N815

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return (WHOLE, SLICED, OTHER)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in (WHOLE, SLICED, OTHER, *SLICES):
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return "Test Card"

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        if not self.may_ask_for_slices or handle == WHOLE:
            raise NVMLError_NotSupported
        return [int(handle == SLICED)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:  # noqa: N802
        if index not in (1, 3):
            raise NVMLError("Not Found")
        return SLICES[index // 2]

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int = 1) -> SimpleNamespace:  # noqa: N802
        if version in self.broken:
            raise self.broken[version]
        total = self.total // 8 if handle in SLICES else self.total
        used, reserved = total // 4, GIB
        if version == 2:
            return SimpleNamespace(total=total, free=total - used - reserved, used=used, reserved=reserved)
        return SimpleNamespace(total=total, free=total - used - reserved, used=used + reserved)


def read(nvml: FakeNvml, uuid: str = WHOLE) -> Reading | None:
    return NvmlCard(nvml, uuid, lambda: UNIFIED).read()


def test_version_two_of_nvml_tells_the_drivers_share_apart() -> None:
    assert read(FakeNvml()) == Reading(80 * GIB, 59 * GIB, 20 * GIB, GIB, "nvml-v2")


@pytest.mark.parametrize("fault", [NVMLError, NVMLError_NotSupported])
def test_a_driver_without_version_two_is_read_by_version_one(fault: type[NVMLError]) -> None:
    assert read(FakeNvml({2: fault})) == Reading(80 * GIB, 59 * GIB, 21 * GIB, 0, "nvml-v1")


@pytest.mark.parametrize(
    "nvml",
    [FakeNvml({2: NVMLError, 1: NVMLError}), FakeNvml({2: NVMLError, 1: NVMLError_NotSupported}), FakeNvml(total=0)],
)
def test_a_card_that_says_nothing_sensible_is_unknown_not_zero(nvml: FakeNvml) -> None:
    assert read(nvml) is None


def test_a_board_that_shares_the_hosts_memory_is_as_large_as_that() -> None:
    assert read(FakeNvml({2: NVMLError_NotSupported, 1: NVMLError_NotSupported})) == UNIFIED


def test_a_slice_is_as_large_as_itself_also_where_cuda_does_not_say_that_it_is_one() -> None:
    for uuid in (SLICES[0], SLICES[0].removeprefix("MIG-"), SLICES[0].replace("MIG", "GPU")):
        card = NvmlCard(FakeNvml(), uuid)
        assert (reading := card.read()) is not None
        assert (reading.total_bytes, card.uuid) == (10 * GIB, SLICES[0])
    with pytest.raises(NVMLError):
        NvmlCard(FakeNvml(), "GPU-nowhere")


@pytest.mark.parametrize(
    ("spelled", "shown"),
    [
        (None, (WHOLE, SLICES[0], OTHER)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("2", (OTHER,)),
        ("2,0", (OTHER, WHOLE)),
        (" 0 , 2", (WHOLE, OTHER)),
        ("0,3,2", (WHOLE,)),
        ("0,-1,2", (WHOLE,)),
        ("0,0", ()),
        ("1", (SLICES[0],)),
        (WHOLE, (WHOLE,)),
        ("GPU-aaaa", (WHOLE,)),
        ("GPU-AAAA", (WHOLE,)),
        ("GPU-bbbb", ()),
        ("GPU-bbbb3,0", (OTHER, WHOLE)),
        ("GPU-bbbb2", (SLICES[0],)),
        (SLICES[1], (SLICES[1],)),
        ("MIG-dddd", (SLICES[1],)),
        ("MIG-nothing", ()),
    ],
)
def test_cuda_visible_devices_is_read_in_all_its_spellings(spelled: str | None, shown: tuple[str, ...]) -> None:
    assert visible(FakeNvml(), spelled) == shown


def test_who_may_not_ask_for_slices_sees_boards() -> None:
    assert visible(FakeNvml(may_ask_for_slices=False), "1") == (SLICED,)


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [("auto", WHOLE), ("cuda", WHOLE), ("1", OTHER), ("2", None), ("GPU-bbbb", OTHER), ("MIG-x", None), ("GPU-", None)],
)
def test_the_device_of_the_settings_is_one_of_the_visible(wanted: str, chosen: str | None) -> None:
    assert choose((WHOLE, OTHER), wanted) == chosen
    assert choose((), wanted) is None
