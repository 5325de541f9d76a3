"""One HTTP call that never waits longer than it was given, whole or as a stream of events."""

import http.client
import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

DATA = b"data:"
DONE = b"[DONE]"


class Refusal(Exception):
    """The service answered with an error, as a status or as an event of a stream."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message", "")))
        self.status = status
        self.code = str(error.get("code") or "")
        self.numbers = {name: value for name, value in error.items() if name.endswith("_bytes") and value is not None}

    @classmethod
    def of(cls, status: int, body: bytes) -> Self:
        """Out of an error body: OpenAI's form, Triton's (a text), or anything else."""
        try:
            told = json.loads(body)
            error = told.get("error", told.get("detail", told)) if isinstance(told, dict) else told
        except ValueError:
            error = body[:300].decode(errors="replace")
        return cls(status, error if isinstance(error, dict) else {"message": str(error)[:300]})


@dataclass
class Call:
    """A request that is under way; times are of the monotonic clock."""

    url: str
    give_up_s: float
    """After so many seconds TimeoutError is raised, wherever the call stands."""
    started_s: float = field(default_factory=time.monotonic)
    status: int = 0

    def whole(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[bytes, http.client.HTTPMessage]:
        """Body and headers of a good answer; raises Refusal for any other, OSError and HTTPException for none."""
        with self._open(path, body, headers) as response:
            return response.read(), response.headers

    def events(self, path: str, body: bytes, headers: Mapping[str, str]) -> Generator[dict[str, Any]]:
        """Server-sent events as they come; raises Refusal also for one that tells an error.

        The iterator's end is the stream's; what closes it earlier closes the connection.
        """
        with self._open(path, body, headers) as response:
            while line := response.readline():
                data = line.strip()
                if not data.startswith(DATA):
                    self._bound()
                    continue
                data = data[len(DATA) :].strip()
                if data == DONE:
                    return
                event = json.loads(data)
                if "error" in event:
                    raise Refusal.of(self.status, data)
                yield event
                self._bound()

    @contextmanager
    def _open(self, path: str, body: bytes, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=self.give_up_s)
        try:
            connection.connect()
            self._socket = connection.sock
            connection.request("POST", path, body, dict(headers) | {"Connection": "close"})
            self._bound()
            response = connection.getresponse()
            self.status = response.status
            self._bound()
            if response.status != 200:
                raise Refusal.of(response.status, response.read())
            yield response
            response.close()
        finally:
            connection.close()

    def _bound(self) -> None:
        """The next wait ends when the call's time does."""
        left_s = self.started_s + self.give_up_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the call took longer than its client waits")
        self._socket.settimeout(left_s)
