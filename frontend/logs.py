"""The frontend's log: every line with the id of the request that it was written for."""

import logging
import sys

from common import logs
from common.sections import Log
from frontend import record


class _OfRequest(logging.Filter):
    """Puts the current request's id into a record that does not say for which it was written."""

    def filter(self, line: logging.LogRecord) -> bool:
        if not hasattr(line, logs.REQUEST):
            setattr(line, logs.REQUEST, record.current().request_id)
        return True


def start(settings: Log) -> None:
    """Everything of the level and above goes to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logs.formatter(settings.format))
    handler.addFilter(_OfRequest())
    logging.basicConfig(handlers=[handler], level=settings.level.upper(), force=True)
    # What it says of its start stands in the launcher's own lines.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
