from typing import Any

from common.readings import Reading
from common.report import Memory, Moment, Reason, Report
from common.wire import ActiveLease, Breaker

MIB = 2**20


def moment(at_s: float, headroom_bytes: int | None, used_bytes: int, own_bytes: int) -> Moment:
    return Moment(at_s, headroom_bytes, used_bytes, own_bytes, 0.0, Breaker.CLOSED)


def made(**changes: Any) -> Report:
    """A calm engine with one lease, but for `changes`."""
    told: dict[str, Any] = {
        "at_s": 1.0,
        "reason": Reason.DEMAND,
        "model": "llama",
        "pid": 7,
        "boot_id": "boot",
        "device": "cpu",
        "step": "",
        "where": (),
        "asked_bytes": None,
        "limit_bytes": None,
        "device_free_bytes": None,
        "reading": Reading(1000 * MIB, 600 * MIB, 400 * MIB, 0, "host"),
        "readings_state": "known",
        "margin_bytes": 90 * MIB,
        "headroom_bytes": 600 * MIB,
        "memory": Memory(),
        "statistics": {},
        "summary": "",
        "standing": {"weights": 100 * MIB, "page pool": 200 * MIB},
        "account": "llama.pages",
        "capacity_bytes": 200 * MIB,
        "used_bytes": 20 * MIB,
        "unleased_bytes": 0,
        "leases": (ActiveLease("lease-1", 20 * MIB),),
        "leases_active": 1,
        "pool_keys": ("llama/x",),
        "totals": {"steps": 3},
        "looks": tuple(moment(float(second), 600 * MIB, 400 * MIB, 300 * MIB) for second in range(60)),
        "versions": {"torch": "2"},
    }
    return Report(**(told | changes))
