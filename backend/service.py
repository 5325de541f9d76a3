"""Puts one model's process together: settings, engine, watchdog, control desk, gauges, the way to Triton."""

import gc
import logging
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

from backend import allocator, evidence
from backend.control import Desk
from backend.device import announce, open_card, pick, total_bytes_of
from backend.engine import Engine
from backend.evidence import Witness
from backend.gauges import Gauges
from backend.logs import forward_to
from backend.snapshot import Snapshots
from backend.triton_io import Adapter, Host
from backend.watchdog import Look, Watchdog
from common import settings as settings_module
from common.readings import Readings, resident_bytes
from common.report import folder_of
from common.settings import Settings, parse_margin

log = logging.getLogger(__name__)

EXIT_LOST = 70
"""Status of a process whose device is lost (EX_SOFTWARE)."""


class Service:
    """One loaded model, as Triton's ``model.py`` holds it."""

    def __init__(self, engine: Engine[Any, Any], watchdog: Watchdog, host: Host[Any, Any]) -> None:
        self._engine = engine
        self._watchdog = watchdog
        self._host = host
        self.accept = host.accept
        self.is_ready = host.is_ready

    def close(self) -> None:
        """Ends the work first, so that its last answers still go out."""
        self._watchdog.close()
        self._engine.close()
        self._host.close()


def start(model: str, pb_utils: Any) -> Service:
    """Loads `model` (``llama`` or ``unet``) and starts its threads; raises SettingsError when it cannot be loaded."""
    settings = settings_module.load()
    forward_to(pb_utils.Logger, settings.log)
    announce(settings, model)
    started_s = time.monotonic()
    adapter = _load(model, settings)
    watchdog = _watch(adapter.engine, settings)
    boot_id = uuid.uuid4().hex
    snapshots = keep_evidence(adapter.engine, watchdog, settings, boot_id)
    desk = Desk(adapter.engine, watchdog, snapshots, boot_id)
    gauges = Gauges(pb_utils, model)
    host = Host(pb_utils, adapter, desk)
    adapter.engine.on_lost = lambda reason: end_process(host.close)
    watchdog.on_poll = lambda: gauges.show(desk.status())
    watchdog.poll()
    watchdog.start()
    # What is loaded stays: the collector need not look through it again in the middle of the work.
    gc.freeze()
    log.info("%s is loaded and warm after %.1f s", model, time.monotonic() - started_s)
    return Service(adapter.engine, watchdog, host)


def end_process(farewell: Callable[[], None]) -> None:
    """After `farewell` this process is gone: its context on the device is broken, and so would its exit handlers be.

    The model server sees the stub exit; whoever keeps the model brings a new one.
    """
    try:
        farewell()
    finally:
        os._exit(EXIT_LOST)


def _load(model: str, settings: Settings) -> Adapter[Any, Any]:
    """The engine modules are imported here, so that a process pays for its own model only."""
    if model == "llama":
        from backend.llama import engine as llama_engine
        from backend.llama.adapter import LlamaAdapter

        return LlamaAdapter(llama_engine.load(settings), settings.llama)
    from backend.unet import engine as unet_engine
    from backend.unet.adapter import UnetAdapter

    return UnetAdapter(unet_engine.load(settings), settings.unet)


def _watch(engine: Engine[Any, Any], settings: Settings) -> Watchdog:
    device = pick(settings)
    card = open_card(settings, device, beside_bytes=int(settings.admission.host))
    readings = Readings(card, time.monotonic, settings.watchdog.poll_s, settings.watchdog.stale_polls)
    readings.poll()
    margin_bytes = parse_margin(settings.card.margin, total_bytes_of(device, settings))

    def look() -> Look:
        allocation = allocator.read(device)
        own_bytes = allocation.reserved_bytes if device.type == "cuda" else resident_bytes(os.getpid())
        return Look(allocation.free_segments_bytes, allocation.fragmentation_ratio, own_bytes)

    return Watchdog(readings, margin_bytes, look, engine.reclaim, settings.watchdog.poll_s, movable=engine)


def keep_evidence(engine: Engine[Any, Any], watchdog: Watchdog, settings: Settings, boot_id: str) -> Snapshots:
    """From here on a snapshot is written when memory runs out or the breaker opens."""
    device, folder = pick(settings), folder_of(settings)
    is_cuda = device.type == "cuda"
    snapshots = Snapshots(
        folder,
        Witness(engine, watchdog, device, boot_id).report,
        evidence.dump_history if is_cuda else None,
        evidence.recall(folder, engine.model, engine.footprint().pool_keys),
    )
    engine.on_failure = snapshots.on_failure
    watchdog.on_trip = snapshots.on_trip
    if is_cuda:
        evidence.observe(snapshots)
    return snapshots
