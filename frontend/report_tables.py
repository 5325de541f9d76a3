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
        parts.append(Text(f"every allocation: drop {path / PICKLE} onto {VIEWER} in a browser; it stays there,"))
        parts.append(Text(f"or make output.html of it: python -m torch.cuda._memory_viz trace_plot {path / PICKLE}"))
    return Group(*parts)


def difference(names: tuple[str, str], first: Report, second: Report) -> RenderableType:
    """Two snapshots side by side: what each line held, and what came or went between them."""
    seconds = second.at_s - first.at_s
    head = f"{names[0]} ({first.model}) and {names[1]} ({second.model}), {abs(seconds):,.0f} s "
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("who", "first", "second", "change"):
        table.add_column(column, justify="left" if column == "who" else "right")
    before, after = _sizes(first), _sizes(second)
    for line in before | after:
        one, other = before.get(line), after.get(line)
        change = "" if one is None or other is None or one == other else _signed(other - one)
        table.add_row(Text(line), _size(one), _size(other), change)
    title = Text(head + ("later" if seconds >= 0 else "earlier"), style="bold")
    return Group(title, table, *(Text(line) for line in _came_and_went(first, second)))


def _sizes(told: Report) -> dict[str, int | None]:
    """Line -> bytes, in the order of a reader's interest."""
    reading, memory = told.reading, told.memory
    return {
        "headroom": told.headroom_bytes,
        "card: free": reading.free_bytes if reading else None,
        "card: used": reading.used_bytes if reading else None,
        "process": told.looks[-1].own_bytes if told.looks else None,
        **{f"  {line}": held_bytes for line, held_bytes in told.standing.items()},
        "allocator: in use": memory.allocated_bytes,
        "allocator: in its segments": memory.reserved_bytes,
        "allocator: free there": memory.cached_bytes,
        "allocator: largest free block": memory.largest_free_block_bytes,
        "allocator: peak": memory.peak_allocated_bytes,
        told.account: told.used_bytes,
        f"{told.account}, in all": told.capacity_bytes,
        f"{told.account}, without a lease": told.unleased_bytes,
        **{f"lease {lease.id}": lease.held_bytes for lease in told.leases[:LEASES]},
    }


def _came_and_went(first: Report, second: Report) -> list[str]:
    """What is no number of bytes."""
    lines = [f"leases: {first.leases_active}, then {second.leases_active}"]
    if first.boot_id != second.boot_id:
        lines.append("another process: what was counted since its start is not comparable")
    else:
        counted = {name: value - first.totals.get(name, 0) for name, value in second.totals.items()}
        lines += [f"{name}: {value:+,}" for name, value in counted.items() if value]
    lines += [f"no longer warm: {key}" for key in first.pool_keys if key not in second.pool_keys]
    lines += [f"warm now: {key}" for key in second.pool_keys if key not in first.pool_keys]
    for name in sorted(first.versions.keys() | second.versions.keys()):
        one, other = first.versions.get(name, "none"), second.versions.get(name, "none")
        lines += [f"{name}: {one}, then {other}"] if one != other else []
    return lines


def _signed(bytes_: int) -> str:
    return f"{'+' if bytes_ > 0 else '-'}{size(abs(bytes_))}"


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
