"""The plots of a campaign, each a PNG."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtests.campaigns.campaign import Campaign
from loadtests.campaigns.figures import SHARES, share, windows
from loadtests.campaigns.watch import Sample
from loadtests.reports.raw import Run
from loadtests.users.outcome import End, Outcome

mpl.use("Agg")

COLOURS = {
    End.GOOD: "#2a7f4f",
    End.LATE: "#e0b23c",
    End.EXPIRED: "#c98f4a",
    End.REFUSED: "#8fb3d1",
    End.OOM: "#c0392b",
    End.ERROR: "#7d4f9e",
    End.HUNG: "#333333",
}
LINES = ("#2a7f4f", "#c0392b", "#2f6db3", "#d98a2b", "#7d4f9e")
WIDTH_IN = 9.0
MIB = 2**20
BIN_COUNT = 60


class Drawing:
    """A figure that becomes a PNG when its block ends."""

    png = b""


@contextmanager
def drawing(rows: int, columns: int, height_in: float, into: Drawing) -> Iterator[list[Axes]]:
    """Axes of one drawing, row by row."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.25)
    yield list(axes.flat)
    stream = BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    into.png = stream.getvalue()


def shares(runs: Sequence[Run], campaign: Campaign) -> bytes:
    """What became of the requests of each contestant in each phase."""
    bars = [(run, phase.name) for phase in campaign.phases for run in runs]
    drawn = Drawing()
    with drawing(1, 1, 1.3 + 0.38 * len(bars), drawn) as (axes,):
        for place, (run, phase) in enumerate(bars):
            outcomes = [outcome for outcome in run.outcomes if outcome.kind.paying and outcome.phase == phase]
            left = 0.0
            for end in SHARES:
                width = 100 * share(outcomes, end)
                axes.barh(place, width, left=left, color=COLOURS[end], height=0.75, label=end if not place else None)
                if width >= 4:
                    axes.text(left + width / 2, place, f"{width:.0f}", ha="center", va="center", color="white")
                left += width
        axes.set_yticks(range(len(bars)), [f"{run.name}, {phase}" for run, phase in bars])
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of the requests for work")
        axes.grid(visible=False)
        axes.figure.legend(loc="outside upper center", ncols=len(SHARES), frameon=False)
    return drawn.png


def waits(runs: Sequence[Run], campaign: Campaign) -> bytes:
    """How long until the first token, and until the whole good answer: cumulative, a curve for each contestant."""
    drawn = Drawing()
    with drawing(len(campaign.phases), 2, 2.6 * len(campaign.phases) + 0.5, drawn) as all_axes:
        for row, phase in enumerate(campaign.phases):
            first, whole = all_axes[2 * row : 2 * row + 2]
            for run, colour in zip(runs, LINES, strict=False):
                paying = [o for o in run.outcomes if o.kind.paying and o.phase == phase.name]
                _cumulative(first, [o.ttft_s for o in paying if o.ttft_s is not None], colour, run.name)
                _cumulative(whole, [o.latency_s for o in paying if o.end is End.GOOD], colour, run.name)
            first.set_xlabel(f"s to the first token, {phase.name}")
            whole.set_xlabel(f"s to the whole good answer, {phase.name}")
            first.set_ylabel("% of them")
            if first.lines:
                first.legend(frameon=False, fontsize=8)
    return drawn.png


def ends_over_time(run: Run, campaign: Campaign) -> bytes:
    """Requests for work by what became of them, when they came."""
    total_s = max(to_s for _, to_s in windows(campaign).values())
    width_s = total_s / BIN_COUNT
    drawn = Drawing()
    with drawing(1, 1, 2.8, drawn) as (axes,):
        bottom = [0.0] * BIN_COUNT
        for end in SHARES:
            counts = [0.0] * BIN_COUNT
            for outcome in run.outcomes:
                if outcome.kind.paying and outcome.end is end:
                    place = int((outcome.due_unix_s - run.begins_unix_s) / width_s)
                    counts[min(place, BIN_COUNT - 1)] += 1 / width_s
            starts_s = [place * width_s for place in range(BIN_COUNT)]
            axes.bar(starts_s, counts, width_s, bottom, align="edge", color=COLOURS[end], label=end)
            bottom = [low + high for low, high in zip(bottom, counts, strict=True)]
        axes.set_xlabel("s")
        axes.set_ylabel("requests per s, by arrival")
        axes.figure.legend(loc="outside upper center", ncols=len(SHARES), frameon=False)
    return drawn.png


def memory(run: Run) -> bytes:
    """Ledger, engines or allocator, and driver, over the same time."""
    drawn = Drawing()
    with drawing(1, 1, 3.4, drawn) as (axes,):
        for label, colour, read in _memory_lines(run):
            points = [
                (s.unix_s - run.begins_unix_s, value / MIB) for s in run.samples if (value := read(s)) is not None
            ]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, label=label, linewidth=1.2)
        axes.set_xlabel("s")
        axes.set_ylabel("MiB")
        axes.set_ylim(bottom=0)
        if axes.lines:
            axes.figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return drawn.png


def prices(run: Run) -> bytes | None:
    """Quoted against held, and against the allocator's peak while it ran; None where nothing was quoted."""
    priced = [outcome for outcome in run.outcomes if outcome.vram.get("quoted_bytes")]
    if not priced:
        return None
    drawn = Drawing()
    with drawing(1, 1, 4.2, drawn) as (axes,):
        _scatter(axes, priced, "peak_bytes", "#c0392b", "x", "allocator peak over standing, of all that ran then")
        _scatter(axes, priced, "held_bytes", "#2a7f4f", "o", "held by the engine")
        quoted = sorted(outcome.vram["quoted_bytes"] / MIB for outcome in priced)
        ends = (quoted[0], quoted[-1])
        axes.plot(ends, ends, color="#333333", linewidth=0.8, label="as quoted")
        axes.margins(0.1)
        axes.set(xscale="log", yscale="log", xlabel="quoted MiB", ylabel="MiB")
        axes.legend(frameon=False, fontsize=8)
    return drawn.png


def resident(run: Run) -> bytes:
    """Resident memory of every process."""
    roles = sorted({role for sample in run.samples for role in sample.resident_bytes})
    drawn = Drawing()
    with drawing(1, 1, 2.8, drawn) as (axes,):
        for role in roles:
            points = [
                (s.unix_s - run.begins_unix_s, s.resident_bytes[role] / MIB)
                for s in run.samples
                if role in s.resident_bytes
            ]
            axes.plot(*zip(*points, strict=True), label=role, linewidth=1.2)
        axes.set(xlabel="s", ylabel="resident MiB", ylim=(0, None))
        if axes.lines:
            axes.figure.legend(loc="outside upper center", ncols=5, frameon=False, fontsize=8)
    return drawn.png


def _cumulative(axes: Axes, values: list[float], colour: str, label: str) -> None:
    if values:
        ranked = sorted(values)
        heights = [100 * (place + 1) / len(ranked) for place in range(len(ranked))]
        axes.step(ranked, heights, where="post", color=colour, label=f"{label} ({len(ranked)})")
        axes.set_ylim(0, 101)


def _memory_lines(run: Run) -> list[tuple[str, str, Callable[[Sample], float | None]]]:
    """Label, colour, and what is read of a sample. Without a card the engines' resident memory plays the driver."""

    def driver(sample: Sample) -> float | None:
        if sample.driver_used_bytes is not None:
            return sample.driver_used_bytes
        of_models = [size for role, size in sample.resident_bytes.items() if role.endswith("engine")]
        return sum(of_models or sample.resident_bytes.values()) or None

    on_card = any(sample.driver_used_bytes is not None for sample in run.samples)
    driver_line = ("driver" if on_card else "resident memory, interpreters included", "#c0392b", driver)
    if not run.ours:
        return [
            ("allocator, allocated", "#2a7f4f", lambda sample: sample.allocated_bytes),
            ("allocator, reserved", "#2f6db3", lambda sample: sample.reserved_bytes),
            driver_line,
        ]
    return [
        ("standing + capacity", "#999999", lambda s: _booked(s, "capacity_bytes")),
        ("ledger: standing + held", "#2f6db3", lambda s: _booked(s, "held_bytes")),
        ("engines: standing + used", "#2a7f4f", lambda s: _booked(s, "engine_used_bytes")),
        driver_line,
    ]


def _booked(sample: Sample, name: str) -> float | None:
    """Standing bytes without the pools, which are what the accounts lend, and so much of the accounts."""
    if not sample.accounts:
        return None
    card = [account for account_name, account in sample.accounts.items() if account_name != "host"]
    pools_bytes = sum(account["capacity_bytes"] for account in card)
    return sample.standing_bytes - pools_bytes + sum(account.get(name, 0) for account in card)


def _scatter(axes: Axes, priced: Sequence[Outcome], name: str, colour: str, marker: str, label: str) -> None:
    points = [(o.vram["quoted_bytes"] / MIB, o.vram[name] / MIB) for o in priced if o.vram.get(name)]
    if points:
        quoted, found = zip(*points, strict=True)
        axes.scatter(quoted, found, s=14, c=colour, marker=marker, alpha=0.35, label=label)
