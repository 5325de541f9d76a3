"""What the engine has in hand: requests, their sequences, cancelled ids, counters. No thread, no lock, no tensors."""

import itertools
import uuid
from collections import Counter
from collections.abc import Sequence

from backend.engine import Outlet
from backend.llama.flight import stand_in
from backend.llama.job import Answer, Job
from backend.llama.pages import PageMap
from backend.llama.request import Chunk, Generation
from backend.llama.scheduler import Scheduler, Slice
from backend.llama.scheduler import Sequence as Tokens
from backend.tombstones import Tombstones
from common import errors
from common.sections import Llama
from common.tokenizer import Tokenizer
from common.wire import ActiveLease, CancelOutcome, LlamaLimits
from estimator.llama import pages_for


class Books:
    """The state of the engine's work. Its owner holds a lock around every call."""

    def __init__(self, limits: LlamaLimits, settings: Llama, tokenizer: Tokenizer) -> None:
        self._limits = limits
        self._settings = settings
        self._tokenizer = tokenizer
        self._lazily = settings.oversubscribe > 1
        self._scheduler = self._new_scheduler()
        self._answers: dict[Tokens, Answer] = {}
        self._tombstones = Tombstones()
        self._dirty: list[int] = []
        self.jobs: dict[str, Job] = {}
        """Work id -> job."""
        self.totals: Counter[str] = Counter()
        """Counters since boot."""

    def open(self, request: Generation, outlet: Outlet[Chunk], now_s: float) -> str:
        """Enters a request at the end of the line; raises RequestError when it is refused. Returns its work id."""
        work_id = request.lease.id if request.lease else f"direct-{uuid.uuid4().hex}"
        self._check_admissible(work_id, request)
        job = Job(work_id, request, outlet, now_s, self._limits.page_bytes)
        job.answers = [Answer(job, index, self._tokenizer) for index in range(request.n)]
        self.jobs[work_id] = job
        for answer in job.answers:
            self._answers[answer.sequence] = answer
            self._scheduler.add(answer.sequence)
        self.totals["requests"] += 1
        return work_id

    def cancel(self, work_id: str) -> CancelOutcome:
        """Marks a job for :meth:`unwanted`; an id that is unknown is refused if it comes later."""
        if job := self.jobs.get(work_id):
            job.cancelling = True
            return CancelOutcome.CANCELLED
        self._tombstones.add(work_id)
        return CancelOutcome.UNKNOWN

    @property
    def has_work(self) -> bool:
        """There is something for the engine's thread to do."""
        return bool(self.jobs)

    def unwanted(self, now_s: float) -> list[tuple[Job, errors.RequestError]]:
        """Jobs that must not go on, and why."""
        found: list[tuple[Job, errors.RequestError]] = []
        for job in self.jobs.values():
            if job.cancelling:
                found.append((job, errors.Cancelled("the request was cancelled")))
            elif now_s >= job.late_s:
                found.append((job, errors.DeadlineExceeded("the time for this request is used up")))
        return found

    def plan(self, now_s: float) -> list[Slice]:
        """The next step."""
        step = self._scheduler.plan()
        for slice_ in step:
            # Only where a sequence starts, or takes pages as it grows, does what its job holds change.
            if slice_.start == 0 or self._lazily:
                self._answers[slice_.sequence].job.note_step(now_s)
        return step

    def answer_of(self, slice_: Slice) -> Answer | None:
        """Whose tokens these are; None when they are no longer wanted."""
        answer = self._answers.get(slice_.sequence)
        return answer if answer is not None and answer.finish_reason is None else None

    def launch(self, step: Sequence[Slice]) -> None:
        """Records that a step goes through the model; until its tokens are known, others stand for them."""
        rows = itertools.count()
        for slice_ in step:
            token_id = stand_in(next(rows)) if slice_.samples else None
            if self.answer_of(slice_) is not None:
                self._scheduler.advance(slice_, token_id)

    def reveal(self, slice_: Slice, token_id: int) -> None:
        """Enters the token that a slice came to."""
        slice_.sequence.tokens[slice_.end] = token_id
        self.totals["output_tokens"] += 1

    def retire(self, answer: Answer) -> None:
        """Frees the pages of a sequence that has come to its end."""
        self._scheduler.remove(answer.sequence)

    def end(self, job: Job, error: errors.RequestError | None) -> None:
        """Takes a job out, with all it holds."""
        pages = self._take_out(job)
        self._dirty += pages if error else []
        self.totals["prompt_tokens"] += len(job.generation.prompt_ids)
        self.totals["preemptions"] += sum(answer.sequence.preemptions for answer in job.answers)
        self._count_end(error)

    def shrink(self) -> None:
        """Memory ran out: the newer half of what runs gives its pages back and is computed anew later."""
        self._scheduler.shrink()

    @property
    def running(self) -> int:
        """Sequences that have started and not come to their end."""
        return len(self._scheduler.running)

    def can_adopt(self, job: Job) -> bool:
        """Whether there is room for a job of other books."""
        pages = pages_for(job.answers[0].sequence.most_tokens, self._limits.page_tokens)
        return pages <= self._limits.pages and len(self.jobs) < self._settings.max_waiting

    def adopt(self, job: Job) -> None:
        """Enters a job of other books at the end of the line; what it has said so far stands."""
        self.jobs[job.id] = job
        for answer in job.answers:
            self._answers[answer.sequence] = answer
            if answer.finish_reason is None:
                self._scheduler.add(answer.sequence)

    def part_with(self, job: Job) -> None:
        """Takes a job out for other books to adopt: what it holds is given back, what it has said so far stands."""
        self._dirty += self._take_out(job)
        for answer in job.answers:
            answer.sequence.computed = 0

    def abandon(self, error: errors.RequestError) -> list[Job]:
        """Back to empty books, whatever state they are in; returns the jobs that were in them."""
        jobs = list(self.jobs.values())
        self.jobs.clear()
        self._answers.clear()
        self._dirty = list(range(self._limits.pages))
        self._scheduler = self._new_scheduler()
        for _ in jobs:
            self._count_end(error)
        return jobs

    def take_dirty(self) -> list[int]:
        """Pages whose owner gave way or did not end well since the last call: they may hold what is no number."""
        dirty, self._dirty = self._dirty + self._scheduler.preempted_pages, []
        self._scheduler.preempted_pages = []
        return dirty

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages that are held."""
        return self._scheduler.pages.used * self._limits.page_bytes

    @property
    def unleased_bytes(self) -> int:
        """The part held for work without a lease."""
        return sum(job.held_pages for job in self.jobs.values() if not job.generation.lease) * self._limits.page_bytes

    @property
    def leases(self) -> tuple[ActiveLease, ...]:
        """Leased work, with what it holds."""
        return tuple(
            ActiveLease(job.id, job.held_pages * self._limits.page_bytes, job.cancelling, job.generation.lease.lines)
            for job in self.jobs.values()
            if job.generation.lease
        )

    def check(self) -> None:
        """Raises ValueError, printing the equation, when pages and sequences do not add up."""
        self._scheduler.check()

    def _take_out(self, job: Job) -> list[int]:
        """Forgets a job; returns the pages that became free."""
        self.jobs.pop(job.id, None)
        pages = []
        for answer in job.answers:
            pages += self._scheduler.remove(answer.sequence)
            self._answers.pop(answer.sequence, None)
        return pages

    def _check_admissible(self, work_id: str, request: Generation) -> None:
        self._tombstones.refuse(work_id)
        if work_id in self.jobs:
            raise errors.InvalidRequest("lease: this id is in use by another request", param="lease")
        pages = pages_for(len(request.prompt_ids) + request.max_tokens, self._limits.page_tokens)
        if pages > self._limits.pages:
            raise errors.NeverFits(
                f"{pages:,} pages are needed, the pool has {self._limits.pages:,}",
                numbers={
                    "price_bytes": pages * self._limits.page_bytes,
                    "capacity_bytes": self._limits.pages * self._limits.page_bytes,
                },
            )
        waiting = sum(job.started_s is None for job in self.jobs.values())
        if waiting >= self._settings.max_waiting:
            raise errors.NotNow(f"{waiting} requests wait already", retry_after_s=1.0)

    def _count_end(self, error: errors.RequestError | None) -> None:
        self.totals["ended_" + (error.kind.prefix.lower() if error else "well")] += 1

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(
            PageMap(self._limits.pages),
            self._limits.page_tokens,
            self._settings.step_tokens,
            self._settings.max_batch,
            lazily=self._lazily,
        )
