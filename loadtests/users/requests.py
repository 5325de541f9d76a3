"""What each kind of client sends, and how it reads the answer."""

import json
import random
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from loadtests.campaigns.campaign import Kind
from loadtests.campaigns.schedule import Shot
from loadtests.traces import questions
from loadtests.users import pictures, scripts
from loadtests.users.call import Call

JSON = {"Content-Type": "application/json"}
GLUTTON_WORDS = 60_000
LEAVE_AFTER = 8
"""Pieces of an answer that a client who leaves has read, at the most."""


@dataclass(frozen=True)
class Target:
    """The service that is called."""

    url: str
    model: str = "llama"
    dialect: str = "openai"
    """``openai``, or ``triton`` for a bare model server."""
    deadline_s: float = 30.0
    give_up_s: float = 40.0
    tokens_per_word: float = 1.3

    def prompt(self, shot: Shot) -> str:
        """A text of about as many tokens as the trace had there."""
        return questions.prompt(round(shot.prompt_tokens / self.tokens_per_word), shot.seed)

    @property
    def headers(self) -> dict[str, str]:
        """Of every request: the deadline, for services that read it."""
        return {"X-Request-Timeout": f"{self.deadline_s:g}"}


@dataclass
class Answer:
    """What came back so far."""

    pieces_s: list[float] = field(default_factory=list)
    """When each piece of text came, monotonic."""
    usage: dict[str, Any] = field(default_factory=dict)
    vram: dict[str, Any] = field(default_factory=dict)
    left: bool = False
    """The client has gone away."""

    def take(self, event: dict[str, Any]) -> None:
        """Reads an event or a whole answer, of either dialect."""
        if event.get("text_output") or any(_text(choice) for choice in event.get("choices") or ()):
            self.pieces_s.append(time.monotonic())
        self.usage = event.get("usage") or self.usage
        self.vram = event.get("vram") or self.vram


def chat(target: Target, shot: Shot, call: Call, answer: Answer) -> None:
    """A streamed chat; all tokens are wanted."""
    for event in _chat_events(target, shot, call):
        answer.take(event)


def complete(target: Target, shot: Shot, call: Call, answer: Answer) -> None:
    """A continuation in one piece."""
    if target.dialect == "triton":
        path, body = "/v2/models/llama/generate", _triton_body(target, shot)
    else:
        body = {"model": target.model, "prompt": target.prompt(shot), "max_tokens": shot.output_tokens}
        path = "/v1/completions"
    told, _ = call.whole(path, json.dumps(body | {"temperature": 0.0}).encode(), JSON | target.headers)
    answer.take(json.loads(told))


def segment(target: Target, shot: Shot, call: Call, answer: Answer) -> None:
    """A picture as the body, its mask as a PNG; through ``tritonclient`` where there is only a model server."""
    picture = pictures.encoded(shot.megapixels)
    if target.dialect == "triton":
        scripts.segment(target.url, picture, target.give_up_s)
        return
    _, headers = call.whole("/v1/segment", picture, {"Content-Type": "image/jpeg"} | target.headers)
    told = {name.removeprefix("x-vramgate-").replace("-", "_"): value for name, value in headers.items()}
    answer.vram = {name: int(told[name]) for name in ("quoted_bytes", "held_bytes", "peak_bytes") if name in told}
    answer.vram |= {"rung": told["rung"]} if "rung" in told else {}


def script(target: Target, shot: Shot, call: Call, answer: Answer) -> None:
    """A ``tritonclient`` script that knows nothing of us."""
    scripts.complete(target.url, target.prompt(shot), shot.output_tokens, target.give_up_s)


def quote(target: Target, shot: Shot, call: Call, answer: Answer) -> None:
    """What would it cost?"""
    body = {"model": target.model, "prompt": target.prompt(shot), "max_tokens": shot.output_tokens}
    call.whole("/v1/quote", json.dumps(body).encode(), JSON | target.headers)


def leave(target: Target, shot: Shot, call: Call, answer: Answer) -> None:
    """A chat whose client goes after a few pieces, or before the first."""
    pieces = shot.seed % LEAVE_AFTER
    if pieces == 0:
        call.give_up_s = 0.05 + (shot.seed % 100) / 100
    try:
        with closing(_chat_events(target, shot, call)) as events:
            for event in events:
                answer.take(event)
                if len(answer.pieces_s) >= pieces > 0:
                    break
    except TimeoutError:
        if pieces:
            raise
    answer.left = True


def gorge(target: Target, shot: Shot, call: Call, answer: Answer) -> None:
    """A prompt beyond any context."""
    body = {"model": target.model, "prompt": "why " * GLUTTON_WORDS, "max_tokens": 1_000_000}
    call.whole("/v1/completions", json.dumps(body).encode(), JSON | target.headers)


def litter(target: Target, shot: Shot, call: Call, answer: Answer) -> None:
    """Bytes that are no request."""
    choices = random.Random(shot.seed)
    noise = choices.randbytes(choices.randint(0, 4096))
    path, body, kind = choices.choice(
        (
            ("/v1/chat/completions", noise, "application/json"),
            ("/v1/chat/completions", b'{"model": "llama", "messages": [{"role": "user"}]}', "application/json"),
            ("/v1/completions", b'{"model": "llama", "prompt": "", "max_tokens": -1}', "application/json"),
            ("/v1/segment", noise, "image/png"),
            ("/v1/segment", pictures.encoded(0.01)[:300] + noise, "image/jpeg"),
            ("/v2/models/llama/infer", noise, "application/octet-stream"),
            ("/v2/repository/models/llama/unload", b"{}", "application/json"),
        )
    )
    call.whole(path, body, {"Content-Type": kind} | target.headers)


SEND: dict[Kind, Callable[[Target, Shot, Call, Answer], None]] = {
    Kind.CHAT: chat,
    Kind.COMPLETION: complete,
    Kind.SEGMENT: segment,
    Kind.SCRIPT: script,
    Kind.QUOTE: quote,
    Kind.LEAVER: leave,
    Kind.GLUTTON: gorge,
    Kind.GARBAGE: litter,
}


def _chat_events(target: Target, shot: Shot, call: Call) -> Generator[dict[str, Any]]:
    if target.dialect == "triton":
        path, body = "/v2/models/llama/generate_stream", _triton_body(target, shot) | {"stream": True}
    else:
        path, body = (
            "/v1/chat/completions",
            {
                "model": target.model,
                "messages": [{"role": "user", "content": target.prompt(shot)}],
                "max_tokens": shot.output_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
    return call.events(path, json.dumps(body | {"temperature": 0.0}).encode(), JSON | target.headers)


def _triton_body(target: Target, shot: Shot) -> dict[str, Any]:
    return {"text_input": target.prompt(shot), "max_tokens": shot.output_tokens}


def _text(choice: dict[str, Any]) -> str:
    """Of a chunk of a chat, a chunk or a whole completion."""
    return str((choice.get("delta") or {}).get("content") or choice.get("text") or "")
