"""Results on their way from an engine's thread to Triton: joined while they wait, sent by a thread of their own.

An engine puts results without ever blocking. What a slow connection has not taken yet is joined (text to text, ids to
ids), so memory is bounded by the answers themselves, and the number of messages falls exactly when sending is the
bottleneck.
"""

import logging
import queue
import threading
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from common.errors import InternalFault, RequestError
from common.wire import Statement

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Port(Protocol[Result]):
    """The way to one client. Calls come from one thread at a time."""

    def send(self, results: list[Result], statement: Statement | None, error: RequestError | None) -> None:
        """Sends the results; a statement or an error is the end of the answer."""

    def is_cancelled(self) -> bool:
        """Whether the client has left."""


class Channel(Generic[Result]):
    """An engine's outlet for one request. Nothing is sent before ``begin``."""

    def __init__(self, outbox: "Outbox[Result]", port: Port[Result], gather: bool) -> None:
        self._outbox = outbox
        self._port = port
        self._gather = gather
        self._lock = threading.Lock()
        self._pending: dict[Hashable, Result] = {}
        self._statement: Statement | None = None
        self._error: RequestError | None = None
        self._ended = False
        self._queued = True  # as if queued, until begin() really does
        self.work_id = ""

    def put(self, result: Result) -> None:
        """Joins the result to what waits; never blocks."""
        with self._lock:
            if self._ended:
                return
            key = self._outbox.key(result)
            waiting = self._pending.get(key)
            self._pending[key] = result if waiting is None else self._outbox.join(waiting, result)
            if not self._gather:
                self._enqueue()

    def finish(self, statement: Statement) -> None:
        """Ends the answer well."""
        self._end(statement, None)

    def fail(self, error: RequestError) -> None:
        """Ends the answer with an error."""
        self._end(None, error)

    def begin(self, work_id: str) -> None:
        """Lets the results flow, and the client's leaving cancel `work_id`."""
        self.work_id = work_id
        self._outbox.watch(self)
        with self._lock:
            self._queued = False
            if self._ended or (self._pending and not self._gather):
                self._enqueue()

    def client_left(self) -> bool:
        """Whether the work goes on for nobody."""
        with self._lock:
            ended = self._ended
        # Asked outside the lock: it may wait for a send, and the engine's puts must not wait with it.
        return not ended and self._port.is_cancelled()

    def flush(self) -> bool:
        """Sends what waits; True when that was the end. Called by the outbox's thread only."""
        with self._lock:
            results, self._pending = list(self._pending.values()), {}
            ended = self._ended
            self._queued = False
        try:
            # A reader of a stream gets the sequences one by one: joined token ids could not be told apart.
            for result in [] if self._gather else results[:-1]:
                self._port.send([result], None, None)
            last = results if self._gather else results[-1:]
            self._port.send(last, self._statement if ended else None, self._error if ended else None)
        except Exception:
            log.exception("an answer could not be sent; its work is cancelled")
            self._outbox.on_left(self.work_id)
            if ended:
                self._break_off()
        return ended

    def _break_off(self) -> None:
        """The end could not be sent: without one the client would wait for ever, so a short one is tried."""
        try:
            self._port.send([], None, InternalFault("the answer could not be sent; see the server's log"))
        except Exception:
            log.exception("nor could its end")

    def _end(self, statement: Statement | None, error: RequestError | None) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended, self._statement, self._error = True, statement, error
            self._enqueue()

    def _enqueue(self) -> None:
        if not self._queued:
            self._queued = True
            self._outbox.ready(self)


class Outbox(Generic[Result]):
    """All channels of one engine, the thread that sends and the thread that notices clients who left.

    `key` tells which waiting results belong together, `join` makes one of two; `on_left` is called with a work id whose
    client is gone.
    """

    def __init__(
        self,
        key: Callable[[Result], Hashable],
        join: Callable[[Result, Result], Result],
        on_left: Callable[[str], object],
        poll_s: float = 0.1,
    ) -> None:
        self.key = key
        self.join = join
        self.on_left = on_left
        self._poll_s = poll_s
        self._ready: queue.SimpleQueue[Channel[Result] | None] = queue.SimpleQueue()
        self._open: dict[int, Channel[Result]] = {}
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, name="outbox-send", daemon=True),
            threading.Thread(target=self._look_for_leavers, name="outbox-left", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def channel(self, port: Port[Result], *, gather: bool) -> Channel[Result]:
        """A channel to `port`; with `gather` everything goes in one message at the end."""
        return Channel(self, port, gather)

    def watch(self, channel: Channel[Result]) -> None:
        """Polls the channel for a client that left, until its end was sent."""
        self._open[id(channel)] = channel

    def ready(self, channel: Channel[Result]) -> None:
        """Queues the channel for sending."""
        self._ready.put(channel)

    def close(self) -> None:
        """Sends what is queued, then ends the threads."""
        self._closing.set()
        self._ready.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _send(self) -> None:
        while (channel := self._ready.get()) is not None:
            if channel.flush():
                self._open.pop(id(channel), None)

    def _look_for_leavers(self) -> None:
        told: set[int] = set()
        while not self._closing.wait(self._poll_s):
            channels = list(self._open.values())
            told &= {id(channel) for channel in channels}
            for channel in channels:
                if id(channel) not in told and channel.client_left():
                    told.add(id(channel))
                    self.on_left(channel.work_id)
