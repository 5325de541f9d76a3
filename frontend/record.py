"""What is noted of one HTTP request while it passes, for its log line and its metrics."""

from contextvars import ContextVar
from dataclasses import dataclass

from frontend.claim import Caller
from frontend.tenants import ANYONE, Tenant

OK = "ok"


@dataclass
class Record:
    """Filled in by whoever learns something; shared by all tasks of the request."""

    request_id: str = ""
    route: str = "none"
    """Template of the route, ``/v1/models/{model}``; never the path itself."""
    tenant: Tenant = ANYONE
    """Whose key it came with."""
    model: str = "none"
    lease: str = ""
    """Id of its newest lease."""
    price_bytes: int = 0
    outcome: str = OK
    """``ok`` or the code of the error, also of one that came after the answer had begun."""

    @property
    def caller(self) -> Caller:
        """In whose name it came, for the line."""
        return self.tenant.caller


_CURRENT: ContextVar[Record] = ContextVar("record")


def current() -> Record:
    """The record of the request that this task works for; one that nobody reads outside of requests."""
    return _CURRENT.get(None) or Record()


def begin(request_id: str) -> Record:
    """Starts the record of the request that this task serves."""
    record = Record(request_id)
    _CURRENT.set(record)
    return record
