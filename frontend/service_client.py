"""How the command line and the launcher ask a running service."""

import json
import urllib.error
import urllib.request
from typing import Any

from common.errors import VramgateError
from common.sections import Server

TIMEOUT_S = 5.0


class ServiceClient:
    """The service at `base_url`, asked with `key` where it wants one; proxies are not used."""

    def __init__(self, base_url: str, timeout_s: float = TIMEOUT_S, key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`; raises VramgateError with the service's own message, or that there is none."""
        return self._object(urllib.request.Request(self.base_url + path, headers=self._headers))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON object that `path` answers to `body`; raises like ``get``."""
        headers = {"content-type": "application/json"} | self._headers
        return self._object(urllib.request.Request(self.base_url + path, json.dumps(body).encode(), headers))

    def answers(self, path: str) -> bool:
        """Whether `path` is answered with 200."""
        try:
            with self._opener.open(self.base_url + path, timeout=self._timeout_s) as reply:
                return int(reply.status) == 200
        except (OSError, ValueError):
            return False

    def _object(self, request: urllib.request.Request) -> dict[str, Any]:
        try:
            with self._opener.open(request, timeout=self._timeout_s) as reply:
                return _parse(reply.read(), self.base_url)
        except urllib.error.HTTPError as error:
            with error:
                raise VramgateError(_message(error.read()) or f"{request.full_url}: HTTP {error.code}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise VramgateError(
                f"no vramgate answers at {self.base_url} ({reason}); start one with `vramgate up`"
            ) from None


def local_url(server: Server) -> str:
    """Where a client on this machine reaches the frontend."""
    everywhere = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
    host = everywhere.get(server.host, server.host)
    return f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"


def _parse(body: bytes, base_url: str) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise VramgateError(f"what answers at {base_url} is no vramgate")
    return parsed


def _message(body: bytes) -> str | None:
    """The message of an error in the contract's form."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return None
    return message if isinstance(message, str) else None
