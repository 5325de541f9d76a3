"""Python's logging into Triton's log."""

import logging
from typing import Any


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


def forward_to(triton_logger: Any, level: str) -> None:
    """Sends every record of `level` and above to Triton's logger."""
    handler = _TritonHandler(triton_logger)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
