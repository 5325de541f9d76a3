import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ByteSize

from common.errors import SettingsError
from common.sections import State
from common.wire import Statement
from estimator.price import Line, Price
from frontend.journal import DAY_S, Entry, Journal
from frontend.ledger import Ledger

NOW_S = float(int(time.time()))
KILLER = """
import os, random, signal, sqlite3, sys, time
from pathlib import Path
from common.sections import State
from frontend.journal import Entry, Journal

path, dice = Path(sys.argv[1]), random.Random(9)
now_s = time.time()

def write(told):
    journal = Journal(path, State(journal_size=200_000))
    start = max((int(kept.lease) for kept in journal.recent(1)), default=-1) + 1
    for number in range(start, 10**9):
        journal.append(Entry(now_s, str(number), "llama", "settled", number, number, "{}" * 50, "anyone"))
        if number % 20 == 0:
            journal.flush()
            os.write(told, b"%d\\n" % number)

for _ in range(int(sys.argv[2])):
    told, tell = os.pipe()
    writer = os.fork()
    if not writer:
        write(tell)
    os.close(tell)
    first = os.read(told, 32)
    time.sleep(dice.uniform(0, 0.02))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    flushed = int((first + os.read(told, 2**20)).split()[-1])
    os.close(told)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        columns = "lease, quoted_bytes, held_bytes, statement"
        rows = connection.execute(f"SELECT {columns} FROM statements ORDER BY id").fetchall()
    connection.close()
    numbers = [int(row[0]) for row in rows]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "a gap"
    assert numbers[-1] >= flushed, "what was flushed is gone"
    assert all(row[1:] == (int(row[0]), int(row[0]), "{}" * 50) for row in rows), "half an entry"
assert numbers[0] > 0, "nothing was ever forgotten"
"""


def entry(number: int, tenant: str = "anyone") -> Entry:
    return Entry(NOW_S + number, f"lease-{number}", "llama", "settled", number, number, None, tenant)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.sqlite3"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    made = Journal(path, State())
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
    assert Entry.of(lease, "settled", statement, "alice", 12.5) == Entry(
        12.5, lease.id, "llama", "settled", 65, 40, statement.to_json(), "alice"
    )
    assert Entry.of(lease, "timeout", None, "alice", 12.5) == Entry(
        12.5, lease.id, "llama", "timeout", 65, 0, None, "alice"
    )


def test_the_oldest_go_when_the_file_is_full(path: Path) -> None:
    journal = Journal(path, State(journal_size=ByteSize(100_000)))
    for number in range(2000):
        journal.append(entry(number))
        if number % 50 == 0:
            journal.flush()
    journal.flush()
    kept = [kept.lease for kept in journal.recent(5000)]
    assert kept == [f"lease-{number}" for number in range(1999, 1999 - len(kept), -1)]
    assert 100 < len(kept) < 1900
    journal.close()
    assert path.stat().st_size < 120_000


def test_the_old_go_also_from_an_idle_journal(path: Path) -> None:
    journal = Journal(path, State())
    journal.append(replace(entry(0), time_s=NOW_S - 2 * DAY_S))
    journal.append(entry(1))
    journal.close()
    journal = Journal(path, State(journal_days=1.0))
    journal.flush()
    assert journal.recent(10) == [entry(1)]
    journal.close()


def test_a_tenant_sees_its_own(journal: Journal) -> None:
    for number in range(6):
        journal.append(entry(number, "alice" if number % 2 else "bob"))
    journal.flush()
    assert journal.recent(2, "alice") == [entry(5, "alice"), entry(3, "alice")]
    assert journal.recent(10, "carol") == []


def test_a_journal_of_another_version_is_put_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE statements (id INTEGER PRIMARY KEY, state TEXT)")
    journal = Journal(path, State())
    journal.append(entry(1))
    journal.flush()
    assert journal.recent(5) == [entry(1)]
    journal.close()
    with closing(sqlite3.connect(path.with_name(path.name + ".old"))) as connection:
        assert connection.execute("SELECT count(state) FROM statements").fetchone() == (0,)
    assert "another version" in caplog.text


def test_a_second_start_goes_on_where_the_first_ended(path: Path) -> None:
    for number in range(3):
        journal = Journal(path, State())
        journal.append(entry(number))
        journal.close()
    journal = Journal(path, State())
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
    journal = Journal(path, State())
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
        Journal(path, State())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the way")
    with pytest.raises(SettingsError, match=r"state\.dir"):
        Journal(tmp_path / "state" / "journal.sqlite3", State())


def test_a_writer_that_is_killed_at_any_moment_leaves_a_whole_file(path: Path) -> None:
    command = [sys.executable, "-c", KILLER, str(path), "40"]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert killed.returncode == 0, killed.stderr
