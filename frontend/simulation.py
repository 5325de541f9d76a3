"""A trace of requests, replayed through the real ledger and the real admission on a virtual clock."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from common.errors import NeverFits, RequestError
from common.wire import LLAMA_PAGES, LlamaLimits
from estimator import llama
from frontend.claim import Claim
from frontend.engine_model import EngineModel, Rates
from frontend.ledger import Clock, Lease, Ledger
from frontend.pace import Pace
from frontend.trace import Request
from frontend.virtual_time import run


@dataclass
class Outcome:
    """What became of a request; times in seconds from the first arrival."""

    request: Request
    price_bytes: int
    arrived_s: float = 0.0
    started_s: float | None = None
    """When it got its lease; None where it never did."""
    ended_s: float | None = None
    """When its work had ended, in time or not."""
    in_time: bool = False
    refused: str = ""
    """``never_fits``, ``at_once`` or ``after_waiting``."""
    retry_after_s: float | None = None
    again: "Outcome | None" = None
    """What became of it when it came back after `retry_after_s`."""

    @property
    def waited_s(self) -> float | None:
        """From its arrival to its lease."""
        return None if self.started_s is None else self.started_s - self.arrived_s

    @property
    def held_s(self) -> float:
        """Seconds for which it held its price."""
        return 0.0 if self.started_s is None or self.ended_s is None else self.ended_s - self.started_s


class Gate(Protocol):
    """What stands between the clients and the ledger."""

    async def admit(self, claim: Claim, timeout_s: float) -> Lease:
        """A lease, at once or after waiting; raises RequestError."""


MakeGate = Callable[[Ledger, Clock], Gate]


@dataclass(frozen=True)
class Simulation:
    """One card, one model, one gate."""

    limits: LlamaLimits
    rates: Rates
    make_gate: MakeGate
    timeout_s: float = 30.0
    retries: bool = False
    """Whether a refused request comes back once, when it was told to."""

    def replay(self, requests: Sequence[Request]) -> list[Outcome]:
        """What becomes of every request, in order of arrival."""
        return run(lambda: self._replay(requests))

    async def _replay(self, requests: Sequence[Request]) -> list[Outcome]:
        loop = asyncio.get_running_loop()
        card = _Card(self)
        clients: list[asyncio.Task[Outcome]] = []
        for request in requests:
            await asyncio.sleep(max(0.0, request.arrival_s - loop.time()))
            clients.append(asyncio.create_task(card.client(request)))
        outcomes = await asyncio.gather(*clients)
        card.ledger.check()
        return outcomes


class _Card:
    """The parts of one replay."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._now_s = asyncio.get_running_loop().time
        self._pace = Pace(1 / simulation.rates.decode_s(1))
        limits = simulation.limits
        self.ledger = Ledger(self._now_s)
        self.ledger.set_capacity(LLAMA_PAGES, limits.pages * limits.page_bytes)
        self._gate = simulation.make_gate(self.ledger, self._now_s)
        self._engine = EngineModel(simulation.rates)

    async def client(self, request: Request) -> Outcome:
        """Asks once, or once again when it was told to."""
        outcome = await self._ask(request)
        if self._simulation.retries and outcome.retry_after_s is not None:
            await asyncio.sleep(outcome.retry_after_s)
            outcome.again = await self._ask(request)
        return outcome

    async def _ask(self, request: Request) -> Outcome:
        limits, max_tokens = self._simulation.limits, request.max_tokens
        price = llama.price_request(limits, request.prompt_tokens, max_tokens)
        outcome = Outcome(request, price.total_bytes, self._now_s())
        if request.prompt_tokens + max_tokens > limits.context_tokens:
            outcome.refused = "never_fits"
            return outcome
        expected_s, longest_s = self._pace.expected_s(max_tokens), self._pace.longest_s(max_tokens)
        claim = Claim("llama", price, "boot", expected_s, longest_s, request.caller)
        try:
            lease = await self._gate.admit(claim, self._simulation.timeout_s)
        except RequestError as refusal:
            never, waited = isinstance(refusal, NeverFits), self._now_s() > outcome.arrived_s
            outcome.refused = "never_fits" if never else "after_waiting" if waited else "at_once"
            outcome.retry_after_s = refusal.retry_after_s
            return outcome
        await self._run(outcome, lease)
        return outcome

    async def _run(self, outcome: Outcome, lease: Lease) -> None:
        """Holds the lease until the work has ended or the client has no more time."""
        outcome.started_s = self._now_s()
        request = outcome.request
        with suppress(TimeoutError):
            async with asyncio.timeout_at(outcome.arrived_s + self._simulation.timeout_s):
                await self._engine.run(request.prompt_tokens, request.output_tokens)
                outcome.in_time = True
        self.ledger.settle(lease.id)
        outcome.ended_s = self._now_s()
        done = request.output_tokens if outcome.in_time else request.max_tokens
        self._pace.observe(request.max_tokens, done, outcome.held_s)
