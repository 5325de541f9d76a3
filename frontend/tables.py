"""What the service's JSON looks like on a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from estimator.price import Line, Price
from frontend.offer import Offer, PlainOffer

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(bytes_: float) -> str:
    """A number of bytes for a reader: ``1.5 GiB``."""
    for unit in UNITS:
        if abs(bytes_) < 1024 or unit == UNITS[-1]:
            return f"{bytes_:.0f} {unit}" if unit == "B" else f"{bytes_:,.1f} {unit}"
        bytes_ /= 1024
    raise AssertionError("unreachable")


def quote(told: Mapping[str, Any]) -> RenderableType:
    """The answer of ``POST /v1/quote``: what each byte is for, and what would become of the request now."""
    lines = _price(Price(tuple(Line(**line) for line in told["lines"])))
    accounts = _table("account", "price", "available", "capacity")
    for row in told["accounts"]:
        sizes = (size(row[key]) for key in ("price_bytes", "available_bytes", "capacity_bytes"))
        accounts.add_row(row["account"], *sizes)
    return Group(lines, accounts, Text(_bound(told)), Text(_verdict(told), style="bold"))


def offer(told: Offer) -> RenderableType:
    """An engine that could be loaded: what it would stand on, its pages, and what a request would draw."""
    limits = told.limits
    source = "measured" if told.card.measured else "nominal"
    notes = [f"{told.card.name} ({source}): {told.equation}"]
    notes.append(f"{limits.pages:,} pages of {limits.page_tokens} tokens, {size(limits.pages * limits.page_bytes)}")
    parts: list[RenderableType] = [_price(told.standing), *map(Text, notes)]
    if told.request is not None:
        verdict = f"{told.at_once:,} such requests at once" if told.at_once else "such a request never fits"
        parts += [_price(told.request), Text(verdict, style="bold")]
    return Group(*parts)


def plain_offer(told: PlainOffer) -> RenderableType:
    """A call of a plain model: its peak, tensor by tensor, and the bound on what it reserves."""
    bound = "unknown" if told.bound_bytes is None else f"{told.bound_bytes:,} B ({size(told.bound_bytes)})"
    total = f"{told.price.total_bytes:,} B ({size(told.price.total_bytes)}) at the peak, over the weights"
    return Group(_price(told.price), Text(total, style="bold"), Text(f"bound on reserved: {bound}; {told.measured_on}"))


def ledger(told: Mapping[str, Any]) -> RenderableType:
    """The answer of ``GET /v1/ledger``: accounts, leases, engines."""
    accounts = _table("account", "capacity", "held", "unleased", "available", "overdraft", "drift")
    for row in told["accounts"]:
        keys = ("capacity_bytes", "held_bytes", "unleased_bytes", "available_bytes", "overdraft_bytes", "drift_bytes")
        accounts.add_row(row["name"], *("-" if row[key] is None else size(row[key]) for key in keys))
    engines = _table("engine", "device", "standing", "headroom", "breaker", "state")
    for row in told["engines"]:
        engines.add_row(row["model"], *_engine(row))
    leases = _table("lease", "model", "state", "bytes", "age", "left")
    for row in told["leases"]:
        ages = (f"{row['age_s']:.1f} s", f"{row['expected_left_s']:.1f} s")
        leases.add_row(row["id"], row["model"], row["state"], size(row["total_bytes"]), *ages)
    note = f"{len(told['leases'])} leases, {told['waiting']} waiting, admission {told['closed'] or 'open'}"
    return Group(accounts, engines, *([leases] if told["leases"] else []), Text(note, style="bold"))


def _price(price: Price) -> Table:
    lines = _table("account", "bytes", "", "why")
    for line in price.lines:
        lines.add_row(line.account, f"{line.bytes:,}", size(line.bytes), line.why)
    return lines


def _bound(told: Mapping[str, Any]) -> str:
    drift = told["drift"]
    if not drift["excesses"]:
        return "bound: the price itself; no work has used more than it was quoted"
    return (
        f"bound: {drift['excesses']} pieces of work used more than they were quoted, {drift['worst']:.3f} times at the"
        f" most; prices are widened to {drift['widened']:.3f} times"
    )


def _engine(row: Mapping[str, Any]) -> tuple[str, ...]:
    state = "ready" if row["ready"] else f"not ready: {row['reason']}"
    if "device" not in row:
        return "-", "-", "-", "-", state
    headroom = "unknown" if row["headroom_bytes"] is None else size(row["headroom_bytes"])
    return row["device"], size(row["standing_bytes"]), headroom, row["breaker"], state


def _verdict(told: Mapping[str, Any]) -> str:
    text = f"{size(told['total_bytes'])} in all; now: {told['verdict']}"
    if told["decided_by"] and told["verdict"] != "admit":
        text += f", because of {told['decided_by']}"
    if told["retry_after_s"]:
        text += f"; worth another try in {told['retry_after_s']:.1f} s"
    return text


def _table(*columns: str) -> Table:
    """Words to the left, numbers to the right."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    words = {"account", "why", "engine", "device", "breaker", "state", "lease", "model"}
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right", overflow="fold")
    return table
