"""What ``vramgate top`` shows: the bank on one screen of 80 columns, from two answers of the service."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from frontend.tables import size

BAR_COLUMNS = 16
FULL = 0.9
"""Share of an account from which it is marked as nearly full."""
LEASES = 8
STATEMENTS = 8
ID_COLUMNS = 8
"""The end of an id: the beginning is that of the process."""
WORD_COLUMNS = 13


def render(base_url: str, ledger: Mapping[str, Any], statements: Mapping[str, Any], now_s: float) -> RenderableType:
    """The screen; `now_s` is Unix time, `ledger` and `statements` are the answers of their routes."""
    return Group(
        _head(base_url, ledger, now_s),
        _accounts(ledger["accounts"]),
        Text(),
        _engines(ledger["engines"]),
        Text(),
        _leases(ledger["leases"]),
        Text(),
        _statements(statements["statements"][:STATEMENTS], now_s),
    )


def _head(base_url: str, ledger: Mapping[str, Any], now_s: float) -> RenderableType:
    closed = ledger["closed"]
    line = Text.assemble(
        ("vramgate ", "bold"),
        (f"{base_url.partition('//')[2]}  ", "dim"),
        f"leases {len(ledger['leases'])}  waiting {ledger['waiting']}  ",
        (f"overrun {size(ledger['overrun_bytes'])}  " if ledger["overrun_bytes"] else "", "red"),
        (time.strftime("%H:%M:%S", time.localtime(now_s)), "dim"),
    )
    state = Text(f"admission is closed: {closed}", style="bold red") if closed else Text("admission is open", "green")
    return Group(line, state, Text())


def _accounts(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("ACCOUNT", "IN USE", "%", "HELD", "UNLEASED", "AVAILABLE", "CAPACITY")
    for row in rows:
        capacity_bytes, booked_bytes = row["capacity_bytes"], row["held_bytes"] + row["unleased_bytes"]
        share = booked_bytes / capacity_bytes if capacity_bytes else float(booked_bytes > 0)
        style = "red" if row["overdraft_bytes"] else "yellow" if share >= FULL else "green"
        keys = ("held_bytes", "unleased_bytes", "available_bytes", "capacity_bytes")
        sizes = (_short(row[key]) for key in keys)
        table.add_row(row["name"], Text(_bar(share), style), f"{share:.0%}", *sizes)
    return table


def _engines(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = _table("ENGINE", "STATE", "BREAKER", "STANDING", "HEADROOM", "FRAG", "DEVICE")
    for row in rows:
        state = Text("ready", "green") if row["ready"] else Text("not ready", "bold red")
        if "device" not in row:
            table.add_row(row["model"], state, *["-"] * 5)
            continue
        breaker = Text(row["breaker"], "green" if row["breaker"] == "closed" else "bold red")
        fragmentation = f"{row['fragmentation_ratio']:.0%}"
        sizes = (_short(row["standing_bytes"]), _short(row["headroom_bytes"]))
        table.add_row(row["model"], state, breaker, *sizes, fragmentation, row["device"])
    reasons = [Text(f"{row['model']}: {row['reason']}", "red") for row in rows if not row["ready"]]
    return Group(table, *reasons)


def _leases(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not rows:
        return Text("no lease", "dim")
    table = _table("LEASE", "MODEL", "LEASE STATE", "PRICE", "HELD", "AGE", "LEFT")
    oldest = sorted(rows, key=lambda row: -float(row["age_s"]))
    for row in oldest[:LEASES]:
        state = Text(row["state"], "yellow" if row["state"] == "abandoned" else "")
        sizes = (_short(row["total_bytes"]), _short(row.get("engine_held_bytes")))
        times = (_seconds(row["age_s"]), _seconds(row["expected_left_s"]))
        table.add_row(row["id"][-ID_COLUMNS:], row["model"], state, *sizes, *times)
    more = len(rows) - LEASES
    return Group(table, Text(f"and {more} more", "dim")) if more > 0 else table


def _statements(rows: Sequence[Mapping[str, Any]], now_s: float) -> RenderableType:
    if not rows:
        return Text("no statement yet", "dim")
    table = _table("STATEMENT", "MODEL", "OUTCOME", "QUOTED", "HELD", "RUNG", "QUEUE", "RUN", "AGO")
    for row in rows:
        told = row["statement"]
        outcome = Text(row["outcome"], "" if row["outcome"] == "settled" else "yellow")
        if told is None:
            figures = (_short(row["quoted_bytes"]), "-", "-", "-", "-")
        else:
            rung = "" if told["rung"] == "none" else told["rung"]
            times = (_seconds(told["queue_s"]), _seconds(told["run_s"]))
            figures = (_short(told["quoted_bytes"]), _short(told["held_bytes"]), rung, *times)
        table.add_row(row["lease"][-ID_COLUMNS:], row["model"], outcome, *figures, _seconds(now_s - row["time_s"]))
    return table


def _bar(share: float) -> str:
    full = min(BAR_COLUMNS, round(share * BAR_COLUMNS))
    return "█" * max(full, int(share > 0)) + "░" * (BAR_COLUMNS - max(full, int(share > 0)))


def _short(bytes_: int | None) -> str:
    return "unknown" if bytes_ is None else size(bytes_)


def _seconds(seconds: float) -> str:
    """``0.3s``, ``12s``, ``5m``, ``3h``."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 100:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 6000 else f"{seconds / 3600:.0f}h"


def _table(*columns: str) -> Table:
    """Words to the left and cut where they are too long, numbers to the right and never cut."""
    words = {"ACCOUNT", "IN USE", "ENGINE", "STATE", "BREAKER", "DEVICE", "LEASE", "MODEL", "LEASE STATE"}
    words |= {"STATEMENT", "OUTCOME", "RUNG"}
    table = Table(box=None, header_style="bold dim", pad_edge=False)
    for column in columns:
        side: Literal["left", "right"] = "left" if column in words else "right"
        most = WORD_COLUMNS if column in ("OUTCOME", "RUNG", "DEVICE") else None
        table.add_column(column, justify=side, no_wrap=True, overflow="ellipsis", max_width=most)
    return table
