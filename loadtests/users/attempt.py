"""One arrival, from its sending to the outcome; whatever goes wrong becomes part of it."""

import http.client
import json
import re
import statistics
import time
from itertools import pairwise

from loadtests.campaigns.campaign import Kind
from loadtests.campaigns.schedule import Shot
from loadtests.users.call import Call, Refusal
from loadtests.users.outcome import End, Outcome
from loadtests.users.requests import SEND, Answer, Target

OOM = re.compile(r"out of memory|outofmemory|cannot allocate memory|\boom\b", re.IGNORECASE)
REFUSALS = (413, 429)
WAITED = "after waiting"
"""In the message of a refusal that did not come at once."""
LATE = (408, 504)
STATUS_OF = re.compile(r"\[(\d{3})\]")
CODES = {"rate_limit_exceeded": 429, "timeout": 504}
"""Of errors that came as an event of a stream, whose status was 200."""


def attempt(target: Target, shot: Shot, due_unix_s: float) -> Outcome:
    """Sends `shot` and says what became of it."""
    call, answer = Call(target.url, target.give_up_s), Answer()
    sent_unix_s = time.time()
    status, code, message, numbers = 200, "", "", {}
    try:
        SEND[shot.kind](target, shot, call, answer)
        end = _good_end(shot.kind, answer, time.monotonic() - call.started_s, target.deadline_s)
    except Refusal as refusal:
        status, code, message, numbers = refusal.status, refusal.code, str(refusal), refusal.numbers
        end = bad_end(shot.kind, status, code, message)
    except TimeoutError:
        status, code, message, end = call.status, "timeout", "the client waited in vain", End.HUNG
    except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
        status, code, message, end = call.status, type(error).__name__, str(error)[:300], End.ERROR
    except Exception as error:  # tritonclient and its transport have families of their own
        status, code, message = _explain(error)
        end = End.HUNG if code == "timeout" else bad_end(shot.kind, status, code, message)
    latency_s = time.monotonic() - call.started_s
    return Outcome(
        number=shot.number,
        phase=shot.phase,
        kind=shot.kind,
        end=end,
        due_unix_s=due_unix_s,
        sent_unix_s=sent_unix_s,
        latency_s=latency_s,
        deadline_s=target.deadline_s,
        status=status,
        code=code,
        message=message,
        ttft_s=answer.pieces_s[0] - call.started_s if answer.pieces_s else None,
        gaps_s=_gaps(answer.pieces_s),
        prompt_tokens=int(answer.usage.get("prompt_tokens", 0)) or (shot.prompt_tokens if end is End.GOOD else 0),
        output_tokens=int(answer.usage.get("completion_tokens", len(answer.pieces_s))),
        megapixels=shot.megapixels if shot.kind is Kind.SEGMENT else 0.0,
        vram=answer.vram,
        numbers=numbers,
    )


def bad_end(kind: Kind, status: int, code: str, message: str) -> End:
    """The end that an error means."""
    if OOM.search(message) or OOM.search(code):
        return End.OOM
    status = CODES.get(code, status) if status == 200 else status
    if kind in (Kind.GLUTTON, Kind.GARBAGE) and 400 <= status < 500:
        return End.REBUFFED
    if status in LATE:
        return End.LATE
    if status in REFUSALS:
        return End.EXPIRED if WAITED in message else End.REFUSED
    return End.ERROR


def _good_end(kind: Kind, answer: Answer, latency_s: float, deadline_s: float) -> End:
    if answer.left:
        return End.LEFT
    if kind is Kind.CHAT and not answer.pieces_s and not answer.usage:
        return End.ERROR
    return End.GOOD if latency_s <= deadline_s else End.LATE


def _explain(error: Exception) -> tuple[int, str, str]:
    """Status, code and message of what ``tritonclient`` raises."""
    message = str(error)[:300]
    if "timed out" in message or "Timeout" in type(error).__name__:
        return 0, "timeout", message
    found = STATUS_OF.search(message)
    return int(found[1]) if found else 0, type(error).__name__, message


def _gaps(pieces_s: list[float]) -> list[float]:
    gaps = sorted(later - earlier for earlier, later in pairwise(pieces_s))
    if not gaps:
        return []
    return [
        round(value, 6)
        for value in (statistics.fmean(gaps), gaps[len(gaps) // 2], gaps[-1 - len(gaps) // 100], gaps[-1])
    ]
