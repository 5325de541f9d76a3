"""What a snapshot looks like on a terminal."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from common.errors import VramgateError
from common.report import PICKLE, Report
from frontend.diagnosis import probable_cause
from frontend.tables import size

BARS = "▁▂▃▄▅▆▇█"
UNKNOWN = "·"
COLUMNS = 60
LEASES = 10
FRAMES = 5
VIEWER = "https://docs.pytorch.org/memory_viz"


def listing(found: Iterable[tuple[str, Report | VramgateError]]) -> RenderableType:
    """Every snapshot in a line; one that cannot be read says why."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("snapshot", "model", "headroom", "probable cause"):
        table.add_column(column, justify="right" if column == "headroom" else "left", overflow="fold")
    for name, told in found:
        if isinstance(told, Report):
            table.add_row(Text(name), Text(told.model), _size(told.headroom_bytes), probable_cause(told).kind)
        else:
            table.add_row(Text(name), "-", "-", Text(f"not read: {told}"))
    return table


def snapshot(path: Path, told: Report) -> RenderableType:
    """One snapshot: why, who held what, the last minute, the probable cause."""
    cause = probable_cause(told)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(told.at_s))
    head = f"{path.name}: {told.model} on {told.device}, process {told.pid}, {when}"
    parts: list[RenderableType] = [Text(head, style="bold")]
    if told.step:
        parts.append(Text(f"what failed: {told.step}"))
    parts += [Text(f"  {place}", style="dim") for place in told.where[-FRAMES:]]
    parts += [_holders(told), _minute(told)]
    parts.append(Text(f"probable cause: {cause.kind}: {cause.says}", style="bold"))
    if (path / PICKLE).is_file():
        parts.append(Text(f"every allocation: drop {path / PICKLE} onto {VIEWER}"))
    return Group(*parts)


def sparkline(values: Sequence[float | None], columns: int = COLUMNS) -> str:
    """The values in at most `columns` bars, each the least of its part; from 0 to the largest, None is a dot."""
    width = min(columns, len(values))
    parts = [values[i * len(values) // width : (i + 1) * len(values) // width] for i in range(width)]
    lows = [min((value for value in part if value is not None), default=None) for part in parts]
    top = max((low for low in lows if low is not None), default=0) or 1
    return "".join(UNKNOWN if low is None else BARS[min(7, max(0, int(low / top * 8)))] for low in lows)


def _holders(told: Report) -> RenderableType:
    """Who held what: the card, the process, its standing lines, its account, its leases."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("who")
    table.add_column("held", justify="right")
    reading, memory = told.reading, told.memory
    if reading is not None:
        table.add_row("card, in all", size(reading.total_bytes))
        table.add_row("  free", size(reading.free_bytes))
        table.add_row("  held by the driver", size(reading.reserved_bytes))
    if told.looks:
        table.add_row(f"{told.model}'s process", size(told.looks[-1].own_bytes))
    for line, held_bytes in told.standing.items():
        table.add_row(Text(f"  {line}"), size(held_bytes))
    if memory.reserved_bytes:
        table.add_row("  allocator: in use", size(memory.allocated_bytes))
        table.add_row("  allocator: free in its segments", size(memory.cached_bytes))
        table.add_row("  allocator: largest free block", size(memory.largest_free_block_bytes))
    table.add_row(f"{told.account}, of {size(told.capacity_bytes)}", size(told.used_bytes))
    for lease in told.leases[:LEASES]:
        table.add_row(Text(f"  lease {lease.id}{' (cancelling)' if lease.cancelling else ''}"), size(lease.held_bytes))
    if told.leases_active > LEASES:
        table.add_row(f"  and {told.leases_active - LEASES} more leases", "")
    table.add_row("  without a lease", size(told.unleased_bytes))
    return table


def _minute(told: Report) -> RenderableType:
    known = [look.headroom_bytes for look in told.looks if look.headroom_bytes is not None]
    if not known:
        return Text("headroom: unknown")
    seconds = told.looks[-1].at_s - told.looks[0].at_s
    bars = sparkline([look.headroom_bytes for look in told.looks])
    words = f"{size(min(known))} to {size(max(known))}, margin {size(told.margin_bytes)}"
    return Text(f"headroom, last {seconds:.0f} s: {words}\n{bars}")


def _size(bytes_: int | None) -> str:
    return "unknown" if bytes_ is None else size(bytes_)
