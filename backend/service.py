"""Puts one model's process together: settings, engine, watchdog, control desk, gauges, the way to Triton."""

import logging
import time
import uuid
from typing import Any

from backend import allocator
from backend.control import Desk
from backend.device import announce, open_card, pick
from backend.engine import Engine
from backend.gauges import Gauges
from backend.logs import forward_to
from backend.triton_io import Adapter, Host
from backend.watchdog import Look, Watchdog
from common import settings as settings_module
from common.readings import Readings
from common.settings import Settings, parse_margin

log = logging.getLogger(__name__)


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
    forward_to(pb_utils.Logger, settings.log.level)
    announce(settings, model)
    started_s = time.monotonic()
    adapter = _load(model, settings)
    watchdog = _watch(adapter.engine, settings)
    desk = Desk(adapter.engine, watchdog, boot_id=uuid.uuid4().hex)
    gauges = Gauges(pb_utils, model)
    watchdog.on_poll = lambda: gauges.show(desk.status())
    watchdog.poll()
    watchdog.start()
    log.info("%s is loaded and warm after %.1f s", model, time.monotonic() - started_s)
    return Service(adapter.engine, watchdog, Host(pb_utils, adapter, desk))


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
    card = open_card(settings, device)
    readings = Readings(card, time.monotonic, settings.watchdog.poll_s, settings.watchdog.stale_polls)
    first = readings.poll()
    margin_bytes = parse_margin(settings.card.margin, first.total_bytes if first else 0)

    def look() -> Look:
        allocation = allocator.read(device)
        return Look(allocation.free_segments_bytes, allocation.fragmentation_ratio)

    return Watchdog(readings, margin_bytes, look, engine.reclaim, settings.watchdog.poll_s)
