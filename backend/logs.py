"""Python's logging into Triton's log, or to standard error as JSON."""

import logging
import sys
from typing import Any

from common import logs
from common.sections import Log


class _TritonHandler(logging.Handler):
    def __init__(self, triton_logger: Any) -> None:
        super().__init__()
        self._triton = triton_logger

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            self._triton.log_error(text)
        elif record.levelno >= logging.WARNING:
            self._triton.log_warn(text)
        else:
            self._triton.log_info(text)


def forward_to(triton_logger: Any, settings: Log) -> None:
    """Sends every record of the level and above to Triton's logger; JSON, which that would wrap, past it."""
    handler: logging.Handler = (
        _TritonHandler(triton_logger) if settings.format == "pretty" else logging.StreamHandler(sys.stderr)
    )
    handler.setFormatter(logs.formatter(settings.format, "%(name)s: "))
    logging.basicConfig(handlers=[handler], level=settings.level.upper(), force=True)
