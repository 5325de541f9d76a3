"""From what a text route has read to a job: tokenised once, in the vocabulary, within the context and the bounds."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from common.errors import InvalidRequest
from common.tokenizer import Tokenizer
from common.wire import LlamaLimits
from frontend.runs import TextJob
from frontend.sampling_form import SamplingForm
from frontend.services import Services

LONG_CHARS = 4096
"""Texts above this are tokenised in a thread."""
TURN_CHARS = 8
"""Of a chat, taken for what its template writes around the text of one turn."""


@dataclass(frozen=True)
class Names:
    """What a route calls the fields that are checked here."""

    prompt: str = "prompt"
    max_tokens: str = "max_tokens"
    n: str = "n"
    logprobs: str = "logprobs"


async def read_prompt(parts: Services, prompt: str | Sequence[int], names: Names) -> tuple[int, ...]:
    """Token ids of a text, with what a prompt starts with, or of ids as they are.

    Raises InvalidRequest for an empty prompt, one that the context cannot hold and ids out of the vocabulary, and
    NotReady while the engine has not said what it accepts.
    """
    _refuse_empty(prompt, names)
    if isinstance(prompt, str):
        tokenizer = await parts.tokenizers.get()
        return await _encode(parts, tokenizer, len(prompt), lambda: tokenizer.encode(prompt), names)
    vocab_tokens = parts.engines.llama_limits().vocab_tokens
    if min(prompt) < 0 or max(prompt) >= vocab_tokens:
        raise InvalidRequest(f"{names.prompt}: token ids must be 0 to {vocab_tokens - 1:,}", param=names.prompt)
    return tuple(prompt)


async def read_chat(parts: Services, messages: Sequence[Mapping[str, str]], names: Names) -> tuple[int, ...]:
    """Token ids of a chat, rendered by the model's template, ready for the assistant's turn; raises as above.

    A turn counts as `TURN_CHARS` beside its text: a template writes something around each.
    """
    tokenizer = await parts.tokenizers.get()
    chars = sum(len(message["content"]) + TURN_CHARS for message in messages)

    def encode() -> list[int]:
        return tokenizer.encode(tokenizer.chat(messages), special=False)

    return await _encode(parts, tokenizer, chars, encode, names)


def to_job(
    parts: Services,
    prompt_ids: tuple[int, ...],
    form: SamplingForm,
    names: Names,
    *,
    max_tokens: int | None,
    logprobs: int | None = None,
) -> TextJob:
    """The job, within the model's context and the operator's bounds; raises InvalidRequest."""
    llama = parts.settings.llama
    _check_bound(form.n, llama.max_n, names.n)
    _check_bound(logprobs, llama.max_logprobs, names.logprobs)
    room = _room(prompt_ids, parts.engines.llama_limits(), names, max_tokens)
    limit = min(llama.default_max_tokens, room) if max_tokens is None else max_tokens
    return TextJob(prompt_ids, limit, logprobs=logprobs, **form.sampling())


async def _encode(
    parts: Services, tokenizer: Tokenizer, chars: int, encode: Callable[[], list[int]], names: Names
) -> tuple[int, ...]:
    """Refuses what is certainly too long before any time goes into it."""
    limits = parts.engines.llama_limits()
    most_chars = limits.context_tokens * tokenizer.longest_token_chars
    if chars > most_chars:
        raise InvalidRequest(
            f"{names.prompt}: {chars:,} characters, where at most {most_chars:,} are read: a context of "
            f"{limits.context_tokens:,} tokens of at most {tokenizer.longest_token_chars} characters",
            param=names.prompt,
            numbers={"prompt_chars": chars, "context_tokens": limits.context_tokens},
        )
    ids = encode() if chars <= LONG_CHARS else await asyncio.to_thread(encode)
    _refuse_empty(ids, names)
    return tuple(ids)


def _refuse_empty(prompt: str | Sequence[int], names: Names) -> None:
    if not prompt:
        raise InvalidRequest(f"{names.prompt}: must not be empty", param=names.prompt)


def _room(ids: Sequence[int], limits: LlamaLimits, names: Names, asked: int | None) -> int:
    """Tokens that the context leaves for an answer, at least one and at least `asked`."""
    context, prompt = limits.context_tokens, len(ids)
    numbers = {"prompt_tokens": prompt, "context_tokens": context}
    if prompt >= context:
        raise InvalidRequest(
            f"{names.prompt}: {prompt:,} tokens leave no room for an answer in a context of {context:,}",
            param=names.prompt,
            numbers=numbers,
        )
    room = context - prompt
    if asked is not None and asked > room:
        raise InvalidRequest(
            f"{names.max_tokens}: {asked:,} tokens after {prompt:,} of the prompt are more than the context of "
            f"{context:,}; at most {room:,} fit",
            param=names.max_tokens,
            numbers=numbers,
        )
    return room


def _check_bound(value: int | None, most: int, name: str) -> None:
    if value is not None and value > most:
        raise InvalidRequest(f"{name}: must be at most {most}", param=name)
