"""A recorded stream of requests to a language model: when each came, and how many tokens it had."""

import csv
import gzip
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from common.errors import SettingsError
from frontend.claim import ANYONE, Caller


@dataclass(frozen=True)
class Request:
    """One row of a trace."""

    arrival_s: float
    """From the first one."""
    prompt_tokens: int
    output_tokens: int
    """That it really makes."""
    max_tokens: int
    """That it asks for, and is charged."""
    caller: Caller = ANYONE


def read(path: Path, max_tokens: int | None = None) -> list[Request]:
    """The requests of a CSV file (``.gz`` or not), in order of arrival; lines that begin with ``#`` are left out.

    Its columns are ``arrival_s`` or ``arrival_ms``, ``prompt_tokens``, ``output_tokens`` and, if known, ``max_tokens``.
    Where it is not, every request asks for `max_tokens`; None is the longest answer of the trace, so that none is cut.
    Raises SettingsError.
    """
    try:
        with _open(path) as lines:
            rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        requests = sorted(map(_request, rows), key=lambda request: request.arrival_s)
    except OSError as error:
        raise SettingsError(f"cannot read the trace {path}: {error.strerror or error}") from None
    except KeyError as error:
        raise SettingsError(f"the trace {path} has no column {error}") from None
    except (EOFError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise SettingsError(f"the trace {path} is no CSV of numbers: {error}") from None
    if not requests:
        raise SettingsError(f"the trace {path} holds no requests")
    limit = max_tokens or max(request.output_tokens for request in requests)
    return [_limited(request, limit, requests[0].arrival_s) for request in requests]


def faster(requests: list[Request], factor: float) -> list[Request]:
    """The same requests, coming `factor` times as fast."""
    return [replace(request, arrival_s=request.arrival_s / factor) for request in requests]


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _request(row: dict[str, str]) -> Request:
    """`max_tokens` is 0 where the row does not say."""
    arrival_s = float(row["arrival_ms"]) / 1000 if "arrival_ms" in row else float(row["arrival_s"])
    prompt_tokens, output_tokens = int(row["prompt_tokens"]), int(row["output_tokens"])
    if min(prompt_tokens, output_tokens) < 0:
        raise ValueError(f"{prompt_tokens} prompt and {output_tokens} output tokens")
    return Request(arrival_s, prompt_tokens, output_tokens, int(row.get("max_tokens") or 0))


def _limited(request: Request, limit: int, first_s: float) -> Request:
    """From the first arrival on, and no longer than it may be."""
    max_tokens = request.max_tokens or limit
    return replace(
        request,
        arrival_s=request.arrival_s - first_s,
        output_tokens=max(1, min(request.output_tokens, max_tokens)),
        max_tokens=max_tokens,
    )
