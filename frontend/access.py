"""Who may come in: API keys at the door, and what is open without one."""

import logging
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from common.errors import Forbidden, RequestError, SettingsError, Unauthenticated
from frontend import keyfile, record
from frontend.ledger import Clock
from frontend.refusals import respond
from frontend.tenants import ANYONE, Tenant

LOG = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between looks at whether the key file has changed."""
PROBES = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
"""Open to everybody: they come from the machinery around the service, and tell no more than whether it works."""
METRICS = "/metrics"
"""Open on loopback; from elsewhere it takes an operator's key, because it names the tenants."""


class KeyRing:
    """The tenants of a key file, read again when it changes; without a file everybody is the same tenant."""

    def __init__(self, file: Path | None, clock: Clock) -> None:
        """Raises SettingsError where the file cannot be used."""
        self._file = file.expanduser() if file is not None else None
        self._clock = clock
        self._looked_s = clock()
        self._stamp = self._look()
        self._tenants = keyfile.read(self._file) if self._file is not None else ()

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """All of them; none without a file."""
        self._refresh()
        return self._tenants

    def admit(self, key: str | None) -> Tenant:
        """Whose key it is; raises Unauthenticated for none and for one that nobody has."""
        if self._file is None:
            return ANYONE
        if key is None:
            raise Unauthenticated("an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY")
        tenant = keyfile.owner(self.tenants, key)
        if tenant is None:
            raise Unauthenticated("this API key is not known, or was revoked")
        return tenant

    def _refresh(self) -> None:
        """What cannot be read changes nothing: those who were let in before still are, and nobody else is."""
        now_s = self._clock()
        if self._file is None or now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tenants = keyfile.read(self._file)
            LOG.info("the key file has changed: %d tenants", len(self._tenants))
        except SettingsError as error:
            LOG.error("the key file is not read again, the keys before it stay good: %s", error)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            about = self._file.stat() if self._file is not None else None
        except OSError:
            return None
        return (about.st_mtime_ns, about.st_ino, about.st_size) if about is not None else None


class Door:
    """Answers 401 and 403, and puts the tenant of every other request into its record."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http":
            try:
                record.current().tenant = self._tenant(scope)
            except RequestError as error:
                await respond(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> Tenant:
        path = scope["path"]
        if path in PROBES or (path == METRICS and _from_here(scope)):
            return ANYONE
        tenant = self._keys.admit(_key(scope))
        if path == METRICS and not tenant.operator:
            raise Forbidden("metrics name the tenants: from another machine they take an operator's key")
        return tenant


def _from_here(scope: Scope) -> bool:
    client = scope.get("client")
    return client is not None and keyfile.is_loopback(client[0])


def _key(scope: Scope) -> str | None:
    """What a client sends as its key, as OpenAI's clients do or in a header of its own."""
    own = None
    for name, value in scope["headers"]:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return str(value[7:].strip().decode("latin-1"))
        if name == b"x-api-key":
            own = str(value.strip().decode("latin-1"))
    return own
