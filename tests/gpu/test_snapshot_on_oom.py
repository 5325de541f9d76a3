"""On a card torch itself tells of memory that runs out, before anything unwinds."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backend import allocator, evidence
from backend.evidence import Witness
from backend.snapshot import Snapshots
from backend.watchdog import Look, Watchdog
from common import report
from common.readings import Reading, Readings
from common.report import PICKLE, Reason
from tests.backend.unet_kit import Pointwise, running

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's observer exists on CUDA only"),
]
LIMIT_BYTES = 2**30
HELD_BYTES = 2**29


@pytest.fixture
def walled() -> Iterator[torch.device]:
    device = torch.device("cuda", torch.cuda.current_device())
    allocator.wall(device, LIMIT_BYTES)
    yield device
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    torch.cuda.memory._record_memory_history(enabled=None)


def test_a_refused_allocation_leaves_a_report_and_the_history_with_everything_still_held(
    walled: torch.device, tmp_path: Path
) -> None:
    card: Any = SimpleNamespace(name="bench", read=lambda: Reading(10, 5, 5, 0, "host"))
    watchdog = Watchdog(Readings(card, lambda: 0.0, 0.2, 5), 1, lambda: Look(0, 0.0), lambda: 0, 0.2)
    with running(Pointwise()) as engine:
        witness = Witness(engine, watchdog, walled, "boot")
        snapshots = Snapshots(tmp_path, witness.report, evidence.dump_history)
        evidence.observe(snapshots)
        held = torch.empty(HELD_BYTES, dtype=torch.uint8, device=walled)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(LIMIT_BYTES, dtype=torch.uint8, device=walled)
    (name,) = report.names(tmp_path)
    told = report.read(tmp_path / name)
    assert told.reason is Reason.OOM
    assert told.asked_bytes == LIMIT_BYTES
    assert told.limit_bytes is not None
    assert abs(told.limit_bytes - LIMIT_BYTES) < 2**20
    assert told.device_free_bytes
    assert told.memory.allocated_bytes >= held.nbytes
    assert told.where[-1].endswith("everything_still_held")
    assert told.statistics["num_ooms"] >= 1
    assert "CUDA" in told.summary
    assert (tmp_path / name / PICKLE).stat().st_size > 0
    assert snapshots.last_oom_s == told.at_s
