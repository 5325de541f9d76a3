import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from common.errors import SettingsError
from common.wire import Statement
from estimator.price import Line, Price
from frontend.journal import Entry, Journal
from frontend.ledger import Ledger

WRITER = """
import sys
from pathlib import Path
from frontend.journal import Entry, Journal

journal = Journal(Path(sys.argv[1]), 500)
for number in range(10**9):
    journal.append(Entry(float(number), f"lease-{number}", "llama", "settled", number, number, "{}" * 50))
    if number % 100 == 0:
        journal.flush()
        print(number, flush=True)
"""


def entry(number: int) -> Entry:
    return Entry(float(number), f"lease-{number}", "llama", "settled", number, number, None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.sqlite3"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    made = Journal(path, 10)
    yield made
    made.close()


def test_entries_come_back_newest_first(journal: Journal) -> None:
    for number in range(5):
        journal.append(entry(number))
    journal.flush()
    assert journal.recent(3) == [entry(4), entry(3), entry(2)]


def test_an_entry_has_the_numbers_of_its_lease_and_statement() -> None:
    ledger = Ledger(time.monotonic)
    ledger.set_capacity("llama.pages", 100)
    ledger.set_capacity("host", 100)
    price = Price((Line("llama.pages", 60, "pages"), Line("host", 5, "image")))
    lease = ledger.reserve("llama", price, "boot", 1)
    statement = Statement(lease.id, "llama", 60, 40, 7, output_tokens=3)
    assert Entry.of(lease, "settled", statement, 12.5) == Entry(
        12.5, lease.id, "llama", "settled", 65, 40, statement.to_json()
    )
    assert Entry.of(lease, "abandoned", None, 12.5) == Entry(12.5, lease.id, "llama", "abandoned", 65, 0, None)


def test_only_the_newest_rows_are_kept(journal: Journal, path: Path) -> None:
    for number in range(35):
        journal.append(entry(number))
        if number % 7 == 0:
            journal.flush()
    journal.flush()
    assert [kept.lease for kept in journal.recent(100)] == [f"lease-{number}" for number in range(34, 24, -1)]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM statements").fetchone() == (10,)


def test_a_second_start_goes_on_where_the_first_ended(path: Path) -> None:
    for number in range(3):
        journal = Journal(path, 10)
        journal.append(entry(number))
        journal.close()
    journal = Journal(path, 10)
    assert journal.recent(10) == [entry(2), entry(1), entry(0)]
    journal.close()
    journal.close()


def test_nobody_else_can_read_it(journal: Journal, path: Path) -> None:
    journal.append(entry(0))
    journal.flush()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    files = sorted(path.parent.iterdir())
    assert len(files) == 3, "the database, its log and the log's index"
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_appending_does_not_wait_for_a_locked_file(journal: Journal, path: Path) -> None:
    def append_all() -> None:
        for number in range(100):
            journal.append(entry(number))

    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        appended = threading.Thread(target=append_all)
        appended.start()
        appended.join(timeout=2)
        assert not appended.is_alive()
        assert journal.recent(1) == []
        connection.rollback()
    journal.flush()
    assert journal.recent(1) == [entry(99)]
    assert journal.dropped == 0


def test_what_cannot_be_written_is_counted_and_the_next_is_written(
    journal: Journal, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE statements RENAME TO elsewhere")
        journal.append(entry(0))
        journal.flush()
        connection.execute("ALTER TABLE elsewhere RENAME TO statements")
    journal.append(entry(1))
    journal.flush()
    assert (journal.dropped, journal.recent(5)) == (1, [entry(1)])
    assert "lost 1 entries" in caplog.text


def test_a_full_queue_drops_and_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.journal.QUEUE_ENTRIES", 5)
    journal = Journal(path, 1000)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for number in range(50):
            journal.append(entry(number))
        assert journal.dropped >= 50 - 2 * 5, "one batch is being written, one is queued"
        connection.rollback()
    journal.close()
    with closing(sqlite3.connect(path)) as connection:
        (kept,) = connection.execute("SELECT count(*) FROM statements").fetchone()
    assert kept + journal.dropped == 50


def test_a_file_that_is_no_journal_is_named(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(SettingsError, match=r"state\.dir: cannot keep the journal in .*journal\.sqlite3"):
        Journal(path, 10)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the way")
    with pytest.raises(SettingsError, match=r"state\.dir"):
        Journal(tmp_path / "state" / "journal.sqlite3", 10)


def test_a_killed_writer_leaves_a_whole_file(path: Path) -> None:
    flushed = -1
    for round_ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(3 + 4 * round_):
                flushed = int(writer.stdout.readline())
            os.kill(writer.pid, signal.SIGKILL)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        journal = Journal(path, 500)
        numbers = [int(kept.time_s) for kept in journal.recent(1000)]
        assert all(kept == entry_of(int(kept.time_s)) for kept in journal.recent(1000))
        assert numbers[0] >= flushed, "what was flushed is there"
        newest_run = numbers[: numbers[0] + 1]
        assert newest_run == list(range(numbers[0], numbers[0] - len(newest_run), -1)), "without a gap"
        assert len(numbers) <= 500
        journal.close()


def entry_of(number: int) -> Entry:
    """What the writer writes."""
    return Entry(float(number), f"lease-{number}", "llama", "settled", number, number, "{}" * 50)
