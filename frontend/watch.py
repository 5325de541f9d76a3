"""One engine as last seen, and why it does not serve."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from common.wire import Breaker, EngineStatus

MISSES = 3
"""Polls without an answer, one after the other, that make an engine not ready."""
UNPROVEN = "it has not answered its canary yet"


class Process(Protocol):
    """The process of an engine, where it can be seen from here."""

    def lives(self) -> bool:
        """Whether it has not ended; one that is stopped lives."""

    def kill(self) -> None:
        """Ends it at once."""


@dataclass(frozen=True)
class Outage:
    """Why an engine does not serve."""

    dead: bool = False
    """Whether its process is known to have ended."""
    silent_s: float = 0.0
    """For how long nothing came back from it; 0 where something did."""
    unready_s: float = 0.0
    """For how long it has answered that it is not ready, other than for its breaker."""
    fault: str = ""
    """What its answers to the canary show."""
    trouble: str = ""
    """What it last said of itself, or what was said in its place."""


@dataclass
class Watch:
    """One engine; times are on the loop's clock."""

    model: str
    status: EngineStatus | None = None
    misses: int = 0
    trouble: str = "it has not answered yet"
    remedy: str = ""
    """What is being done about it, in place of the trouble."""
    hopeless: bool = False
    """Whether nobody brings it back, or not soon."""
    answered_s: float = 0.0
    """When it last answered."""
    process: Process | None = None
    """Of the newest boot id; None where it cannot be seen from here."""
    dead: bool = False
    silent_since_s: float | None = None
    """When the first of the questions was asked to which nothing at all came back."""
    unready_since_s: float | None = None
    unproven: bool = False
    """Whether its process is new and has not answered a canary."""
    fault: str = ""
    proved_s: float = 0.0
    """When the last good answer came, a canary's or a client's."""
    renewed_s: float = 0.0
    """When its process was last replaced: what was asked before says nothing about the new one."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def lost(self) -> bool:
        """Whether what was last seen says nothing about now."""
        return self.status is None or self.misses >= MISSES or bool(self.remedy)

    @property
    def reason(self) -> str:
        """Why it is lost."""
        return self.remedy or self.trouble

    @property
    def doubt(self) -> str:
        """Why it takes no work though it answers; empty where nothing speaks against it."""
        return self.fault or (UNPROVEN if self.unproven else "")

    @property
    def ended(self) -> bool:
        """Whether its process can be seen to have ended."""
        return self.process is not None and not self.process.lives()

    @property
    def well(self) -> bool:
        """Whether nothing is known against it."""
        since_s = (self.silent_since_s, self.unready_since_s)
        return self.misses < MISSES and since_s == (None, None) and not self.fault

    def outage(self, now_s: float) -> Outage:
        """What is known against it."""
        return Outage(
            dead=self.dead and self.misses >= MISSES,
            silent_s=_since(self.silent_since_s, now_s),
            unready_s=_since(self.unready_since_s, now_s),
            fault=self.fault,
            trouble=self.trouble,
        )

    def unproven_s(self, now_s: float) -> float | None:
        """Seconds since its last good answer; infinite for a new process that has given none.

        None where there is nothing to ask: it does not answer, its breaker is open, or it works, and its own watch over
        its progress says more than a question in between.
        """
        if self.status is None or self.lost or self.status.breaker is Breaker.OPEN:
            return None
        if self.unproven:
            return float("inf")
        busy = self.status.used_bytes > 0 or bool(self.status.leases) or not self.status.ready
        return None if busy else now_s - self.proved_s

    def prove(self, boot_id: str, now_s: float, *, by_canary: bool = False) -> None:
        """The process gave a good answer; only a canary's clears what an earlier one has shown."""
        if self.status is not None and self.status.boot_id == boot_id:
            self.proved_s = now_s
            if by_canary:
                self.unproven, self.fault = False, ""

    def accuse(self, boot_id: str, fault: str) -> None:
        """The process gives wrong answers, or none: it takes no work until a canary proves the contrary."""
        if self.status is not None and self.status.boot_id == boot_id:
            self.fault = fault

    def successor(self, boot_id: str, asked_s: float) -> bool | None:
        """Whether another process than `boot_id` takes work; False where that one lives on, or nobody replaces it.

        None while it is not known; what was heard before `asked_s` does not count.
        """
        if self.status is not None and not self.lost:
            is_new = self.status.boot_id != boot_id
            if is_new and self.status.ready and not self.doubt:
                return True
            if not is_new and self.answered_s > asked_s:
                return False
        return False if self.hopeless else None

    def renew(self, now_s: float) -> None:
        """It has a new process: what was seen of the old one's end no longer counts."""
        self.process, self.dead, self.fault, self.renewed_s = None, False, "", now_s
        self.silent_since_s = self.unready_since_s = None


def _since(since_s: float | None, now_s: float) -> float:
    return 0.0 if since_s is None else now_s - since_s
