"""What is seen from outside while a campaign runs: ledger, engines, driver, resident memory."""

import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import pynvml

from common.nvml import NvmlCard, visible
from loadtests.campaigns.process import Process

FETCH_S = 2.0


@dataclass(frozen=True)
class Sample:
    """One look."""

    unix_s: float
    driver_used_bytes: int | None = None
    """Of the card, beyond what was used before the contestant started; without a card None."""
    resident_bytes: dict[str, int] = field(default_factory=dict)
    """Role -> bytes."""
    accounts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Account -> capacity_bytes, held_bytes, available_bytes, engine_used_bytes; empty where there is no ledger."""
    standing_bytes: int = 0
    """Of all engines."""
    leases: int = 0
    waiting: int = 0
    allocated_bytes: int | None = None
    """Of torch's allocator, where a baseline tells."""
    reserved_bytes: int | None = None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of :meth:`to_json`."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """One line."""
        values = {name: value for name, value in asdict(self).items() if value not in (None, {}, 0)}
        return json.dumps(values, separators=(",", ":"))

    @property
    def held_bytes(self) -> int:
        """What all leases hold of the card."""
        return sum(account["held_bytes"] for name, account in self.accounts.items() if name != "host")

    @property
    def engine_used_bytes(self) -> int:
        """What the engines say they use of it."""
        return sum(account.get("engine_used_bytes", 0) for name, account in self.accounts.items() if name != "host")


class Watch:
    """Looks every so often, on a thread of its own, and writes every look down."""

    def __init__(self, process: Process, url: str, card: Callable[[], int | None], path: Path, period_s: float) -> None:
        """`card` gives the driver's bytes in use; ``/v1/ledger`` or ``/stats`` of `url` is asked where it is there."""
        self._process = process
        self._url = url
        self._card = card
        self._path = path
        self._period_s = period_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> Sample:
        """One sample, now."""
        told = fetch(self._url + "/v1/ledger")
        seen: dict[str, Any] = _ledger(told) if told else _stats(fetch(self._url + "/stats"))
        return Sample(time.time(), self._card(), self._process.resident(), **seen)

    def _run(self) -> None:
        with self._path.open("w", encoding="utf-8") as file:
            while not self._over.wait(self._period_s):
                file.write(self.look().to_json() + "\n")


def read(path: Path) -> list[Sample]:
    """All samples of a file."""
    with path.open(encoding="utf-8") as lines:
        return [Sample.from_json(line) for line in lines]


def fetch(url: str) -> dict[str, Any] | None:
    """The JSON object at `url`; None when there is none, or it does not come in time."""
    try:
        with urllib.request.urlopen(url, timeout=FETCH_S) as reply:
            told = json.load(reply)
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def driver() -> Callable[[], int | None]:
    """Bytes of this machine's first visible card that were taken since now; None where there is no card."""
    card = _card()
    if card is None:
        return lambda: None

    def used_bytes() -> int:
        reading = card.read()
        return 0 if reading is None else reading.used_bytes

    before_bytes = used_bytes()
    return lambda: used_bytes() - before_bytes


def card_name() -> str | None:
    """Of the first visible card; None where there is none."""
    card = _card()
    return None if card is None else card.name.rpartition(" ")[0]


def _card() -> NvmlCard | None:
    try:
        pynvml.nvmlInit()
        return NvmlCard(pynvml, visible(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"))[0])
    except (pynvml.NVMLError, IndexError):
        return None


def _ledger(told: dict[str, Any]) -> dict[str, Any]:
    names = ("capacity_bytes", "held_bytes", "available_bytes", "engine_used_bytes")
    return {
        "accounts": {
            account["name"]: {name: account[name] for name in names if account.get(name) is not None}
            for account in told["accounts"]
        },
        "standing_bytes": sum(engine.get("standing_bytes", 0) for engine in told["engines"]),
        "leases": len(told["leases"]),
        "waiting": told["waiting"],
    }


def _stats(told: dict[str, Any] | None) -> dict[str, Any]:
    return {name: int(value) for name, value in (told or {}).items() if name in ("allocated_bytes", "reserved_bytes")}
