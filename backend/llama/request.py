"""A generation as the engine takes it, the chunks it answers with, and the checks in front of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.llama.fields import Fields
from common.errors import InvalidRequest, NeverFits
from common.sections import Llama
from common.tokenizer import Tokenizer
from common.wire import LLAMA_PAGES, Lease, LlamaLimits
from estimator.llama import price_request

MAX_STOPS = 4
MAX_STOP_CHARS = 64


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    repetition_penalty: float = 1.0
    seed: int | None = None
    """None draws one."""
    logprobs: int | None = None
    """Alternatives told beside each token; None tells nothing, 0 the chosen token's own."""


@dataclass(frozen=True)
class Generation:
    """One request, checked: every id is in the vocabulary, prompt and answer fit the context and the pool."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    """Output tokens of each sequence, at most."""
    n: int = 1
    """Sequences that answer the same prompt."""
    sampling: Sampling = Sampling(temperature=0.0)
    stop: tuple[str, ...] = ()
    lease: Lease | None = None

    @property
    def quoted_bytes(self) -> int:
        """What the lease paid for pages; 0 without a lease."""
        return self.lease.lines.get(LLAMA_PAGES, 0) if self.lease else 0


@dataclass(frozen=True)
class TokenLogprob:
    """How likely a token was, in natural logarithms of the model's own distribution, before temperature and cuts."""

    token_id: int
    token: str
    logprob: float
    top: tuple[tuple[int, str, float], ...]
    """The likeliest alternatives: id, text, logprob."""


@dataclass(frozen=True)
class Chunk:
    """A part of one sequence's answer."""

    index: int
    """Which of the `n` sequences."""
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: str | None = None
    """``stop`` or ``length`` on the sequence's last chunk."""


def join(a: Chunk, b: Chunk) -> Chunk:
    """One chunk of two of the same sequence that follow each other."""
    logprobs = None if a.logprobs is None and b.logprobs is None else (a.logprobs or ()) + (b.logprobs or ())
    return replace(
        a,
        text=a.text + b.text,
        token_ids=a.token_ids + b.token_ids,
        logprobs=logprobs,
        finish_reason=b.finish_reason or a.finish_reason,
    )


def parse(
    inputs: Mapping[str, NDArray[Any]], lease: Lease | None, limits: LlamaLimits, settings: Llama, tokenizer: Tokenizer
) -> Generation:
    """The request that Triton's input tensors spell; what they leave out has its default.

    Trusts nothing: a client may talk to Triton directly. Raises InvalidRequest naming the input that is wrong, and
    NeverFits for what exceeds the whole pool.
    """
    fields = Fields(inputs)
    prompt_ids = _prompt(fields, limits, tokenizer)
    generation = Generation(
        prompt_ids=prompt_ids,
        max_tokens=_max_tokens(fields, len(prompt_ids), lease, limits, settings),
        n=fields.integer("n", 1, settings.max_n, default=1),
        sampling=_sampling(fields, settings),
        stop=fields.strings("stop", MAX_STOPS, MAX_STOP_CHARS),
        lease=lease,
    )
    fields.flag("stream")
    _check_price(generation, limits, settings)
    return generation


def _prompt(fields: Fields, limits: LlamaLimits, tokenizer: Tokenizer) -> tuple[int, ...]:
    text, ids = fields.text("text_input"), fields.integers("input_ids")
    if (text is None) == (ids is None):
        raise InvalidRequest("exactly one of text_input and input_ids is needed", param="text_input")
    name = "input_ids" if text is None else "text_input"
    if text is not None:
        # What is certainly too long is refused before time goes into tokenising it.
        if len(text) > limits.context_tokens * tokenizer.longest_token_chars:
            raise InvalidRequest(
                f"{name}: {len(text):,} characters cannot fit a context of {limits.context_tokens:,} tokens", param=name
            )
        ids = np.array(tokenizer.encode(text), dtype=np.int64)
    assert ids is not None
    if not ids.size:
        raise InvalidRequest(f"{name}: the prompt is empty", param=name)
    if ids.min() < 0 or ids.max() >= limits.vocab_tokens:
        raise InvalidRequest(f"{name}: token ids must be 0 to {limits.vocab_tokens - 1:,}", param=name)
    if ids.size >= limits.context_tokens:
        raise InvalidRequest(
            f"{name}: a prompt of {ids.size:,} tokens leaves no room in a context of {limits.context_tokens:,}",
            param=name,
        )
    return tuple(ids.tolist())


def _max_tokens(fields: Fields, prompt_tokens: int, lease: Lease | None, limits: LlamaLimits, settings: Llama) -> int:
    """What is asked for, or the default where nothing is; never more than a lease paid for."""
    room = limits.context_tokens - prompt_tokens
    wanted = fields.integer("max_tokens", 1, 2**31 - 1, default=min(settings.default_max_tokens, room))
    if wanted > room:
        raise InvalidRequest(
            f"max_tokens: {wanted:,} output tokens after {prompt_tokens:,} prompt tokens exceed the context of "
            f"{limits.context_tokens:,}; at most {room:,} fit",
            param="max_tokens",
        )
    if lease is None or lease.max_tokens is None:
        return wanted
    if lease.max_tokens < 1:
        raise InvalidRequest("lease: max_tokens must be at least 1", param="lease")
    return min(wanted, lease.max_tokens)


def _sampling(fields: Fields, settings: Llama) -> Sampling:
    return Sampling(
        temperature=fields.number("temperature", 0.0, 1e4, default=1.0),
        top_p=fields.number("top_p", 0.0, 1.0, default=1.0, above_low=True),
        top_k=fields.integer("top_k", 0, 2**31 - 1, default=0),
        repetition_penalty=fields.number("repetition_penalty", 0.01, 100.0, default=1.0),
        seed=fields.optional_integer("seed", -(2**63), 2**63 - 1, dtype=np.int64),
        logprobs=fields.optional_integer("logprobs", 0, settings.max_logprobs),
    )


def _check_price(generation: Generation, limits: LlamaLimits, settings: Llama) -> None:
    """Nothing that cannot run, and nothing that was not paid for."""
    one_bytes = price_request(limits, len(generation.prompt_ids), generation.max_tokens).total_bytes
    price_bytes, capacity_bytes = one_bytes * generation.n, limits.pages * limits.page_bytes
    if one_bytes > capacity_bytes or price_bytes > capacity_bytes * settings.oversubscribe:
        raise NeverFits(
            f"{price_bytes:,} B of pages are needed, the pool has {capacity_bytes:,} B",
            numbers={"price_bytes": price_bytes, "capacity_bytes": capacity_bytes},
        )
    if generation.lease is not None and generation.quoted_bytes < price_bytes:
        raise InvalidRequest(
            f"lease: {generation.quoted_bytes:,} B were paid for, {price_bytes:,} B are needed",
            param="lease",
            numbers={"price_bytes": price_bytes, "quoted_bytes": generation.quoted_bytes},
        )
