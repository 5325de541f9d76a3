"""An engine's figures on Triton's metrics port, labelled by instance so that processes do not overwrite each other."""

import logging
from typing import Any

from common.wire import Breaker, EngineStatus

log = logging.getLogger(__name__)

GAUGES = {
    "vramgate_engine_capacity_bytes": "Bytes of the account the engine draws on",
    "vramgate_engine_used_bytes": "Bytes of the account held now",
    "vramgate_engine_unleased_bytes": "Bytes held for work that came without a lease",
    "vramgate_engine_standing_bytes": "Bytes held whether or not anyone calls",
    "vramgate_engine_headroom_bytes": "Bytes the card could still give; NaN when unknown",
    "vramgate_engine_fragmentation_ratio": "1 - largest free block / free cached bytes",
    "vramgate_engine_leases": "Requests with a lease that are being worked on",
    "vramgate_engine_ready": "1 when the engine takes work",
    "vramgate_engine_breaker_open": "1 while new work is refused for want of headroom",
}


class Gauges:
    """Custom metrics of one model; without effect where the server's metrics are switched off."""

    def __init__(self, pb_utils: Any, model: str) -> None:
        self._families: list[Any] = []
        self._gauges: dict[str, Any] = {}
        try:
            for name, text in GAUGES.items():
                family = pb_utils.MetricFamily(name=name, description=text, kind=pb_utils.MetricFamily.GAUGE)
                self._families.append(family)
                self._gauges[name] = family.Metric(labels={"model": model, "instance": "0"})
        except Exception as error:
            log.info("no metrics on the model server's port: %s", error)
            self._gauges = {}

    def show(self, status: EngineStatus) -> None:
        """Sets every gauge from the engine's status."""
        headroom = float("nan") if status.headroom_bytes is None else status.headroom_bytes
        values = (
            status.capacity_bytes,
            status.used_bytes,
            status.unleased_bytes,
            sum(status.standing.values()),
            headroom,
            status.fragmentation_ratio,
            len(status.leases),
            status.ready,
            status.breaker == Breaker.OPEN,
        )
        for gauge, value in zip(self._gauges.values(), values, strict=False):
            gauge.set(float(value))
