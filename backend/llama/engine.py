"""The Llama engine: one thread that batches, computes, samples and hands out; everyone else only asks.

One turn of the thread: drop what is cancelled or late, plan a step, launch it, hand out the tokens of the one in front.
On CUDA, where a step runs by itself once it is launched, the books are kept and text is made while the device computes:
a step takes the tokens of the one in front on the device, before anyone here knows them. The lock covers the books; it
is never held while the model computes or an outlet is called.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from backend.device import pick
from backend.engine import Footprint, Outlet
from backend.fallback import NO_MEMORY, Rung, Step
from backend.faults import Fault
from backend.llama import host
from backend.llama.books import Books
from backend.llama.canary import Canary
from backend.llama.flight import Flight
from backend.llama.job import Job
from backend.llama.load import limits_of, open_runner, pool_key, standing_of
from backend.llama.request import Chunk, Generation
from backend.llama.runner import Runner
from backend.llama.sampling import Choice, Draw, choose
from backend.llama.scheduler import Slice, halves
from backend.worker import Worker, started
from common import errors, model_folder
from common.sections import Llama as LlamaSettings
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import LLAMA_PAGES

log = logging.getLogger(__name__)

Result = Choice | errors.RequestError | None
"""What a slice came to: a token, an error, or nothing while its prompt goes on."""
Results = list[tuple[Slice, Result]]
Rungs = Step[Results]
_BROKEN = "the model's output for this request is not made of numbers"
_FAILED = "the model failed on this request"
_NO_ROOM = "memory ran out, and the host has no room for more"
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
        """`overlaps`: whether a step is launched before the tokens of the one in front are known; None: on CUDA.

        `make_host`: an engine on the host that goes on with what finds no memory here; None where there is none.
        """
        self.tokenizer = tokenizer
        self.limits = limits_of(runner, tokenizer_dir)
        self._runner = runner
        self._make_host = make_host
        self._flight: Flight | None = None
        """The step whose tokens are not known yet."""
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
        self._rouse()
        self._books.adopt(job)

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
        if step:
            self._compute(step)
        if not step or not self._overlaps:
            self._land()

    def _compute(self, step: list[Slice]) -> None:
        """Launches a step. Where memory runs out, the ladder is climbed.

        What fails otherwise is done again alone, so that only those fail that cannot be computed.
        """
        work = f"a step of {len(step)} sequences, {sum(slice_.count for slice_ in step)} tokens"
        outcome = self._ladder.climb(work, self._rungs(step))
        self._progress_s = self._clock()
        if outcome.result is not None:
            self._settle(outcome.result)
            return
        self._land()
        if outcome.fault is Fault.MEMORY:
            self._settle(self._failures(step, NO_MEMORY))
        elif len(step) == 1:
            self._settle(self._failures(step, _FAILED))
        else:
            for slice_ in step:
                if wanted := self._wanted([slice_]):
                    self._compute(wanted)

    def _rungs(self, step: list[Slice]) -> Iterator[Rungs]:
        yield Rung.NONE, partial(self._launch, step)
        yield Rung.RECLAIM, partial(self._fall_back, Rung.RECLAIM, step, self._attempt)
        if sum(slice_.count for slice_ in step) > 1:
            yield Rung.HALVE, partial(self._fall_back, Rung.HALVE, step, self._in_halves)
        if self._books.running > 1:
            yield Rung.PREEMPT, partial(self._fall_back, Rung.PREEMPT, step, self._without_newest)
        if self._make_host is not None:
            yield Rung.HOST_CPU, partial(self._on_host, step, self._make_host)

    def _launch(self, step: list[Slice]) -> Results:
        """Starts a step, then hands out the tokens of the one in front; nothing is known of this one yet."""
        draws = self._draws(step)
        logits = self._runner.forward(step, self._flight)
        self._land()
        chosen = choose(logits, draws)
        with self._wake:
            self._books.launch(step)
        self._flight = Flight(step, chosen)
        return []

    def _land(self) -> None:
        """Waits for the tokens of the step in flight and hands them out."""
        flight, self._flight = self._flight, None
        if flight is not None:
            told, _ = self._ladder.attempt("reading the tokens of a step", flight.chosen.read)
            # Those that were preempted meanwhile miss theirs as well.
            lost: Results = [(slice_, errors.InternalFault(_FAILED)) for slice_ in flight.step]
            self._hand_out(lost if told is None else _results(flight.step, told))

    def _attempt(self, step: list[Slice]) -> Results:
        """A whole step at once; its tokens are waited for."""
        return _results(step, choose(self._runner.forward(step), self._draws(step)).read()) if step else []

    def _fall_back(self, rung: Rung, step: list[Slice], attempt: Callable[[list[Slice]], Results]) -> Results:
        self._land()
        results = attempt(self._wanted(step))
        for slice_, _ in results:
            if answer := self._books.answer_of(slice_):
                answer.job.note_rung(rung)
        return results

    def _in_halves(self, step: list[Slice]) -> Results:
        first, second = halves(step)
        whole = len(step) - len(second)
        return self._attempt(first)[:whole] + self._attempt(second)

    def _without_newest(self, step: list[Slice]) -> Results:
        """Results of those that still run; the others are computed anew later."""
        with self._wake:
            self._books.shrink()
        return self._in_halves(self._wanted(step))

    def _on_host(self, step: list[Slice], make_host: Callable[[], "LlamaEngine"]) -> Results:
        """Hands those that still run over to the host; an error for each that it has no room for."""
        self._land()
        host = self._host = self._host or started(make_host(), self._report)
        for answer in [self._books.answer_of(slice_) for slice_ in self._wanted(step)]:
            if answer is not None and answer.job.id in self._books.jobs:
                self._hand_over(answer.job, host)
        return self._failures(step, _NO_ROOM)

    def _hand_over(self, job: Job, host: "LlamaEngine") -> None:
        with self._wake, host._wake:
            if host._books.can_adopt(job):
                job.note_rung(Rung.HOST_CPU)
                self._books.part_with(job)
                host._adopt(job)

    def _draws(self, step: Sequence[Slice]) -> list[Draw]:
        return [answer.draw for s in step if s.samples and (answer := self._books.answer_of(s))]

    def _wanted(self, step: Sequence[Slice]) -> list[Slice]:
        """Those whose answers go on, and that have not been preempted."""
        return [slice_ for slice_ in step if slice_.sequence.pages and self._books.answer_of(slice_)]

    def _failures(self, step: Sequence[Slice], why: str) -> Results:
        return [(slice_, errors.InternalFault(why)) for slice_ in self._wanted(step)]

    def _settle(self, results: Results) -> None:
        """Enters in the books what was computed out of turn, and hands it out."""
        with self._wake:
            self._books.launch([slice_ for slice_, _ in results])
        self._hand_out(results)

    def _hand_out(self, results: Results) -> None:
        """Tells everyone what a step came to."""
        with self._wake:
            self._progress_s = now_s = self._clock()
            self._books.totals["steps"] += bool(results)
            messages = [message for slice_, result in results for message in self._messages(slice_, result, now_s)]
        self._tell_all(messages)

    def _messages(self, slice_: Slice, result: Result, now_s: float) -> list[Message]:
        answer = self._books.answer_of(slice_)
        if result is None or answer is None:
            return []
        job = answer.job
        if isinstance(result, errors.RequestError):
            return [self._end(job, result)]
        self._books.reveal(slice_, result.token_id)
        if job.cancelling:
            return []
        job.note_token(now_s)
        answer.note(result)
        try:
            chunk = answer.say(result)
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
            self._flight = None
        self._tell_all([(job, partial(job.outlet.fail, error)) for job in jobs])

    def _tell_all(self, messages: list[Message]) -> None:
        for job, message in messages:
            self._tell(job.id, message)


def _results(step: Sequence[Slice], choices: Sequence[Choice | None]) -> Results:
    """What each slice came to; `choices` belong to those that sample, in order."""
    told = iter(choices)
    return [(slice_, (next(told) or errors.InternalFault(_BROKEN)) if slice_.samples else None) for slice_ in step]
