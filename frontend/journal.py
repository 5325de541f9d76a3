"""The journal: finished leases in a SQLite file, bounded in size and age.

A thread of its own writes in batches, so that the event loop never waits for the disk. The file survives a kill at any
moment (write-ahead log, one transaction a batch); what was still queued then is lost.
"""

import logging
import os
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from queue import Empty, Full, Queue

from common.errors import SettingsError
from common.sections import State
from common.wire import Statement
from frontend.ledger import Lease

QUEUE_ENTRIES = 10_000
BATCH_S = 0.1
BUSY_S = 5.0
WAL_BYTES = 4 * 2**20
"""What is left of the write-ahead log after a burst."""

log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS statements (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time_s REAL NOT NULL,
    lease TEXT NOT NULL,
    model TEXT NOT NULL,
    outcome TEXT NOT NULL,
    quoted_bytes INTEGER NOT NULL CHECK (quoted_bytes >= 0),
    held_bytes INTEGER NOT NULL CHECK (held_bytes >= 0),
    statement TEXT,
    tenant TEXT NOT NULL
) STRICT
"""
_INDEX = "CREATE INDEX IF NOT EXISTS statements_by_time ON statements (time_s)"
_COLUMNS = "time_s, lease, model, outcome, quoted_bytes, held_bytes, statement, tenant"
_ROW = attrgetter(*_COLUMNS.split(", "))
_INSERT = f"INSERT INTO statements ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_EXPIRE = "DELETE FROM statements WHERE time_s < ?"
_SHRINK = "DELETE FROM statements WHERE id <= (SELECT min(id) + (max(id) - min(id)) / 10 FROM statements)"
_RECENT = f"SELECT {_COLUMNS} FROM statements WHERE ?1 IS NULL OR tenant = ?1 ORDER BY id DESC LIMIT ?2"
VERSION = 2
"""Of the table's form, in the file's ``user_version``; a file of another form is put aside."""
DAY_S = 86_400.0


@dataclass(frozen=True)
class Entry:
    """One finished lease."""

    time_s: float
    """When it ended, Unix time."""
    lease: str
    model: str
    outcome: str
    """How it ended: ``settled``, ``void`` (its engine had died), else the code of the error that the client was told,
    ``client_closed_request`` where the client had left.
    """
    quoted_bytes: int
    """Sum of the lease's lines, all accounts."""
    held_bytes: int
    """What the engine says it held; 0 where it said nothing."""
    statement: str | None
    """The engine's statement as JSON; None where there was none."""
    tenant: str
    """Whose it was."""

    @classmethod
    def of(cls, lease: Lease, outcome: str, statement: Statement | None, tenant: str, time_s: float) -> "Entry":
        """The entry of a lease that ended at `time_s` (Unix time)."""
        return cls(
            time_s=time_s,
            lease=lease.id,
            model=lease.model,
            outcome=outcome,
            quoted_bytes=lease.price.total_bytes,
            held_bytes=statement.held_bytes if statement else 0,
            statement=statement.to_json() if statement else None,
            tenant=tenant,
        )


class Journal:
    """Append-only record of finished leases."""

    def __init__(self, path: Path, limits: State) -> None:
        """Opens or creates the file (mode 0600) and its folder (0700); a file of another version is put aside.

        Of `limits` the two about the journal count. Raises SettingsError where the place cannot be used.
        """
        self.dropped = 0
        """Entries that were not written: the queue was full, or the disk."""
        self._path = path.expanduser()
        self._most_bytes = int(limits.journal_size)
        self._longest_s = limits.journal_days * DAY_S
        self._queue: Queue[Entry | threading.Event | None] = Queue(QUEUE_ENTRIES)
        self._hurry = threading.Event()
        self._connection = _open(self._path)
        self._writer = threading.Thread(target=self._write, name="journal", daemon=True)
        self._writer.start()

    def append(self, entry: Entry) -> None:
        """Queues the entry; returns at once, and counts in `dropped` what the queue cannot take."""
        try:
            self._queue.put_nowait(entry)
        except Full:
            self.dropped += 1

    def recent(self, limit: int, tenant: str | None = None) -> list[Entry]:
        """The newest entries that are written, newest first, of one tenant or of all.

        Reads the disk, so call it in a thread.
        """
        with closing(sqlite3.connect(self._path, timeout=BUSY_S)) as connection:
            return [Entry(*row) for row in connection.execute(_RECENT, (tenant, limit))]

    def flush(self) -> None:
        """Returns once everything appended before is written."""
        done = threading.Event()
        self._queue.put(done)
        self._hurry.set()
        done.wait()

    def close(self) -> None:
        """Writes what is queued and closes the file; a second call does nothing."""
        if self._writer.is_alive():
            self._queue.put(None)
            self._hurry.set()
            self._writer.join()

    def _write(self) -> None:
        with closing(self._connection):
            self._store([])
            closing_time = False
            while not closing_time:
                batch = self._next_batch()
                closing_time = None in batch
                if entries := [item for item in batch if isinstance(item, Entry)]:
                    self._store(entries)
                for item in batch:
                    if isinstance(item, threading.Event):
                        item.set()

    def _next_batch(self) -> list[Entry | threading.Event | None]:
        """What has come in the meantime; nobody is woken for a single entry."""
        self._hurry.wait(BATCH_S)
        self._hurry.clear()
        batch: list[Entry | threading.Event | None] = []
        try:
            while len(batch) < QUEUE_ENTRIES:
                batch.append(self._queue.get_nowait())
        except Empty:
            pass
        return batch

    def _store(self, entries: list[Entry]) -> None:
        """Writes the entries and forgets the oldest, in one transaction."""
        try:
            with self._connection:
                self._connection.executemany(_INSERT, map(_ROW, entries))
                self._connection.execute(_EXPIRE, (time.time() - self._longest_s,))
                while self._used_bytes() > self._most_bytes and self._connection.execute(_SHRINK).rowcount > 0:
                    pass
        except sqlite3.Error as error:
            self.dropped += len(entries)
            log.warning("the journal %s lost %d entries: %s", self._path, len(entries), error)

    def _used_bytes(self) -> int:
        """Of the file, without pages that are free for what comes next."""
        pages, free, size_bytes = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size_bytes)


def _open(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = _connect(path)
        if connection is None:
            _put_aside(path)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            connection = _connect(path)
    except (OSError, sqlite3.Error) as error:
        raise _unusable(path, error) from None
    assert connection is not None
    return connection


def _connect(path: Path) -> sqlite3.Connection | None:
    """The file with its table; None where that has the form of another version."""
    connection = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
    try:
        is_new = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not is_new and connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            connection.close()
            return None
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        connection.executescript(f"BEGIN; {_SCHEMA}; {_INDEX}; PRAGMA user_version = {VERSION}; COMMIT")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _put_aside(path: Path) -> None:
    """What was put aside before goes; the write-ahead log belongs to the file and moves with it."""
    log.warning("the journal %s is of another version: it is kept as %s.old, and a new one begins", path, path.name)
    for suffix in ("", "-wal", "-shm"):
        old, kept = path.with_name(path.name + suffix), path.with_name(f"{path.name}.old{suffix}")
        kept.unlink(missing_ok=True)
        if old.exists():
            old.replace(kept)


def _unusable(path: Path, error: Exception) -> SettingsError:
    return SettingsError(f"state.dir: cannot keep the journal in {path}: {error}; move it away or name another folder")
