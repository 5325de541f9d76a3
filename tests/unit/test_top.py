import copy
from typing import Any

import pytest
from rich.console import Console

from frontend import top_view
from tests.unit.test_cli import LEDGER

NOW_S = 1_800_000_000.0
BUSY: dict[str, Any] = copy.deepcopy(LEDGER) | {
    "overrun_bytes": 0,
    "engines": [
        {"model": "unet", "ready": False, "reason": "restarting, try 2 in 4 s: its process is gone, said the server"},
        {
            "model": "llama",
            "ready": True,
            "reason": "",
            "device": "cuda:GPU-3c8f5fd1-1a1c-6c1e-8d25-4dd4d60f1d7a",
            "breaker": "closed",
            "standing_bytes": 123 * 2**30,
            "headroom_bytes": None,
            "fragmentation_ratio": 0.876,
        },
    ],
}
STATEMENT = {
    "time_s": NOW_S - 30,
    "lease": "0123456789abcdef",
    "model": "llama",
    "outcome": "settled",
    "quoted_bytes": 3 * 2**20,
    "held_bytes": 2**20,
    "tenant": "anyone",
    "statement": {"quoted_bytes": 2**20, "held_bytes": 2**20, "rung": "host_canvas", "queue_s": 0.25, "run_s": 61.0},
}


def screen(ledger: dict[str, Any], statements: list[dict[str, Any]], width: int = 80) -> str:
    console = Console(width=width, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(top_view.render("http://127.0.0.1:8080", ledger, {"statements": statements}, NOW_S))
    return captured.get()


def test_a_busy_bank_fits_eighty_columns_and_nothing_is_folded() -> None:
    leases = [{**LEDGER["leases"][0], "id": f"{i:016x}", "engine_held_bytes": 2**20} for i in range(20)]  # type: ignore[index]
    text = screen(BUSY | {"leases": leases}, [STATEMENT] * 30)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    for fact in ("llama.pages", "1.0 GiB", "closed", "unknown", "88%", "running", "and 12 more", "host_canvas", "30s"):
        assert fact in text, fact
    assert "its process is gone" in text


def test_a_closed_admission_says_why() -> None:
    assert "admission is closed: the card is nearly full" in screen(BUSY | {"closed": "the card is nearly full"}, [])


def test_an_idle_bank_says_that_there_is_nothing() -> None:
    text = screen(BUSY | {"leases": []}, [])
    assert "no lease" in text
    assert "no statement yet" in text


def test_work_that_ended_without_a_statement_shows_what_was_quoted() -> None:
    text = screen(BUSY, [STATEMENT | {"statement": None, "outcome": "client_closed_request"}])
    assert "3.0 MiB" in text
    assert "client_close…" in text


@pytest.mark.parametrize(
    ("held", "capacity", "told"),
    [(0, 100, "0%"), (1, 1000, "█░"), (95, 100, "95%"), (120, 100, "120%"), (1, 0, "100%")],
)
def test_a_bar_is_never_longer_than_its_place(held: int, capacity: int, told: str) -> None:
    account = {**BUSY["accounts"][0], "held_bytes": held, "capacity_bytes": capacity}
    line = next(line for line in screen(BUSY | {"accounts": [account]}, []).splitlines() if "llama.pages" in line)
    assert line.count("█") + line.count("░") == top_view.BAR_COLUMNS
    assert told in line
