from pathlib import Path

from common.errors import VramgateError
from common.report import PICKLE, Memory, Reason
from common.wire import ActiveLease
from frontend import report_tables
from frontend.report_tables import sparkline
from tests.unit.report_kit import MIB, made, moment
from tests.unit.test_cli import text_of


def test_a_sparkline_shows_the_lows_and_what_is_unknown() -> None:
    assert sparkline([0, 1, None, 8]) == "▁▂·█"
    assert sparkline([8, 8, 0, 8], columns=2) == "█▁"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline([1.0] * 300)) == 60


def test_a_snapshot_says_who_held_what_and_why(tmp_path: Path) -> None:
    told = made(
        reason=Reason.OOM,
        step="a step of 3 sequences [bold]: OutOfMemoryError",
        where=("runner.py:5 forward",),
        memory=Memory(900 * MIB, 980 * MIB, 990 * MIB, 60 * MIB, 33 * MIB, 0),
        leases=tuple(ActiveLease(f"lease-{number}", MIB, number == 0) for number in range(12)),
        leases_active=12,
        looks=tuple(moment(float(at_s), (60 - at_s) * MIB, 0, 7 * MIB) for at_s in range(60)),
    )
    (tmp_path / PICKLE).touch()
    shown = text_of(report_tables.snapshot(tmp_path, told))
    for text in (
        "a step of 3 sequences [bold]: OutOfMemoryError",
        "runner.py:5 forward",
        "weights",
        "largest free block",
        "33.0 MiB",
        "lease lease-0 (cancelling)",
        "and 2 more leases",
        "headroom, last 59 s: 1.0 MiB to 60.0 MiB, margin 90.0 MiB\n█",
        "probable cause: ",
        f"drop {tmp_path / PICKLE} onto https://docs.pytorch.org/memory_viz",
        f"python -m torch.cuda._memory_viz trace_plot {tmp_path / PICKLE}",
    ):
        assert text in shown, text


def test_the_list_shows_good_ones_and_says_of_bad_ones_why() -> None:
    shown = text_of(report_tables.listing([("good", made()), ("bad", VramgateError("a symbolic link"))]))
    assert "nothing is short" in shown
    assert "not read: a symbolic link" in shown


def test_a_comparison_shows_each_line_twice_and_what_came_or_went() -> None:
    first = made(pool_keys=("a", "b"), totals={"steps": 3}, standing={"weights": 100 * MIB, "old": MIB})
    second = made(
        at_s=61.0,
        headroom_bytes=590 * MIB,
        pool_keys=("b", "c"),
        totals={"steps": 10},
        standing={"weights": 130 * MIB},
        leases=(),
        leases_active=0,
        versions={"torch": "3"},
    )
    shown = " ".join(text_of(report_tables.difference(("one", "two"), first, second)).split())
    for text in (
        "60 s later",
        "headroom 600.0 MiB 590.0 MiB -10.0 MiB",
        "weights 100.0 MiB 130.0 MiB +30.0 MiB",
        "old 1.0 MiB unknown",
        "lease lease-1 20.0 MiB unknown",
        "leases: 1, then 0",
        "steps: +7",
        "no longer warm: a",
        "warm now: c",
        "torch: 2, then 3",
    ):
        assert text in shown, text
    assert "another process" in text_of(report_tables.difference(("one", "two"), first, made(boot_id="next")))
