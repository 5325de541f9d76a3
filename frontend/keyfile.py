"""The key file: tenants and the hashes of their API keys, as JSON.

A key has 256 random bits, so its SHA-256 tells nothing about it; no slow hash is needed, and none is paid for with
every request.
"""

import fcntl
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from common.errors import SettingsError
from common.settings import Settings
from frontend.tenants import UNNAMED, Tenant

PREFIX = "vg-"
KEY_BYTES = 32
ID_CHARS = 8
"""Of a key's hash, to name it by."""
_TENANTS = TypeAdapter(tuple[Tenant, ...])


def make_key() -> str:
    """A new API key."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_of(key: str) -> str:
    """How a key is kept."""
    return hashlib.sha256(key.encode()).hexdigest()


def owner(tenants: tuple[Tenant, ...], key: str) -> Tenant | None:
    """Whose key it is; every hash is compared, and each in constant time."""
    wanted = hash_of(key)
    found = None
    for tenant in tenants:
        for one in tenant.keys:
            if hmac.compare_digest(one, wanted):
                found = tenant
    return found


def read(path: Path) -> tuple[Tenant, ...]:
    """The tenants in the file; raises SettingsError where it is missing, malformed or contradicts itself."""
    try:
        told = json.loads(path.read_bytes())
        tenants = _TENANTS.validate_python(told["tenants"], strict=False)
    except OSError as error:
        advice = "; make one with `vramgate keys add NAME`" if isinstance(error, FileNotFoundError) else ""
        raise SettingsError(f"tenants.file: cannot read {path}: {error.strerror}{advice}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"tenants.file: {path}: tenants.{where}: {first['msg']}") from None
    except (ValueError, TypeError, KeyError):
        raise SettingsError(f"tenants.file: {path} is no JSON object with a list 'tenants'") from None
    _check(path, tenants)
    return tenants


@contextmanager
def editing(path: Path) -> Iterator[dict[str, Tenant]]:
    """The tenants by name, to be changed in the block, and written whole (mode 0600) when it ends well.

    A file that is missing is made. One editor at a time; who reads it meanwhile finds the old file or the new one.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tenants = {tenant.name: tenant for tenant in read(path)} if path.exists() else {}
        yield tenants
        draft = path.with_name(path.name + ".new")
        with open(os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump({"tenants": [asdict(tenant) for tenant in tenants.values()]}, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)


def without(tenant: Tenant, key_id: str) -> Tenant:
    """The tenant without the key whose hash begins with `key_id`; raises SettingsError where it is not exactly one."""
    named = [one for one in tenant.keys if one.startswith(key_id)]
    if len(named) != 1:
        raise SettingsError(f"{tenant.name} has {len(named)} keys that begin with {key_id!r}; see `vramgate keys list`")
    return replace(tenant, keys=tuple(one for one in tenant.keys if one != named[0]))


def require_guard(settings: Settings) -> tuple[Tenant, ...]:
    """The tenants; none where there is no key file.

    Raises SettingsError where the file cannot be used, and where without one anybody on the network could use the card
    and nobody said so.
    """
    tenants = settings.tenants
    if tenants.file is not None:
        return read(tenants.file.expanduser())
    if not tenants.open and not is_loopback(settings.server.host):
        raise SettingsError(
            f"server.host is {settings.server.host!r} and there is no key file: anybody who reaches it could use the"
            " card; set tenants.file (`vramgate keys add NAME` makes it), or say tenants.open = true"
        )
    return ()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener there, or a client from there is on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(path: Path, tenants: tuple[Tenant, ...]) -> None:
    names = [tenant.name for tenant in tenants]
    hashes = [one for tenant in tenants for one in tenant.keys]
    for what, values in (("name", names), ("key", hashes)):
        if len(set(values)) != len(values):
            twice = next(value for value in values if values.count(value) > 1)
            raise SettingsError(f"tenants.file: {path}: {what} {twice[:63]} is there twice")
    if UNNAMED in names:
        raise SettingsError(f"tenants.file: {path}: the name {UNNAMED!r} is for whoever has no key")
