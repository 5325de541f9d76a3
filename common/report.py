"""The report of a snapshot: its form, where it lies, and how it is read back without trusting what lies there.

Reports are JSON and hold sizes, ids and names only: never a prompt, an image or a weight.
"""

import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from common.errors import VramgateError
from common.readings import Reading
from common.settings import Settings
from common.wire import ActiveLease, Breaker

REPORT = "report.json"
PICKLE = "memory.pickle"
"""For torch's own viewer, beside the report; nothing here ever loads it."""
MAX_REPORT_BYTES = 2**20
"""No larger report is written or read."""
MAX_NUMBER = 2**63
"""No number of a report is as large: sums and shares of what is stay floats."""
LAST_S = 253_402_300_799
"""The last second of the year 9999."""


class Reason(StrEnum):
    """What a snapshot was taken for."""

    OOM = "oom"
    BREAKER = "breaker"
    DEMAND = "demand"


NAME = re.compile(rf"(\d{{8}}T\d{{6}}\.\d{{3}}Z)-({'|'.join(Reason)})-\d+")


@dataclass(frozen=True)
class Moment:
    """One look of the watchdog, in bytes."""

    at_s: float
    """On the engine's monotonic clock."""
    headroom_bytes: int | None
    """None when unknown."""
    used_bytes: int | None
    """Of the whole card."""
    own_bytes: int
    """Held of it by the engine's process: the allocator's segments, or its resident set where there is no GPU."""
    fragmentation_ratio: float
    breaker: Breaker


@dataclass(frozen=True)
class Memory:
    """The caching allocator's state, in bytes; all 0 where there is none."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    cached_bytes: int = 0
    """Free inside the segments."""
    largest_free_block_bytes: int = 0
    free_segments_bytes: int = 0
    """What could be given back to the card."""


@dataclass(frozen=True)
class Report:
    """What one engine knew of its memory at one moment."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    at_s: Annotated[float, Field(ge=0, le=LAST_S, allow_inf_nan=False)]
    """Unix time."""
    reason: Reason
    model: str
    pid: int
    boot_id: str
    device: str
    step: str
    """What failed, or what the breaker saw; empty when nothing did."""
    where: tuple[str, ...]
    """``file:line function`` of the failed step, outermost first."""
    asked_bytes: int | None
    """What the allocator was asked for and could not give."""
    limit_bytes: int | None
    """What it may take of the card in all."""
    device_free_bytes: int | None
    """Free on the device when it was asked."""
    reading: Reading | None
    readings_state: str
    margin_bytes: int
    headroom_bytes: int | None
    memory: Memory
    statistics: Mapping[str, int]
    """Counters of torch's allocator."""
    summary: str
    """torch's own table of them."""
    standing: Mapping[str, int]
    account: str
    capacity_bytes: int
    used_bytes: int
    unleased_bytes: int
    leases: tuple[ActiveLease, ...]
    """The largest, at most as many as the writer allows."""
    leases_active: int
    """How many there were in all."""
    pool_keys: tuple[str, ...]
    totals: Mapping[str, int]
    looks: tuple[Moment, ...]
    """The last minute, oldest first."""
    versions: Mapping[str, str]

    def to_json(self) -> str:
        """Indented, for people; raises VramgateError when it would be too large to be read back."""
        text = json.dumps(asdict(self), indent=1)
        if len(text) > MAX_REPORT_BYTES:
            raise VramgateError(f"the report has {len(text):,} bytes, {MAX_REPORT_BYTES:,} are allowed")
        return text


def folder_of(settings: Settings) -> Path:
    """Where the snapshots lie."""
    return settings.state.dir.expanduser() / "snapshots"


def name_of(at_s: float, reason: Reason, pid: int) -> str:
    """A snapshot's folder: ``20260131T235959.999Z-oom-4711``; names sort by time."""
    whole_s, milliseconds = divmod(int(at_s * 1000), 1000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(whole_s))}.{milliseconds:03d}Z-{reason}-{pid}"


def names(folder: Path, reason: Reason | None = None) -> list[str]:
    """Every snapshot in `folder`, newest first; what is named otherwise is none of ours."""
    try:
        found = [(match, entry) for entry in os.listdir(folder) if (match := NAME.fullmatch(entry))]
    except OSError:
        return []
    return sorted((entry for match, entry in found if reason in (None, match[2])), reverse=True)


def readable(folder: Path) -> Iterator[tuple[str, Report | VramgateError]]:
    """Every snapshot's name and report, newest first; the error in place of one that cannot be trusted."""
    for name in names(folder):
        try:
            yield name, read(folder / name)
        except VramgateError as error:
            yield name, error


def surplus(folder: Path, kept: int, newest: str | None = None) -> list[str]:
    """Names of the snapshots beyond the newest `kept` of each reason.

    `newest` counts as the newest of its reason whatever its name says: clocks are set back.
    """
    beyond = []
    for reason in Reason:
        found = names(folder, reason)
        found.sort(key=lambda name: name != newest)
        beyond += found[kept:]
    return beyond


def read(snapshot: Path) -> Report:
    """The report in the folder `snapshot`.

    Raises VramgateError for links, other users' files, what is too large, and what is no report of this version.
    """
    file = snapshot / REPORT
    text = _read_text(snapshot)
    try:
        json.loads(text, parse_int=_require_small)
        return _form().validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise VramgateError(f"{file}: no report: {where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise VramgateError(f"{file}: no report: {error}") from None


def _read_text(snapshot: Path) -> bytes:
    """The file's bytes; the folder stays open meanwhile, so that nobody can put a link in its place."""
    file = snapshot / REPORT
    if snapshot.is_symlink():
        raise VramgateError(f"{snapshot}: a symbolic link")
    try:
        folder = os.open(snapshot, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _require_own(os.fstat(folder), snapshot)
            handle = os.open(REPORT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
        with open(handle, "rb") as opened:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_REPORT_BYTES:
                raise VramgateError(f"{file}: no file of at most {MAX_REPORT_BYTES:,} bytes")
            _require_own(status, file)
            return opened.read(MAX_REPORT_BYTES)
    except OSError as error:
        raise VramgateError(f"{file}: {error.strerror}") from None


def _require_own(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise VramgateError(f"{path}: belongs to user {status.st_uid}")


def _require_small(digits: str) -> int:
    """A number of the report; int() itself refuses thousands of digits, with ValueError too."""
    number = int(digits)
    if abs(number) >= MAX_NUMBER:
        raise ValueError("a number of it is too large")
    return number


@cache
def _form() -> TypeAdapter[Report]:
    return TypeAdapter(Report)
