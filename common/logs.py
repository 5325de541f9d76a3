"""How a log line is written: for people, or as one JSON object for collectors."""

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any, Literal

Form = Literal["pretty", "json"]

REQUEST = "request"
"""Attribute of a record with the id of the request that it belongs to; empty where it belongs to none."""
FIELDS = "fields"
"""Attribute of a record with a mapping of further facts; a pretty line has them as ``key=value``."""


QUOTING = (ValueError, LookupError, TypeError)
"""Exceptions whose messages quote what they were given, which may be a prompt."""


class _Discreet(logging.Formatter):
    """Tells an exception by type and place, and by its message only where that quotes nothing."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        told: list[str] = []
        link: BaseException | None = ei[1]
        while link is not None:
            words = "" if isinstance(link, QUOTING) else f": {link}"
            told += [f"{type(link).__name__}{words}\n", *traceback.format_tb(link.__traceback__)]
            link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        return "".join(told).rstrip()


class _Pretty(_Discreet):
    def __init__(self, head: str) -> None:
        super().__init__(f"{head}%(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        words = [super().formatMessage(record)]
        if request := getattr(record, REQUEST, ""):
            words.append(f"request={request}")
        words += [f"{key}={value}" for key, value in getattr(record, FIELDS, {}).items()]
        return " ".join(words)


class _Json(_Discreet):
    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := getattr(record, REQUEST, ""):
            told[REQUEST] = request
        told |= getattr(record, FIELDS, {})
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def formatter(form: Form, head: str = "%(asctime)s %(levelname)s %(name)s: ") -> logging.Formatter:
    """Writes records with their request and fields; `head` begins a pretty line."""
    return _Json() if form == "json" else _Pretty(head)
