"""Why memory ran short, as far as a report's numbers say."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from common.report import Reason, Report
from frontend.tables import size

MUCH = 0.5
"""Share of what was lost in the minute that makes somebody its cause."""
STEADY = 0.25
"""Most that one look may add to a growth that creeps."""
CREEP_LOOKS = 8
"""Looks that are needed to tell a creep from a step."""
CROWDED = 0.9
"""Share of an account in use from which the load itself is large."""


class Kind(StrEnum):
    """What it may be put down to."""

    NONE = "nothing is short"
    FRAGMENTATION = "fragmentation"
    FOREIGN = "foreign use"
    LEAK = "leak"
    PRICE = "wrong price"
    BURST = "burst"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Cause:
    """A probable cause, and the numbers behind it in words."""

    kind: Kind
    says: str


def probable_cause(told: Report) -> Cause:
    """The first explanation that the numbers bear, the surest first."""
    if not _is_short(told):
        return Cause(Kind.NONE, f"headroom is {_size(told.headroom_bytes)}, the margin {size(told.margin_bytes)}")
    return _of_refusal(told) or _of_minute(told) or _unknown(told)


def _is_short(told: Report) -> bool:
    if told.reason is not Reason.DEMAND:
        return True
    return told.headroom_bytes is not None and told.headroom_bytes < told.margin_bytes / 3


def _of_refusal(told: Report) -> Cause | None:
    """What the allocation that was refused says by itself."""
    memory, asked_bytes, limit_bytes, free_bytes = (
        told.memory,
        told.asked_bytes,
        told.limit_bytes,
        told.device_free_bytes,
    )
    if asked_bytes is None or limit_bytes is None or free_bytes is None:
        return None
    if memory.largest_free_block_bytes < asked_bytes <= memory.cached_bytes:
        pieces = f"{size(memory.cached_bytes)} were free in pieces of at most {size(memory.largest_free_block_bytes)}"
        return Cause(Kind.FRAGMENTATION, f"{size(asked_bytes)} were asked for in one piece; {pieces}")
    held = f"the process held {size(memory.reserved_bytes)} of the {size(limit_bytes)} that it may take"
    asked = f"{size(asked_bytes)} more were asked for"
    if memory.reserved_bytes + asked_bytes > limit_bytes:
        account = f"{told.account} had only {size(told.used_bytes)} of {size(told.capacity_bytes)} in use"
        return Cause(Kind.PRICE, f"{held}, and {asked}, while {account}: something costs more than its price")
    if free_bytes < asked_bytes:
        left = f"the card had {size(free_bytes)} left"
        return Cause(Kind.FOREIGN, f"{asked} and {held}, but {left}: others hold {_size(_others_bytes(told))}")
    return None


def _of_minute(told: Report) -> Cause | None:
    """Who took what was lost in the last minute."""
    looks = [
        (look.headroom_bytes, look.used_bytes - look.own_bytes, look.own_bytes)
        for look in told.looks
        if look.headroom_bytes is not None and look.used_bytes is not None
    ]
    if not looks:
        return None
    (first_bytes, first_others_bytes, first_own_bytes), (last_bytes, others_bytes, own_bytes) = looks[0], looks[-1]
    lost_bytes = first_bytes - last_bytes
    if lost_bytes <= 0:
        return None
    lost = f"headroom fell by {size(lost_bytes)} in the last minute"
    if others_bytes - first_others_bytes >= MUCH * lost_bytes:
        grew = f"what others hold grew by {size(others_bytes - first_others_bytes)} to {size(others_bytes)}"
        return Cause(Kind.FOREIGN, f"{lost}: {grew}")
    if own_bytes - first_own_bytes < MUCH * lost_bytes:
        return None
    grew = f"{told.model} itself grew by {size(own_bytes - first_own_bytes)} to {size(own_bytes)}"
    account = f"{size(told.used_bytes)} of {size(told.capacity_bytes)} of {told.account} in use"
    if told.used_bytes >= CROWDED * told.capacity_bytes:
        return Cause(Kind.BURST, f"{lost}: {grew}, with {told.leases_active} leases and {account}")
    if _creeps([own_bytes for _, _, own_bytes in looks]):
        return Cause(Kind.LEAK, f"{lost}: {grew}, little by little and giving nothing back, with only {account}")
    return Cause(Kind.PRICE, f"{lost}: {grew}, with only {account}: something costs more than its price")


def _creeps(own_bytes: list[int]) -> bool:
    """Whether it grew all the time, never by much at once, and gave nothing back."""
    steps = [later - earlier for earlier, later in pairwise(own_bytes)]
    growth = own_bytes[-1] - own_bytes[0]
    return len(own_bytes) >= CREEP_LOOKS and min(steps) >= 0 and max(steps) <= STEADY * growth


def _unknown(told: Report) -> Cause:
    headroom = f"headroom was {_size(told.headroom_bytes)}, the margin {size(told.margin_bytes)}"
    return Cause(Kind.UNKNOWN, f"the numbers do not say; {headroom}, and nobody grew in the last minute")


def _others_bytes(told: Report) -> int | None:
    """Used of the card, and not by the allocator of this process."""
    return told.reading.used_bytes - told.memory.reserved_bytes if told.reading is not None else None


def _size(bytes_: int | None) -> str:
    return "unknown" if bytes_ is None else size(bytes_)
