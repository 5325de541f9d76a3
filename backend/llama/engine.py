"""The Llama engine: one thread that batches, computes, samples and hands out; everyone else only asks.

One turn of the thread: drop what is cancelled or late, plan a step, compute it, hand out the tokens. The lock covers
the books; it is never held while the model computes or an outlet is called. On CUDA, where a step runs by itself once
it is launched, the tokens of one step are turned into text and handed out while the next one runs.
"""

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from backend.device import pick
from backend.engine import Failed, Footprint, Outlet
from backend.fallback import Rung, Step
from backend.faults import Fault
from backend.llama import host
from backend.llama.books import Books
from backend.llama.canary import Canary
from backend.llama.job import Answer, Job
from backend.llama.load import limits_of, open_runner, pool_key, standing_of
from backend.llama.request import Chunk, Generation
from backend.llama.runner import Runner
from backend.llama.sampling import Choice, choose
from backend.llama.scheduler import Slice, halves
from backend.worker import Worker
from common import errors, model_folder
from common.sections import Llama as LlamaSettings
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import LLAMA_PAGES

log = logging.getLogger(__name__)

Result = Choice | errors.RequestError | None
"""What a slice came to: a token, an error, or nothing while its prompt goes on."""
Rungs = Step[list[Result]]
Message = tuple[Job, Callable[[], None]]
"""What an outlet is told once the lock is free."""


def load(settings: Settings) -> "LlamaEngine":
    """The engine that `settings` ask for, loaded and warm; raises SettingsError when it cannot be."""
    folder = model_folder.resolve(settings)
    if settings.llama.threads is not None:
        torch.set_num_threads(settings.llama.threads)
    tokenizer = Tokenizer.load(folder)
    runner = open_runner(settings, folder, pick(settings))
    make_host = (
        partial(host_engine, runner, tokenizer, settings.llama) if host.is_allowed(runner, settings.llama) else None
    )
    engine = LlamaEngine(runner, tokenizer, settings.llama, str(folder), make_host=make_host)
    engine.start()
    return engine


def host_engine(runner: Runner, tokenizer: Tokenizer, settings: LlamaSettings) -> "LlamaEngine":
    """An engine on the host with the weights of `runner` in float32; not started."""
    return LlamaEngine(host.open_runner(runner, settings), tokenizer, host.settings_of(runner, settings))


class LlamaEngine(Worker[Generation, Chunk]):
    """See :class:`backend.engine.Engine`. Call ``start`` once before anything else."""

    work = "step"
    _books: Books
    _host: "LlamaEngine | None"

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        settings: LlamaSettings,
        tokenizer_dir: str = "",
        clock: Callable[[], float] = time.monotonic,
        overlaps: bool | None = None,
        make_host: "Callable[[], LlamaEngine] | None" = None,
    ) -> None:
        """`overlaps`: whether tokens are handed out while the next step runs; None is on CUDA only.

        `make_host`: an engine on the host that goes on with what finds no memory here; None where there is none.
        """
        self.tokenizer = tokenizer
        self.limits = limits_of(runner, tokenizer_dir)
        self._runner = runner
        self._make_host = make_host
        self._unsaid: list[tuple[Answer, Choice]] = []
        """Tokens in the books whose text is still to be told; one a sequence at the most."""
        self._overlaps = runner.device.type == "cuda" if overlaps is None else overlaps
        idle = Footprint(
            standing=standing_of(runner, settings),
            account=LLAMA_PAGES,
            capacity_bytes=self.limits.pages * self.limits.page_bytes,
            pool_keys=(pool_key(runner, settings),),
        )
        books = Books(self.limits, settings, tokenizer)
        super().__init__("llama", runner.device, books, idle, settings.stall_s, clock)

    def check(self) -> None:
        """Raises ValueError, printing the equation, when pages and sequences do not add up."""
        with self._wake:
            self._books.check()

    def _open(self, request: Generation, outlet: Outlet[Chunk], now_s: float) -> str:
        return self._books.open(request, outlet, now_s)

    def _adopt(self, job: Job) -> None:
        """Goes on with a job of another engine, the lock held."""
        if not self._books.jobs:
            self._progress_s = self._clock()
        self._books.adopt(job)
        self._wake.notify()

    def _warm_up(self) -> Canary:
        self._runner.warm_up()
        return Canary(self._runner)

    def _turn(self) -> None:
        with self._wake:
            now_s = self._clock()
            farewells = [self._end(job, error) for job, error in self._books.unwanted(now_s)]
            step = self._books.plan(now_s)
            dirty = self._books.take_dirty()
        self._tell_all(farewells)
        self._runner.clear(dirty)
        results = self._compute(step) if step else []
        with self._wake:
            self._progress_s = self._clock()
            self._books.totals["steps"] += bool(step)
            failures = [self._settle(slice_, result) for slice_, result in zip(step, results, strict=True)]
        self._tell_all([message for message in failures if message])
        if not self._overlaps or not step:
            self._say()

    def _compute(self, step: list[Slice]) -> list[Result]:
        """The result of each slice. Where memory runs out, the ladder is climbed.

        What fails otherwise is done again alone, so that only those fail that cannot be computed.
        """
        work = f"a step of {len(step)} sequences, {sum(slice_.count for slice_ in step)} tokens"
        outcome = self._ladder.climb(work, self._rungs(step))
        self._progress_s = self._clock()
        if outcome.result is not None:
            return outcome.result
        if outcome.fault is Fault.MEMORY:
            return [errors.InternalFault("memory ran out, and no fallback could answer")] * len(step)
        if len(step) == 1:
            return [errors.InternalFault("the model failed on this request")]
        return [self._compute([slice_])[0] if slice_.sequence.pages else None for slice_ in step]

    def _rungs(self, step: list[Slice]) -> Iterator[Rungs]:
        yield Rung.NONE, partial(self._attempt, step)
        yield Rung.RECLAIM, partial(self._fall_back, Rung.RECLAIM, step, self._attempt)
        if sum(slice_.count for slice_ in step) > 1:
            yield Rung.HALVE, partial(self._fall_back, Rung.HALVE, step, self._in_halves)
        if self._books.running > 1:
            yield Rung.PREEMPT, partial(self._fall_back, Rung.PREEMPT, step, self._without_newest)
        if self._make_host is not None:
            yield Rung.HOST_CPU, partial(self._on_host, step, self._make_host)

    def _attempt(self, step: list[Slice]) -> list[Result]:
        logits = self._runner.forward(step)
        if self._overlaps:
            self._say()
        choices = iter(
            choose(logits, [answer.draw for s in step if s.samples and (answer := self._books.answer_of(s))]).read()
        )
        broken = errors.InternalFault("the model's output for this request is not made of numbers")
        return [(next(choices) or broken) if slice_.samples else None for slice_ in step]

    def _fall_back(self, rung: Rung, step: list[Slice], attempt: Callable[[list[Slice]], list[Result]]) -> list[Result]:
        results = attempt(step)
        for slice_ in step:
            if answer := self._books.answer_of(slice_):
                answer.job.note_rung(rung)
        return results

    def _in_halves(self, step: list[Slice]) -> list[Result]:
        first, second = halves(step)
        results = self._attempt(first) if first else []
        return results[: len(step) - len(second)] + self._attempt(second)

    def _without_newest(self, step: list[Slice]) -> list[Result]:
        """Results of those that still run; the others are computed anew later."""
        with self._wake:
            self._books.shrink()
        results = iter(self._in_halves([slice_ for slice_ in step if slice_.sequence.pages]))
        return [next(results) if slice_.sequence.pages else None for slice_ in step]

    def _on_host(self, step: list[Slice], make_host: Callable[[], "LlamaEngine"]) -> list[Result]:
        """Hands those that still run over to the host; an error for each that it has no room for."""
        self._say()
        host = self._host = self._host or _started(make_host, self._report)
        for answer in [self._books.answer_of(slice_) for slice_ in step if slice_.sequence.pages]:
            if answer is not None and answer.job.id in self._books.jobs:
                self._hand_over(answer.job, host)
        return [errors.InternalFault("memory ran out, and the host has no room for more")] * len(step)

    def _hand_over(self, job: Job, host: "LlamaEngine") -> None:
        with self._wake, host._wake:
            if host._books.can_adopt(job):
                job.note_rung(Rung.HOST_CPU)
                self._books.part_with(job)
                host._adopt(job)

    def _settle(self, slice_: Slice, result: Result) -> Message | None:
        """Enters a slice's result in the books; returns what is to be told of a failure."""
        answer = self._books.answer_of(slice_)
        if answer is None or answer.job.cancelling or answer.finish_reason is not None:
            return None
        if not slice_.sequence.pages:  # preempted while the step was computed
            return None
        if isinstance(result, errors.RequestError):
            return self._end(answer.job, result)
        self._books.advance(slice_, result.token_id if result else None)
        if result is not None:
            answer.job.note_token(self._clock())
            if answer.note(result):
                self._books.retire(answer)
            self._unsaid.append((answer, result))
        return None

    def _say(self) -> None:
        """Turns the newest tokens into text and hands them out."""
        with self._wake:
            unsaid, self._unsaid = self._unsaid, []
            messages = [message for answer, choice in unsaid for message in self._chunk(answer, choice)]
        self._tell_all(messages)

    def _chunk(self, answer: Answer, choice: Choice) -> list[Message]:
        job = answer.job
        if job.id not in self._books.jobs or job.cancelling:
            return []
        try:
            chunk = answer.say(choice)
        except Exception:
            log.exception("a token could not be turned into text")
            return [self._end(job, errors.InternalFault("the answer could not be turned into text"))]
        if answer.is_told:
            self._books.retire(answer)
        put: Message = (job, partial(job.outlet.put, chunk))
        return [put, self._end(job, None)] if job.is_done else [put]

    def _end(self, job: Job, error: errors.RequestError | None) -> Message:
        """Takes a job out of the books; returns its last message."""
        self._books.end(job, error)
        if error:
            return job, partial(job.outlet.fail, error)
        return job, partial(job.outlet.finish, job.statement(self._clock(), self._peak_bytes))

    def _abandon(self, error: errors.RequestError) -> None:
        with self._wake:
            jobs = self._books.abandon(error)
            self._unsaid.clear()
        self._tell_all([(job, partial(job.outlet.fail, error)) for job in jobs])

    def _tell_all(self, messages: list[Message]) -> None:
        for job, message in messages:
            self._tell(job.id, message)


def _started(make_host: Callable[[], LlamaEngine], hear: Failed) -> LlamaEngine:
    host = make_host()
    host.on_failure = hear
    host.start()
    return host
