"""What travels between the frontend and the engines: leases, statements and control messages, as JSON.

Every value is a frozen dataclass. Reading is strict: an unknown or missing key, or a value of the wrong type, raises
:class:`common.errors.InvalidRequest` with the key's name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from common.errors import InvalidRequest

LLAMA_PAGES = "llama.pages"
UNET_CANVAS = "unet.canvas"
HOST = "host"
CARD = "card"
ACCOUNTS = (LLAMA_PAGES, UNET_CANVAS, HOST, CARD)
"""Every account of the bank, by name."""


class _Wire:
    """Strict JSON for a dataclass: ``to_json`` and ``from_json`` are each other's inverse."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")

    def to_json(self) -> str:
        """One line of JSON."""
        return _adapter(type(self)).dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The value that `text` spells; raises InvalidRequest naming the first key that is wrong."""
        try:
            value: Self = _adapter(cls).validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or cls.__name__.lower()
            raise InvalidRequest(f"{cls.__name__.lower()}: {where}: {first['msg']}", param=where) from None
        return value


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(cls: Any) -> TypeAdapter[Any]:
    """Made once: it takes milliseconds."""
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


@dataclass(frozen=True)
class Lease(_Wire):
    """A reservation that travels with a request: what was charged is what may be used.

    Bookkeeping for the engine, never trusted for memory safety.
    """

    id: str
    lines: Mapping[str, int]
    """Account -> bytes reserved there."""
    deadline_s: float
    """Seconds from receipt until the engine must have stopped."""
    max_tokens: int | None = None
    """Output tokens per sequence that were paid for (llama)."""
    canvas_bytes: int | None = None
    """Device canvas that was paid for (unet)."""


@dataclass(frozen=True)
class Statement(_Wire):
    """What a finished request was quoted, held and used."""

    lease: str | None
    """Id of the lease; None for work that came to Triton directly."""
    model: str
    quoted_bytes: int
    """Sum of the lease's lines for this engine's account; 0 without a lease."""
    held_bytes: int
    """What the engine set aside for it in its account: pages or canvas."""
    process_peak_bytes: int
    """Allocator peak over standing while it ran, shared by all that ran then; 0 where torch cannot tell (CPU)."""
    rung: str = "none"
    """Fallback rung that answered; ``none`` when no fallback was needed."""
    queue_s: float = 0.0
    """From arrival at the engine to the first step or tile."""
    run_s: float = 0.0
    """From there to the end."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    pages: int = 0
    """KV pages held at the most."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    preemptions: int = 0
    pixels: int = 0
    tiles: int = 0
    canvas_bytes: int = 0
    decode_image_s: float = 0.0
    """Decoding of the uploaded image, host time."""


class Op(StrEnum):
    """What a control message asks for."""

    STATUS = "status"
    CANCEL = "cancel"
    RECLAIM = "reclaim"
    SNAPSHOT = "snapshot"
    CANARY = "canary"


@dataclass(frozen=True)
class Control(_Wire):
    """A message to an engine; a request that carries one does nothing else."""

    op: Op
    lease: str | None = None
    """Which lease to cancel."""

    def to_json(self) -> str:
        """One line of JSON, the lease only where it says something."""
        return json.dumps({"op": str(self.op)} | ({"lease": self.lease} if self.lease is not None else {}))


class CancelOutcome(StrEnum):
    """What became of a cancel."""

    CANCELLED = "cancelled"
    """The work is active and stops within one step or tile batch; ``status`` lists the lease until it has."""
    UNKNOWN = "unknown"
    """Nothing with that lease is active: it has ended, or never came. If it comes later it is refused."""


@dataclass(frozen=True)
class CancelReply(_Wire):
    """Answer to ``cancel``."""

    outcome: CancelOutcome


@dataclass(frozen=True)
class ReclaimReply(_Wire):
    """Answer to ``reclaim``: bytes that went back to the card."""

    reclaimed_bytes: int


@dataclass(frozen=True)
class SnapshotReply(_Wire):
    """Answer to ``snapshot``: where the report was written."""

    path: str


@dataclass(frozen=True)
class CanaryResult(_Wire):
    """Answer to ``canary``: whether the engine still computes a known answer."""

    ok: bool
    reason: str
    """What was wrong; empty when nothing was."""
    seconds: float
    boot_id: str


class Breaker(StrEnum):
    """State of an engine's breaker."""

    CLOSED = "closed"
    """All is well."""
    OPEN = "open"
    """Headroom fell below a third of the margin; new work is refused until it is above two thirds."""


@dataclass(frozen=True)
class ActiveLease(_Wire):
    """One piece of leased work an engine is doing."""

    id: str
    held_bytes: int
    cancelling: bool = False
    lines: Mapping[str, int] = field(default_factory=dict)
    """What it came with: account -> bytes reserved there. A frontend that was not there then takes it over so."""


@dataclass(frozen=True)
class LlamaLimits(_Wire):
    """What the language model accepts."""

    context_tokens: int
    """Longest prompt + output, in tokens."""
    vocab_tokens: int
    page_tokens: int
    page_bytes: int
    pages: int
    """Pages in the pool; the account's capacity is ``pages x page_bytes``."""
    tokenizer_dir: str
    """Folder with tokenizer.json, as the engine sees it."""


@dataclass(frozen=True)
class UnetLimits(_Wire):
    """What the segmentation model accepts."""

    classes: int
    """Output channels; 1 means one sigmoid class against background."""
    class_names: tuple[str, ...]
    tile_pixels: int
    """Edge of a tile."""
    overlap_pixels: int
    canvas_bytes: int
    """The account's capacity."""
    canvas_itemsize: int
    """Bytes of one canvas element."""
    max_pixels: int
    """Largest image, in pixels, that is decoded at all."""
    default_threshold: float


@dataclass(frozen=True)
class EngineStatus(_Wire):
    """Answer to ``status``: everything the ledger, readiness and the metrics need of an engine."""

    model: str
    boot_id: str
    """New at every start of the engine's process; a lease of another boot id is void."""
    ready: bool
    reason: str
    """Why it is not ready; empty when it is."""
    device: str
    """``cpu`` or ``cuda:<uuid>``."""
    standing: Mapping[str, int]
    """Line -> bytes that are held whether or not anyone calls."""
    account: str
    """The account this engine draws on."""
    capacity_bytes: int
    used_bytes: int
    """Held of the account now, leased and unleased."""
    unleased_bytes: int
    """Held for work that came to Triton without a lease."""
    leases: tuple[ActiveLease, ...]
    pool_keys: tuple[str, ...]
    breaker: Breaker
    headroom_bytes: int | None
    """None when it is unknown."""
    fragmentation_ratio: float
    llama: LlamaLimits | None = None
    unet: UnetLimits | None = None
    totals: Mapping[str, int] = field(default_factory=dict)
    """Counters since boot: requests, tokens, tiles, cancels, failures."""
    card_bytes: int | None = None
    """Size of the card, or of the slice of host memory; None when it is unknown."""
    last_oom_s: float | None = None
    """Unix time when this model last ran out of memory, a restart ago or now; None when it is not known to have."""
