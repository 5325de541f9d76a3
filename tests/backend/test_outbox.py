import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from backend.outbox import Outbox
from common.errors import Cancelled, InternalFault, RequestError
from common.wire import Statement

STATEMENT = Statement("a", "llama", 0, 0, 0)
WAIT_S = 5.0
Sent = tuple[list[tuple[int, str]], Statement | None, RequestError | None]


@dataclass
class FakePort:
    """Remembers what was sent; `gate` holds the sending thread back."""

    sent: "queue.Queue[Sent]" = field(default_factory=queue.Queue)
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    left: bool = False
    fault: Exception | None = None
    refuses_results: bool = False
    asked: threading.Event = field(default_factory=threading.Event)
    may_tell: threading.Event | None = None
    """Until it is set, nobody learns whether the client has left."""

    def send(self, results: list[tuple[int, str]], statement: Statement | None, error: RequestError | None) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        if self.fault:
            raise self.fault
        if results and self.refuses_results:
            raise MemoryError
        self.sent.put((results, statement, error))

    def is_cancelled(self) -> bool:
        self.asked.set()
        if self.may_tell:
            assert self.may_tell.wait(WAIT_S)
        return self.left


@pytest.fixture
def left() -> "queue.Queue[str]":
    return queue.Queue()


@pytest.fixture
def outbox(left: "queue.Queue[str]") -> Iterator[Outbox[tuple[int, str]]]:
    box: Outbox[tuple[int, str]] = Outbox(
        key=lambda chunk: chunk[0], join=lambda a, b: (a[0], a[1] + b[1]), on_left=left.put, poll_s=0.01
    )
    yield box
    box.close()


def open_gate(port: FakePort) -> FakePort:
    port.gate.set()
    return port


def test_what_a_slow_client_has_not_taken_is_joined_not_queued(outbox: Outbox[tuple[int, str]]) -> None:
    port = FakePort()
    channel = outbox.channel(port, gather=False)
    channel.begin("w")
    channel.put((0, "a"))
    assert port.entered.wait(WAIT_S)
    for letter in "bcd":
        channel.put((0, letter))
        channel.put((1, letter.upper()))
    channel.finish(STATEMENT)
    port.gate.set()
    assert port.sent.get(timeout=WAIT_S) == ([(0, "a")], None, None)
    assert port.sent.get(timeout=WAIT_S) == ([(0, "bcd")], None, None)
    assert port.sent.get(timeout=WAIT_S) == ([(1, "BCD")], STATEMENT, None)


def test_nothing_is_sent_before_the_greeting_went_out(outbox: Outbox[tuple[int, str]]) -> None:
    port = open_gate(FakePort())
    channel = outbox.channel(port, gather=False)
    channel.put((0, "early"))
    channel.finish(STATEMENT)
    with pytest.raises(queue.Empty):
        port.sent.get(timeout=0.1)
    channel.begin("w")
    assert port.sent.get(timeout=WAIT_S) == ([(0, "early")], STATEMENT, None)


def test_a_gathering_channel_sends_once(outbox: Outbox[tuple[int, str]]) -> None:
    port = open_gate(FakePort())
    channel = outbox.channel(port, gather=True)
    channel.begin("w")
    channel.put((0, "a"))
    channel.put((1, "A"))
    channel.put((0, "b"))
    with pytest.raises(queue.Empty):
        port.sent.get(timeout=0.1)
    channel.finish(STATEMENT)
    assert port.sent.get(timeout=WAIT_S) == ([(0, "ab"), (1, "A")], STATEMENT, None)


@pytest.mark.parametrize("late", [lambda c: c.finish(STATEMENT), lambda c: c.put((0, "x"))])
def test_after_the_end_nothing_more_is_sent(outbox: Outbox[tuple[int, str]], late: Callable[[object], None]) -> None:
    port = open_gate(FakePort())
    channel = outbox.channel(port, gather=False)
    channel.begin("w")
    error = Cancelled("stop")
    channel.fail(error)
    assert port.sent.get(timeout=WAIT_S) == ([], None, error)
    late(channel)
    with pytest.raises(queue.Empty):
        port.sent.get(timeout=0.1)


def test_a_client_that_left_is_told_once_and_never_after_the_end(
    outbox: Outbox[tuple[int, str]], left: "queue.Queue[str]"
) -> None:
    port = open_gate(FakePort())
    channel = outbox.channel(port, gather=False)
    channel.begin("w1")
    port.left = True
    assert left.get(timeout=WAIT_S) == "w1"
    channel.fail(Cancelled("gone"))
    port.sent.get(timeout=WAIT_S)
    with pytest.raises(queue.Empty):
        left.get(timeout=0.1)


def test_an_answer_that_cannot_be_sent_cancels_its_work_and_no_other(
    outbox: Outbox[tuple[int, str]], left: "queue.Queue[str]"
) -> None:
    broken, fine = open_gate(FakePort(fault=OSError("pipe"))), open_gate(FakePort())
    for port, work_id in ((broken, "w1"), (fine, "w2")):
        channel = outbox.channel(port, gather=False)
        channel.begin(work_id)
        channel.put((0, work_id))
    assert left.get(timeout=WAIT_S) == "w1"
    assert fine.sent.get(timeout=WAIT_S) == ([(0, "w2")], None, None)


def test_an_engine_does_not_wait_while_a_client_is_looked_for(outbox: Outbox[tuple[int, str]]) -> None:
    port = open_gate(FakePort(may_tell=threading.Event()))
    assert port.may_tell is not None
    channel = outbox.channel(port, gather=False)
    channel.begin("w")
    assert port.asked.wait(WAIT_S)
    engine = threading.Thread(target=lambda: channel.put((0, "a")))
    engine.start()
    try:
        assert port.sent.get(timeout=WAIT_S / 2) == ([(0, "a")], None, None)
    finally:
        port.may_tell.set()
        engine.join()


def test_an_answer_that_cannot_be_sent_still_has_an_end(outbox: Outbox[tuple[int, str]]) -> None:
    port = open_gate(FakePort(refuses_results=True))
    channel = outbox.channel(port, gather=True)
    channel.begin("w")
    channel.put((0, "a"))
    channel.finish(STATEMENT)
    results, statement, error = port.sent.get(timeout=WAIT_S)
    assert (results, statement) == ([], None)
    assert isinstance(error, InternalFault)
