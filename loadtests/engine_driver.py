"""Drives a Llama engine without a server: submit, wait, measure."""

import random
import threading
import time
from dataclasses import dataclass, field

from backend.llama.engine import LlamaEngine
from backend.llama.request import Chunk, Generation, Sampling
from common.errors import RequestError
from common.wire import Statement

WAIT_S = 300.0


@dataclass(eq=False)
class Run:
    """One request's outlet; times in seconds of the monotonic clock."""

    first_s: float = 0.0
    """When its first token came."""
    tokens: int = 0
    statement: Statement | None = None
    error: RequestError | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def put(self, result: Chunk) -> None:
        """Counts the tokens."""
        self.first_s = self.first_s or time.monotonic()
        self.tokens += len(result.token_ids)

    def finish(self, statement: Statement) -> None:
        """The good end."""
        self.statement = statement
        self.ended.set()

    def fail(self, error: RequestError) -> None:
        """The other end."""
        self.error = error
        self.ended.set()

    def wait(self) -> "Run":
        """Until the end; raises what the request failed with, TimeoutError when there is none."""
        if not self.ended.wait(WAIT_S):
            raise TimeoutError(f"no end after {WAIT_S} s")
        if self.error is not None:
            raise self.error
        return self


def prompt(tokens: int, vocab: int, seed: int) -> tuple[int, ...]:
    """Random ids; the same for the same seed."""
    return tuple(random.Random(seed).choices(range(vocab), k=tokens))


def start(engine: LlamaEngine, prompt_ids: tuple[int, ...], max_tokens: int, outlet: Run) -> str:
    """Submits a greedy request; returns its work id."""
    return engine.submit(Generation(prompt_ids, max_tokens, sampling=Sampling(temperature=0.0)), outlet)


def together(engine: LlamaEngine, count: int, prompt_tokens: int, max_tokens: int) -> float:
    """Seconds from the submission of `count` requests at once to the end of the last."""
    prompts = [prompt(prompt_tokens, engine.limits.vocab_tokens, seed) for seed in range(count)]
    runs = [Run() for _ in prompts]
    started_s = time.monotonic()
    for ids, run in zip(prompts, runs, strict=True):
        start(engine, ids, max_tokens, run)
    for run in runs:
        run.wait()
    elapsed_s = time.monotonic() - started_s
    if (total := sum(run.tokens for run in runs)) != count * max_tokens:
        raise RuntimeError(f"{total} tokens came instead of {count * max_tokens}")
    return elapsed_s


def first_token_s(engine: LlamaEngine, prompt_tokens: int) -> float:
    """Seconds from submission to the first token of a request that is alone."""
    run = Run()
    started_s = time.monotonic()
    start(engine, prompt(prompt_tokens, engine.limits.vocab_tokens, 0), 2, run)
    run.wait()
    return run.first_s - started_s
