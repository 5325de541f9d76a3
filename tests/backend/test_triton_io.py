import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend.control import Desk
from backend.engine import Failed, Footprint, Health, Lost, Outlet, unheard
from backend.snapshot import Trigger
from backend.triton_io import Arrays, Host, strings
from common.errors import InvalidRequest, NotNow
from common.wire import ActiveLease, Breaker, CanaryResult, CancelOutcome, EngineStatus, Lease, Statement, UnetLimits
from tests.backend.fake_pb_utils import PB, WAIT_S, FakeRequest, FakeSender, FakeTritonError

LEASE = Lease("l1", {"unet.canvas": 3}, 10.0)
LIMITS = UnetLimits(1, ("x",), 256, 64, 1000, 2, 10**6, 0.5)


class EchoEngine:
    """Answers at once with the text it was given; `refusal` and `fault` are what submit raises."""

    model, device, limits = "unet", "cpu", LIMITS

    def __init__(self) -> None:
        self.on_failure: Failed = unheard
        self.on_lost: Lost = lambda reason: None
        self.turn = threading.Event()
        self.wrong = ""
        self.refusal: Exception | None = None
        self.cancelled: queue.Queue[str] = queue.Queue()
        self.outlets: list[Outlet[str]] = []

    def submit(self, request: str, outlet: Outlet[str]) -> str:
        if self.refusal:
            raise self.refusal
        self.outlets.append(outlet)
        if request != "hold":
            for letter in request:
                outlet.put(letter)
            outlet.finish(Statement("l1", "unet", 1, 2, 3))
        return "w1"

    def cancel(self, work_id: str) -> CancelOutcome:
        self.cancelled.put(work_id)
        return CancelOutcome.CANCELLED

    def footprint(self) -> Footprint:
        return Footprint({"weights": 9}, "unet.canvas", 1000, ("unet/x",), 2, 0, (ActiveLease("l1", 2),))

    def health(self) -> Health:
        return Health(True)

    def canary(self) -> str:
        assert self.turn.wait(WAIT_S)
        return self.wrong

    @property
    def away_bytes(self) -> int:
        return 0

    def retreat(self) -> None:
        pass

    def advance(self) -> None:
        pass

    def reclaim(self) -> int:
        return 77

    def close(self) -> None:
        pass


class EchoAdapter:
    inputs = ("text",)

    def __init__(self, engine: EchoEngine) -> None:
        self.engine = engine

    def parse(self, inputs: Arrays, lease: Lease | None, wanted: frozenset[str]) -> str:
        if "text" not in inputs:
            raise InvalidRequest("text: missing", param="text")
        return bytes(inputs["text"][0]).decode()

    def streams(self, inputs: Arrays, lease: Lease | None) -> bool:
        return lease is not None

    def greeting(self) -> Arrays:
        return {"text": strings("")}

    def key(self, result: str) -> int:
        return 0

    def join(self, first: str, second: str) -> str:
        return first + second

    def tensors(self, results: list[str]) -> Arrays:
        return {"text": strings(*results)}


@dataclass
class Overseer:
    breaker: Breaker = Breaker.CLOSED
    headroom_bytes: int | None = 5
    fragmentation_ratio: float = 0.25
    card_bytes: int | None = 10


@dataclass
class Recorder:
    path: Path | None = Path("/state/snapshots/one")
    last_oom_s: float | None = 7.5
    written: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.written.set()

    def take(self, trigger: Trigger) -> Path | None:
        assert self.written.wait(WAIT_S)
        return self.path


@pytest.fixture
def engine() -> EchoEngine:
    return EchoEngine()


@pytest.fixture
def overseer() -> Overseer:
    return Overseer()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def host(engine: EchoEngine, overseer: Overseer, recorder: Recorder) -> Iterator[Host[str, str]]:
    made: Host[str, str] = Host(PB, EchoAdapter(engine), Desk(engine, overseer, recorder, "boot"))
    yield made
    made.close()


def accept(host: Host[str, str], **inputs: Any) -> FakeSender:
    request = FakeRequest(inputs)
    host.accept(request)
    return request.sender


def test_without_a_lease_there_is_exactly_one_response(host: Host[str, str]) -> None:
    sender = accept(host, text=strings("abc"))
    response, final = sender.next()
    assert (response.text("text"), final) == ("abc", True)
    assert Statement.from_json(response.text("statement")).held_bytes == 2
    assert sender.sent.empty()


def test_a_leased_request_is_greeted_before_its_first_result(host: Host[str, str]) -> None:
    sender = accept(host, text=strings("abc"), lease=strings(LEASE.to_json()))
    greeting, final = sender.next()
    assert (greeting.text("text"), final) == ("", False)
    response, final = sender.next()
    assert (response.text("text"), final) == ("abc", True)


@pytest.mark.parametrize(
    ("inputs", "code", "prefix"),
    [
        ({}, FakeTritonError.INVALID_ARG, "[INVALID_ARG] text: missing"),
        ({"text": strings("a"), "lease": strings("{}")}, FakeTritonError.INVALID_ARG, "[INVALID_ARG] lease"),
        ({"control": np.array([1], dtype=np.int32)}, FakeTritonError.INVALID_ARG, "[INVALID_ARG] control"),
        ({"control": strings('{"op":"explode"}')}, FakeTritonError.INVALID_ARG, "[INVALID_ARG] control"),
        ({"control": strings('{"op":"cancel"}')}, FakeTritonError.INVALID_ARG, "[INVALID_ARG] control"),
    ],
)
def test_a_bad_request_is_answered_once_with_its_code(
    host: Host[str, str], inputs: dict[str, Any], code: int, prefix: str
) -> None:
    sender = accept(host, **inputs)
    response, final = sender.next()
    assert final
    assert response.error is not None
    assert response.error.code == code
    assert str(response.error).startswith(prefix)


@pytest.mark.parametrize(
    ("refusal", "prefix"), [(NotNow("full"), "[RESOURCE_EXHAUSTED] full"), (ZeroDivisionError(), "[INTERNAL]")]
)
def test_a_refusal_by_the_engine_is_the_first_and_only_response(
    host: Host[str, str], engine: EchoEngine, refusal: Exception, prefix: str
) -> None:
    engine.refusal = refusal
    sender = accept(host, text=strings("a"), lease=strings(LEASE.to_json()))
    response, final = sender.next()
    assert final
    assert str(response.error).startswith(prefix)
    assert sender.sent.empty()


def test_a_client_that_leaves_has_its_work_cancelled(host: Host[str, str], engine: EchoEngine) -> None:
    sender = accept(host, text=strings("hold"), lease=strings(LEASE.to_json()))
    sender.left = True
    assert engine.cancelled.get(timeout=WAIT_S) == "w1"


def test_work_whose_greeting_cannot_be_sent_does_not_go_on(host: Host[str, str], engine: EchoEngine) -> None:
    sender = FakeSender(fault=OSError("pipe"))
    host.accept(FakeRequest({"text": strings("hold"), "lease": strings(LEASE.to_json())}, sender))
    assert engine.cancelled.get(timeout=WAIT_S) == "w1"


def test_a_refusal_that_cannot_be_sent_leaves_the_next_request_alone(host: Host[str, str]) -> None:
    host.accept(FakeRequest({}, FakeSender(fault=OSError("pipe"))))
    response, _ = accept(host, text=strings("abc")).next()
    assert response.text("text") == "abc"


def test_status_tells_standing_leases_and_limits(host: Host[str, str]) -> None:
    response, final = accept(host, control=strings('{"op":"status"}')).next()
    status = EngineStatus.from_json(response.text("control"))
    assert final
    assert (status.boot_id, status.ready, status.unet, status.headroom_bytes) == ("boot", True, LIMITS, 5)
    assert status.leases == (ActiveLease("l1", 2),)
    assert status.last_oom_s == 7.5


def test_cancel_and_reclaim_reach_the_engine(host: Host[str, str], engine: EchoEngine) -> None:
    response, _ = accept(host, control=strings('{"op":"cancel","lease":"l1"}')).next()
    assert response.text("control") == '{"outcome":"cancelled"}'
    assert engine.cancelled.get(timeout=WAIT_S) == "l1"
    response, _ = accept(host, control=strings('{"op":"reclaim"}')).next()
    assert response.text("control") == '{"reclaimed_bytes":77}'


def test_a_snapshot_on_demand_says_where_it_lies(host: Host[str, str], recorder: Recorder) -> None:
    response, _ = accept(host, control=strings('{"op":"snapshot"}')).next()
    assert response.text("control") == '{"path":"/state/snapshots/one"}'
    recorder.path = None
    response, final = accept(host, control=strings('{"op":"snapshot"}')).next()
    assert final
    assert str(response.error).startswith("[INTERNAL] no snapshot could be written")


def test_nobody_waits_while_a_snapshot_is_written(host: Host[str, str], recorder: Recorder) -> None:
    recorder.written.clear()
    waiting = accept(host, control=strings('{"op":"snapshot"}'))
    response, _ = accept(host, control=strings('{"op":"reclaim"}')).next()
    assert response.text("control") == '{"reclaimed_bytes":77}'
    recorder.written.set()
    assert waiting.next()[0].text("control") == '{"path":"/state/snapshots/one"}'


def test_an_open_breaker_refuses_work_but_answers_control(host: Host[str, str], overseer: Overseer) -> None:
    overseer.breaker = Breaker.OPEN
    response, _ = accept(host, text=strings("a")).next()
    assert str(response.error).startswith("[UNAVAILABLE]")
    response, _ = accept(host, control=strings('{"op":"status"}')).next()
    assert not EngineStatus.from_json(response.text("control")).ready


def test_a_canary_waits_for_the_engine_and_nobody_waits_for_the_canary(
    host: Host[str, str], engine: EchoEngine
) -> None:
    waiting = accept(host, control=strings('{"op":"canary"}'))
    response, _ = accept(host, control=strings('{"op":"reclaim"}')).next()
    assert response.text("control") == '{"reclaimed_bytes":77}'
    engine.turn.set()
    response, final = waiting.next()
    told = CanaryResult.from_json(response.text("control"))
    assert (told.ok, told.reason, told.boot_id, final) == (True, "", "boot", True)
    engine.wrong = "the model answers [1] where it answered [2]"
    response, _ = accept(host, control=strings('{"op":"canary"}')).next()
    told = CanaryResult.from_json(response.text("control"))
    assert (told.ok, told.reason) == (False, engine.wrong)
