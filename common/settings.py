"""The one settings model, read by both sides from ``vramgate.toml`` and ``VRAMGATE_*``.

Later wins: defaults, then the file (``$VRAMGATE_CONFIG``, else ``./vramgate.toml`` where it exists), then the
environment (``VRAMGATE_LLAMA__MAX_BATCH=8`` sets ``llama.max_batch``). Unknown keys and malformed values raise
:class:`common.errors.SettingsError` that names the key. The model is frozen.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError

from common.errors import SettingsError
from common.sections import (
    Admission,
    Card,
    Guests,
    Keeper,
    Llama,
    Log,
    Section,
    Server,
    State,
    Tenants,
    Triton,
    Unet,
    Watchdog,
)

ENV_PREFIX = "VRAMGATE_"
CONFIG_ENV = ENV_PREFIX + "CONFIG"
DEFAULT_FILE = Path("vramgate.toml")


class Settings(Section):
    """Everything that can be set."""

    server: Server = Server()
    triton: Triton = Triton()
    card: Card = Card()
    llama: Llama = Llama()
    unet: Unet = Unet()
    guests: Guests = Guests()
    admission: Admission = Admission()
    tenants: Tenants = Tenants()
    keeper: Keeper = Keeper()
    watchdog: Watchdog = Watchdog()
    state: State = State()
    log: Log = Log()


def load(environ: Mapping[str, str] = os.environ, file: Path | None = None) -> Settings:
    """The settings in force.

    `file` beats ``$VRAMGATE_CONFIG``. Raises SettingsError for a broken or missing file, an unknown key, bad values.
    """
    path = file or (Path(environ[CONFIG_ENV]) if CONFIG_ENV in environ else None)
    values = _read_file(path)
    where = f" (file {path})" if path else ""
    for name, text in sorted(environ.items()):
        if name.startswith(ENV_PREFIX) and name != CONFIG_ENV:
            _put(values, name, text)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(item) for item in error.errors(include_url=False)) + where) from None


def to_environ(section: str, key: str, value: object) -> dict[str, str]:
    """The environment variable that sets ``section.key``, as a dict of one."""
    return {f"{ENV_PREFIX}{section}__{key}".upper(): str(value)}


def parse_margin(margin: str, total_bytes: int) -> int:
    """Bytes that are never lent: a share of `total_bytes` (at most 3 GiB) or an amount, as in ``card.margin``."""
    text = margin.strip()
    if text.endswith("%"):
        return min(int(total_bytes * float(text[:-1]) / 100), 3 * 2**30)
    return int(TypeAdapter(ByteSize).validate_python(text))


def parse_bytes(text: str) -> int:
    """Bytes of a size such as ``24GiB``; raises SettingsError for what is none."""
    try:
        return int(TypeAdapter(ByteSize).validate_python(text.strip()))
    except ValidationError:
        raise SettingsError(f"{text!r} is no size such as 24GiB") from None


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        if not DEFAULT_FILE.is_file():
            return {}
        path = DEFAULT_FILE
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not valid TOML: {error}") from None


def _put(values: dict[str, Any], name: str, text: str) -> None:
    """Sets one environment variable in the tree; lists and tables are written in TOML: ``["a", "b"]``, ``{a = 1}``."""
    section, _, key = name.removeprefix(ENV_PREFIX).lower().partition("__")
    if section not in Settings.model_fields or not key:
        raise SettingsError(f"{name}: no such setting; the form is {ENV_PREFIX}<SECTION>__<KEY>")
    table = values.setdefault(section, {})
    if not isinstance(table, dict):
        raise SettingsError(f"{section}: must be a table")
    try:
        table[key] = tomllib.loads(f"v = {text}")["v"] if text.startswith(("[", "{")) else text
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{name}: {text!r} is neither a list nor a table in TOML: {error}") from None


def _explain(item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{key}: no such setting"
    return f"{key}: {item['msg']}"
