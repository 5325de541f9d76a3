import os
from types import SimpleNamespace

import pytest

from common.readings import GIB, HostCard, NvmlCard, Reading, Readings, State, host_total_bytes
from common.sections import Card as CardSettings


class FakeNvml:
    """NVML with one card; `broken` names the structures that fail."""

    nvmlMemory_v2 = 2  # noqa: N815

    class NVMLError(Exception):
        pass

    def __init__(self, broken: tuple[str, ...] = (), total: int = 80 * GIB) -> None:
        self.broken, self.total = broken, total

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return "Test Card"

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int = 1) -> SimpleNamespace:  # noqa: N802
        if f"v{version}" in self.broken:
            raise self.NVMLError
        used, reserved = 20 * GIB, GIB
        if version == 2:
            return SimpleNamespace(total=self.total, free=self.total - used - reserved, used=used, reserved=reserved)
        return SimpleNamespace(total=self.total, free=self.total - used - reserved, used=used + reserved)


def test_version_two_of_nvml_tells_the_drivers_share_apart() -> None:
    assert NvmlCard(FakeNvml(), "GPU-1").read() == Reading(80 * GIB, 59 * GIB, 20 * GIB, GIB, "nvml-v2")


def test_a_driver_without_version_two_is_read_by_version_one() -> None:
    assert NvmlCard(FakeNvml(broken=("v2",)), "GPU-1").read() == Reading(80 * GIB, 59 * GIB, 21 * GIB, 0, "nvml-v1")


@pytest.mark.parametrize("nvml", [FakeNvml(broken=("v2", "v1")), FakeNvml(total=0)])
def test_a_card_that_says_nothing_sensible_is_unknown_not_zero(nvml: FakeNvml) -> None:
    assert NvmlCard(nvml, "GPU-1").read() is None


def test_host_memory_counts_resident_sets_and_forgets_the_dead() -> None:
    total_bytes = 1024 * GIB
    reading = HostCard(total_bytes, lambda: [os.getpid(), 2**22 + 1]).read()
    assert reading is not None
    assert 2**20 < reading.used_bytes < total_bytes
    assert reading.free_bytes + reading.used_bytes == reading.total_bytes == total_bytes


def test_an_overfull_slice_has_nothing_free_rather_than_less_than_nothing() -> None:
    reading = HostCard(4096, lambda: [os.getpid()]).read()
    assert reading is not None
    assert reading.free_bytes == 0


def test_a_reading_grows_stale_then_unknown_and_comes_back() -> None:
    now_s = [0.0]
    answers: list[Reading | None] = [Reading(10, 5, 5, 0, "host"), None, Reading(10, 4, 6, 0, "host")]
    card = SimpleNamespace(name="x", read=lambda: answers.pop(0))
    readings = Readings(card, lambda: now_s[0], poll_s=0.2, stale_polls=5)

    def state_at(at_s: float, *, poll: bool) -> State:
        now_s[0] = at_s
        if poll:
            readings.poll()
        return readings.state

    assert (state_at(0.0, poll=False), readings.latest) == (State.UNKNOWN, None)
    assert state_at(0.0, poll=True) == State.KNOWN
    assert state_at(0.5, poll=True) == State.STALE
    assert state_at(1.1, poll=False) == State.UNKNOWN
    assert readings.latest is not None
    assert readings.latest.free_bytes == 5
    assert state_at(1.1, poll=True) == State.KNOWN


def test_the_host_slice_is_as_set_or_at_most_four_gib() -> None:
    assert host_total_bytes(CardSettings(total=3 * GIB)) == 3 * GIB
    assert 0 < host_total_bytes(CardSettings()) <= 4 * GIB
