"""Answers in the two forms of the OpenAI API, whole or as a stream of events."""

import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from common.errors import RequestError
from frontend.runs import TextChunk, TextRun, gather

IMPOSSIBLE_LOGPROB = -9999.0
"""What the real API says for a probability of 0; JSON knows no infinity."""
DONE = "data: [DONE]\n\n"


class Answer:
    """The answer to one request; subclasses are the forms."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    part_object: ClassVar[str]

    def __init__(self, run: TextRun, model: str, prompt_tokens: int) -> None:
        self._run = run
        self._prompt_tokens = prompt_tokens
        self._head = {"id": self.id_prefix + run.lease_id, "created": int(time.time()), "model": model}

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece; raises the RequestError that ended the run early."""
        chunks = await gather(self._run)
        choices = [self._choice(chunk) for chunk in chunks]
        return self._head | {"object": self.whole_object, "choices": choices} | self._bill()

    async def events(self, *, include_usage: bool) -> AsyncIterator[str]:
        """The answer as server-sent events; an error is an event of its own, and the last."""
        head = self._head | {"object": self.part_object}
        no_bill = {"usage": None} if include_usage else {}
        try:
            async for chunk in self._run:
                yield _event(head | {"choices": [self._part(chunk)]} | no_bill)
            if include_usage:
                yield _event(head | {"choices": []} | self._bill())
            yield DONE
        except RequestError as error:
            yield _event(error.to_body())

    def _choice(self, chunk: TextChunk) -> dict[str, Any]:
        """One of the n whole answers."""
        raise NotImplementedError

    def _part(self, chunk: TextChunk) -> dict[str, Any]:
        """A piece of one of them."""
        raise NotImplementedError

    def _bill(self) -> dict[str, Any]:
        output_tokens = self._run.statement.output_tokens
        usage = {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": self._prompt_tokens + output_tokens,
        }
        return {"usage": usage, "vram": self._run.vram()}


class Completion(Answer):
    """``/v1/completions``."""

    id_prefix = "cmpl-"
    whole_object = part_object = "text_completion"

    def __init__(self, run: TextRun, model: str, prompt_tokens: int) -> None:
        super().__init__(run, model, prompt_tokens)
        self._offsets: dict[int, int] = {}
        """Characters of each sequence that went before."""

    def _choice(self, chunk: TextChunk) -> dict[str, Any]:
        return {
            "index": chunk.index,
            "text": chunk.text,
            "logprobs": None if chunk.logprobs is None else self._logprobs(chunk.index, _tokens(chunk)),
            "finish_reason": chunk.finish_reason,
        }

    _part = _choice

    def _logprobs(self, index: int, tokens: Iterable["Token"]) -> dict[str, list[Any]]:
        offset = self._offsets.get(index, 0)
        table: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            table["tokens"].append(token.text)
            table["token_logprobs"].append(token.logprob)
            # the likeliest of those that look alike
            table["top_logprobs"].append({item.text: item.logprob for item in reversed(token.top)})
            table["text_offset"].append(offset)
            offset += len(token.text)
        self._offsets[index] = offset
        return table


class Chat(Answer):
    """``/v1/chat/completions``."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    part_object = "chat.completion.chunk"

    def __init__(self, run: TextRun, model: str, prompt_tokens: int) -> None:
        super().__init__(run, model, prompt_tokens)
        self._begun: set[int] = set()
        """Sequences whose role was told."""

    def _choice(self, chunk: TextChunk) -> dict[str, Any]:
        message = {"role": "assistant", "content": chunk.text, "refusal": None}
        return {"index": chunk.index, "message": message} | self._rest(chunk)

    def _part(self, chunk: TextChunk) -> dict[str, Any]:
        delta: dict[str, Any] = {} if chunk.index in self._begun else {"role": "assistant", "content": ""}
        self._begun.add(chunk.index)
        if chunk.text:
            delta["content"] = chunk.text
        return {"index": chunk.index, "delta": delta} | self._rest(chunk)

    def _rest(self, chunk: TextChunk) -> dict[str, Any]:
        logprobs = None
        if chunk.logprobs is not None:
            content = [
                token.describe() | {"top_logprobs": [item.describe() for item in token.top]} for token in _tokens(chunk)
            ]
            logprobs = {"content": content, "refusal": None}
        return {"logprobs": logprobs, "finish_reason": chunk.finish_reason}


@dataclass(frozen=True)
class Token:
    """A token with its natural log probability, and the likeliest ones in its place."""

    text: str
    logprob: float
    top: tuple["Token", ...] = ()

    def describe(self) -> dict[str, Any]:
        """In the chat's form."""
        return {"token": self.text, "logprob": self.logprob, "bytes": list(self.text.encode())}


def _tokens(chunk: TextChunk) -> list[Token]:
    """The chunk's log probabilities, read from the engine's form."""
    return [
        Token(
            item["token"],
            _finite(item["logprob"]),
            tuple(Token(text, _finite(logprob)) for _, text, logprob in item["top"]),
        )
        for item in chunk.logprobs or ()
    ]


def _finite(logprob: float) -> float:
    return max(logprob, IMPOSSIBLE_LOGPROB)


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
