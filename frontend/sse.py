"""Server-sent events as Triton writes them: ``data: {json}`` and a blank line."""

import json
from collections.abc import Iterator
from typing import Any

from common.errors import UpstreamBroken

MAX_EVENT_BYTES = 16 * 2**20
"""Longest event; what is longer is no event of ours."""


class EventReader:
    """Cuts a byte stream into events; knows nothing of where the bytes come from."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The events that `data` completes. Raises UpstreamBroken for what is no event."""
        *blocks, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise UpstreamBroken(f"the model server sent an event of more than {MAX_EVENT_BYTES} bytes")
        for block in blocks:
            lines = [line[5:] for line in block.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield parse_object(b"\n".join(lines))


def parse_object(text: bytes) -> dict[str, Any]:
    """The JSON object in `text`; raises UpstreamBroken if it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UpstreamBroken("the model server's answer is not a JSON object")
    return value
