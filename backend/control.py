"""Control messages: what the frontend asks of a running engine."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from backend.engine import Engine
from backend.snapshot import Trigger
from common.errors import InternalFault, InvalidRequest
from common.report import Reason
from common.wire import (
    Breaker,
    CanaryResult,
    CancelOutcome,
    CancelReply,
    Control,
    EngineStatus,
    LlamaLimits,
    Op,
    ReclaimReply,
    SnapshotReply,
    UnetLimits,
)


class Overseer(Protocol):
    """What the watchdog knows."""

    breaker: Breaker

    @property
    def headroom_bytes(self) -> int | None:
        """None when unknown."""

    @property
    def card_bytes(self) -> int | None:
        """Size of the card; None when unknown."""

    @property
    def fragmentation_ratio(self) -> float:
        """Of the allocator's free bytes."""


class Recorder(Protocol):
    """Where snapshots are written."""

    last_oom_s: float | None
    """Unix time."""

    def take(self, trigger: Trigger) -> Path | None:
        """The newest snapshot's folder; None where none could be written."""


Reply = CancelReply | EngineStatus | ReclaimReply | SnapshotReply | CanaryResult


class Desk:
    """Answers control messages about `engine`."""

    def __init__(self, engine: Engine[Any, Any], overseer: Overseer, recorder: Recorder, boot_id: str) -> None:
        self._engine = engine
        self._overseer = overseer
        self._recorder = recorder
        self._boot_id = boot_id
        self._answers: dict[Op, Callable[[Control], Reply]] = {
            Op.STATUS: lambda _: self.status(),
            Op.CANCEL: self._cancel,
            Op.RECLAIM: lambda _: ReclaimReply(self._engine.reclaim()),
            Op.SNAPSHOT: lambda _: self._snapshot(),
            Op.CANARY: lambda _: self._canary(),
        }

    def waits(self, message: str | bytes) -> bool:
        """Whether :meth:`answer` takes its time, for the engine's turn or for a file.

        Raises InvalidRequest for what is no control message.
        """
        return Control.from_json(message).op in (Op.CANARY, Op.SNAPSHOT)

    def answer(self, message: str | bytes) -> str:
        """The reply to a control message, as JSON; raises InvalidRequest for one that makes no sense."""
        control = Control.from_json(message)
        if control.op not in self._answers:
            raise InvalidRequest(f"control: this engine does not know {control.op!s}", param="op")
        return self._answers[control.op](control).to_json()

    @property
    def breaker(self) -> Breaker:
        """Whether new work is refused for want of headroom."""
        return self._overseer.breaker

    def status(self) -> EngineStatus:
        """Everything the frontend needs to know of the engine now."""
        health, limits = self._engine.health(), self._engine.limits
        is_open = self._overseer.breaker == Breaker.OPEN
        return EngineStatus(
            model=self._engine.model,
            boot_id=self._boot_id,
            ready=health.ready and not is_open,
            reason=health.reason or ("the breaker is open: too little headroom on the card" if is_open else ""),
            device=self._engine.device,
            breaker=self._overseer.breaker,
            headroom_bytes=self._overseer.headroom_bytes,
            fragmentation_ratio=self._overseer.fragmentation_ratio,
            llama=limits if isinstance(limits, LlamaLimits) else None,
            unet=limits if isinstance(limits, UnetLimits) else None,
            card_bytes=self._overseer.card_bytes,
            last_oom_s=self._recorder.last_oom_s,
            **vars(self._engine.footprint()),
        )

    def _cancel(self, control: Control) -> CancelReply:
        if control.lease is None:
            raise InvalidRequest("control: cancel needs the lease's id", param="lease")
        outcome: CancelOutcome = self._engine.cancel(control.lease)
        return CancelReply(outcome)

    def _canary(self) -> CanaryResult:
        started_s = time.monotonic()
        reason = self._engine.canary()
        return CanaryResult(not reason, reason, time.monotonic() - started_s, self._boot_id)

    def _snapshot(self) -> SnapshotReply:
        path = self._recorder.take(Trigger(Reason.DEMAND))
        if path is None:
            raise InternalFault("no snapshot could be written; the engine's log says why")
        return SnapshotReply(str(path))
