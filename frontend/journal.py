"""The journal: finished leases in a SQLite file, the newest `rows` of them.

A thread of its own writes in batches, so that the event loop never waits for the disk. The file survives a kill at any
moment (write-ahead log, one transaction a batch); what was still queued then is lost.
"""

import logging
import os
import sqlite3
import threading
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path
from queue import Empty, Full, Queue

from common.errors import SettingsError
from common.wire import Statement
from frontend.ledger import Lease

QUEUE_ENTRIES = 10_000
BUSY_S = 5.0

log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS statements (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time_s REAL NOT NULL,
    lease TEXT NOT NULL,
    model TEXT NOT NULL,
    state TEXT NOT NULL,
    quoted_bytes INTEGER NOT NULL,
    held_bytes INTEGER NOT NULL,
    statement TEXT
) STRICT
"""
_COLUMNS = "time_s, lease, model, state, quoted_bytes, held_bytes, statement"
_INSERT = f"INSERT INTO statements ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_PRUNE = "DELETE FROM statements WHERE id <= (SELECT max(id) FROM statements) - ?"
_RECENT = f"SELECT {_COLUMNS} FROM statements ORDER BY id DESC LIMIT ?"


@dataclass(frozen=True)
class Entry:
    """One finished lease."""

    time_s: float
    """When it ended, Unix time."""
    lease: str
    model: str
    state: str
    """How it ended: ``settled``, ``abandoned`` (the client had left), ``void`` (the engine had died)."""
    quoted_bytes: int
    """Sum of the lease's lines, all accounts."""
    held_bytes: int
    """What the engine says it held; 0 where it said nothing."""
    statement: str | None
    """The engine's statement as JSON; None where there was none."""

    @classmethod
    def of(cls, lease: Lease, state: str, statement: Statement | None, time_s: float) -> "Entry":
        """The entry of a lease that ended at `time_s` (Unix time)."""
        return cls(
            time_s=time_s,
            lease=lease.id,
            model=lease.model,
            state=state,
            quoted_bytes=lease.price.total_bytes,
            held_bytes=statement.held_bytes if statement else 0,
            statement=statement.to_json() if statement else None,
        )


class Journal:
    """Append-only record of finished leases."""

    def __init__(self, path: Path, rows: int) -> None:
        """Opens or creates the file (mode 0600) and its folder (0700).

        `rows`: entries kept, the oldest go first. Raises SettingsError where the place cannot be used.
        """
        self.dropped = 0
        """Entries that were not written: the queue was full, or the disk."""
        self._path = path.expanduser()
        self._rows = rows
        self._queue: Queue[Entry | threading.Event | None] = Queue(QUEUE_ENTRIES)
        self._connection = _open(self._path)
        self._writer = threading.Thread(target=self._write, name="journal", daemon=True)
        self._writer.start()

    def append(self, entry: Entry) -> None:
        """Queues the entry; returns at once, and counts in `dropped` what the queue cannot take."""
        try:
            self._queue.put_nowait(entry)
        except Full:
            self.dropped += 1

    def recent(self, limit: int) -> list[Entry]:
        """The newest entries that are written, newest first; reads the disk, so call it in a thread."""
        with closing(sqlite3.connect(self._path, timeout=BUSY_S)) as connection:
            return [Entry(*row) for row in connection.execute(_RECENT, (limit,))]

    def flush(self) -> None:
        """Returns once everything appended before is written."""
        done = threading.Event()
        self._queue.put(done)
        done.wait()

    def close(self) -> None:
        """Writes what is queued and closes the file; a second call does nothing."""
        if self._writer.is_alive():
            self._queue.put(None)
            self._writer.join()

    def _write(self) -> None:
        with closing(self._connection):
            closing_time = False
            while not closing_time:
                batch = self._next_batch()
                closing_time = None in batch
                self._store([item for item in batch if isinstance(item, Entry)])
                for item in batch:
                    if isinstance(item, threading.Event):
                        item.set()

    def _next_batch(self) -> list[Entry | threading.Event | None]:
        batch = [self._queue.get()]
        try:
            while len(batch) < QUEUE_ENTRIES:
                batch.append(self._queue.get_nowait())
        except Empty:
            pass
        return batch

    def _store(self, entries: list[Entry]) -> None:
        if not entries:
            return
        try:
            with self._connection:
                self._connection.executemany(_INSERT, [astuple(entry) for entry in entries])
                self._connection.execute(_PRUNE, (self._rows,))
        except sqlite3.Error as error:
            self.dropped += len(entries)
            log.warning("the journal %s lost %d entries: %s", self._path, len(entries), error)


def _open(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise _unusable(path, error) from None
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(_SCHEMA)
    except sqlite3.Error as error:
        connection.close()
        raise _unusable(path, error) from None
    return connection


def _unusable(path: Path, error: Exception) -> SettingsError:
    return SettingsError(f"state.dir: cannot keep the journal in {path}: {error}; move it away or name another folder")
