"""What the engine has in hand: requests in line, requests in rotation, cancelled ids, counters. No thread, no lock."""

import uuid
from collections import Counter, deque

from backend.engine import Outlet
from backend.fallback import Rung
from backend.tombstones import Tombstones
from backend.unet.canvas import StripPool
from backend.unet.job import Job
from backend.unet.request import Mask, Segmentation
from common import errors
from common.wire import ActiveLease, CancelOutcome, UnetLimits
from estimator.unet import grid


class Books:
    """The state of the engine's work. Its owner holds a lock around every call.

    A job is opened, becomes ready when its image is decoded, starts when there is a canvas for it, gives its tiles to
    batches in rotation with the others, and ends.
    """

    def __init__(self, limits: UnetLimits, pool: StripPool, host_pool: StripPool, max_waiting: int) -> None:
        """`host_pool` serves requests whose lease does not pay for a canvas of `pool`; it may be the same pool."""
        self._limits = limits
        self._pool = pool
        self._host_pool = host_pool
        self._max_waiting = max_waiting
        self._line: deque[Job] = deque()
        self._rotation: deque[Job] = deque()
        self._tombstones = Tombstones()
        self.jobs: dict[str, Job] = {}
        """Work id -> job, from the moment it is accepted until it has ended."""
        self.totals: Counter[str] = Counter()
        """Counters since boot."""

    def open(self, request: Segmentation, outlet: Outlet[Mask], now_s: float) -> Job:
        """Enters a request; raises RequestError when it is refused."""
        work_id = request.lease.id if request.lease else f"direct-{uuid.uuid4().hex}"
        tiles = grid(self._limits, request.height, request.width)
        canvas_bytes = tiles.strips * self._pool.strip_bytes
        self._check_admissible(work_id, canvas_bytes)
        paid_bytes = request.lease.canvas_bytes if request.lease else None
        pool = self._host_pool if paid_bytes is not None and paid_bytes < canvas_bytes else self._pool
        job = Job(work_id, request, outlet, tiles, pool, on_host=pool is not self._pool, arrived_s=now_s)
        job.rung = Rung.HOST_CANVAS if job.on_host else Rung.NONE
        self.jobs[work_id] = job
        self.totals["requests"] += 1
        return job

    def cancel(self, work_id: str) -> CancelOutcome:
        """Marks a job for :meth:`unwanted`; an id that is unknown is refused if it comes later."""
        if job := self.jobs.get(work_id):
            job.cancelling = True
            if job.forgo_image():
                self.ready(job)
            return CancelOutcome.CANCELLED
        self._tombstones.add(work_id)
        return CancelOutcome.UNKNOWN

    def ready(self, job: Job) -> None:
        """The job's image is decoded, has failed or never will be: it goes to the end of the line."""
        self._line.append(job)

    @property
    def has_work(self) -> bool:
        """There is something for the engine's thread to do."""
        return bool(self._line or self._rotation)

    def unwanted(self, now_s: float) -> list[tuple[Job, errors.RequestError]]:
        """Decoded jobs that must not go on, and why."""
        found: list[tuple[Job, errors.RequestError]] = []
        for job in (*self._line, *self._rotation):
            if job.cancelling:
                found.append((job, errors.Cancelled("the request was cancelled")))
            elif job.failure is not None:
                found.append((job, job.failure))
            elif job.is_late(now_s):
                found.append((job, errors.DeadlineExceeded("the time for this request is used up")))
        return found

    def next_to_start(self) -> Job | None:
        """The first job in line that can start, moved into the rotation.

        One that needs no canvas passes those that wait for theirs; among these the order of arrival holds. One without
        an image stays for :meth:`unwanted`: it may have failed since that was asked.
        """
        blocked: set[int] = set()
        for job in self._line:
            if job.image is None:
                continue
            if job.grid.strips and job.pool.is_released:
                job.go_to_host(self._host_pool)
            if job.grid.strips and (id(job.pool) in blocked or job.grid.strips > job.pool.free):
                blocked.add(id(job.pool))
                continue
            self._line.remove(job)
            self._rotation.append(job)
            return job
        return None

    def pick(self, count: int) -> list[tuple[Job, int]]:
        """Up to `count` tiles for one batch, one of each job in turn; a job's own tiles keep their order."""
        picks: list[tuple[Job, int]] = []
        while self._rotation and len(picks) < count:
            job = self._rotation.popleft()
            picks.append((job, job.picked))
            job.picked += 1
            if job.picked < job.grid.tiles:
                self._rotation.append(job)
        self.totals["tiles"] += len(picks)
        return picks

    def again(self, job: Job) -> None:
        """A job begins anew, before all others."""
        self._leave_queues(job)
        job.forget()
        self._line.appendleft(job)

    @property
    def can_adopt(self) -> bool:
        """Whether there is room for a job of other books."""
        return len(self.jobs) < self._max_waiting

    def part_with(self, job: Job) -> None:
        """Takes a job out for other books to adopt, with its canvas, which must lie on the host, and its answer."""
        self._leave_queues(job)
        self.jobs.pop(job.id, None)

    def adopt(self, job: Job) -> None:
        """Goes on with a job of other books that has started, after the last tile that was taken in."""
        self.jobs[job.id] = job
        job.picked = job.done
        self._rotation.append(job)

    def end(self, job: Job, error: errors.RequestError | None) -> None:
        """Takes a job out, with all it holds."""
        self._leave_queues(job)
        self.jobs.pop(job.id, None)
        job.release()
        self.totals["ended_" + (error.kind.prefix.lower() if error else "well")] += 1

    @property
    def used_bytes(self) -> int:
        """Bytes of the canvas account that are held."""
        return sum(job.held_bytes for job in self.jobs.values())

    @property
    def unleased_bytes(self) -> int:
        """The part held for work without a lease."""
        return sum(job.held_bytes for job in self.jobs.values() if job.request.lease is None)

    @property
    def leases(self) -> tuple[ActiveLease, ...]:
        """Leased work, with what it holds."""
        return tuple(
            ActiveLease(job.id, job.held_bytes, job.cancelling, job.request.lease.lines)
            for job in self.jobs.values()
            if job.request.lease is not None
        )

    def _leave_queues(self, job: Job) -> None:
        for queue in (self._line, self._rotation):
            if job in queue:
                queue.remove(job)

    def _check_admissible(self, work_id: str, canvas_bytes: int) -> None:
        self._tombstones.refuse(work_id)
        if work_id in self.jobs:
            raise errors.InvalidRequest("lease: this id is in use by another request", param="lease")
        if canvas_bytes > self._limits.canvas_bytes:
            raise errors.NeverFits(
                f"the image needs a canvas of {canvas_bytes:,} bytes, there are {self._limits.canvas_bytes:,}",
                numbers={"price_bytes": canvas_bytes, "capacity_bytes": self._limits.canvas_bytes},
            )
        waiting = sum(job.started_s is None for job in self.jobs.values())
        if waiting >= self._max_waiting:
            raise errors.NotNow(f"{waiting} requests wait already", retry_after_s=1.0)
