"""Tenants: who asks, and what of the card is theirs."""

from dataclasses import field
from functools import cached_property
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from common.errors import Forbidden
from frontend.claim import Caller

NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
UNNAMED = "anyone"
"""Whoever asks where there is no key file."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Tenant:
    """One tenant, as the key file describes it."""

    name: Annotated[str, Field(pattern=NAME)]
    share: Positive = 1.0
    """Weight against the other tenants while bytes are short."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Higher goes first."""
    quota_bytes: Annotated[int, Field(gt=0)] | None = None
    """Bytes that may be held on average (byte-seconds per second), all accounts together; None is no quota."""
    burst_byte_s: Positive | None = None
    """Byte-seconds that unused quota adds up to; None is a minute of it."""
    deadline_s: Positive | None = None
    """Of a request that names none; None is the server's."""
    models: tuple[str, ...] | None = None
    """The models it may use; None is all of them."""
    operator: bool = False
    """Whether it may see everybody's leases and statements."""
    keys: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...] = field(default=(), repr=False)
    """SHA-256 of each API key, in hexadecimal."""

    @property
    def most_byte_s(self) -> float | None:
        """What the bucket holds when it is full; None without a quota."""
        return None if self.quota_bytes is None else self.burst_byte_s or 60.0 * self.quota_bytes

    @cached_property
    def caller(self) -> Caller:
        """What it is worth in the line."""
        return Caller(self.name, self.share, self.priority)

    def require(self, model: str) -> None:
        """Raises Forbidden where the tenant may not use `model`."""
        if self.models is not None and model not in self.models:
            raise Forbidden(f"tenant {self.name!r} may not use {model}: its key is for {', '.join(self.models)}")

    def require_operator(self, what: str) -> None:
        """Raises Forbidden where the tenant may not see what is everybody's."""
        if not self.operator:
            raise Forbidden(f"{what}: only for an operator's key (`vramgate keys add NAME --operator`)")


ANYONE = Tenant(UNNAMED, operator=True)
