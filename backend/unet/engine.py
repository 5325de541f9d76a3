"""The UNet engine: one thread that cuts, computes, blends and hands out; everyone else only asks.

One turn of the thread: wait for the device; drop what is cancelled, late or broken; start what has a canvas; compute a
batch of tiles, taken in turn from all running requests; hand out what is complete. Images are decoded by threads of
their own. The lock covers the books; it is never held while tiles are computed or an outlet is called.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from backend.device import pick
from backend.engine import Footprint, Health, Outlet
from backend.fallback import NO_MEMORY, Rung, Step, deeper, reclaim
from backend.faults import Fault, is_sound
from backend.unet import host
from backend.unet.books import Books
from backend.unet.canary import Canary
from backend.unet.canvas import StripPool
from backend.unet.decoders import Decoded, Decoders
from backend.unet.job import Job
from backend.unet.load import limits_of, open_runner, pool_key, standing_of
from backend.unet.pools import Pools
from backend.unet.rehearsal import Rehearsal
from backend.unet.request import Mask, Segmentation
from backend.unet.runner import TileRunner
from backend.unet.tiles import cut
from backend.worker import Worker, started
from common import errors
from common.sections import Unet as UnetSettings
from common.settings import Settings
from common.wire import UNET_CANVAS, Statement
from estimator.unet import canvas_bytes

log = logging.getLogger(__name__)

FAILED_PASSES = 3
"""Forward passes that fail one after the other until the engine calls itself unready."""

Picks = list[tuple[Job, int]]
"""Jobs and their tiles, in the order of the batch's slots."""


def load(settings: Settings) -> "UnetEngine":
    """The engine that `settings` ask for, loaded and warm; raises SettingsError when it cannot be."""
    device = pick(settings)
    if settings.unet.threads is not None:
        torch.set_num_threads(settings.unet.threads)
    runner = open_runner(settings, device)
    make_host = partial(host_engine, runner, settings.unet) if host.is_allowed(runner, settings.unet) else None
    engine = UnetEngine(runner, settings.unet, make_host=make_host)
    engine.start()
    return engine


def host_engine(runner: TileRunner, settings: UnetSettings) -> "UnetEngine":
    """An engine on the host with the weights of `runner` in float32; not started."""
    return UnetEngine(host.open_runner(runner, settings), host.settings_of(runner, settings))


class UnetEngine(Worker[Segmentation, Mask]):
    """See :class:`backend.engine.Engine`. Call ``start`` once before anything else."""

    work = "tile"
    _books: Books
    _host: "UnetEngine | None"

    def __init__(
        self,
        runner: TileRunner,
        settings: UnetSettings,
        clock: Callable[[], float] = time.monotonic,
        host_pool: StripPool | None = None,
        make_host: "Callable[[], UnetEngine] | None" = None,
    ) -> None:
        """`host_pool`: canvases for when the device has no room; None makes one where the device is not the host.

        `make_host`: an engine on the host that goes on with what finds no memory here; None where there is none.
        """
        self.limits = limits = limits_of(runner, settings)
        self._runner = runner
        self._decoders = Decoders()
        self._failed_passes = 0
        self._pools = Pools(limits, runner.device, host_pool)
        self._make_host = make_host
        idle = Footprint(
            standing=standing_of(runner, limits),
            account=UNET_CANVAS,
            capacity_bytes=limits.canvas_bytes,
            pool_keys=(pool_key(runner),),
        )
        books = Books(limits, self._pools.device, self._pools.host, settings.max_waiting)
        super().__init__("unet", runner.device, books, idle, settings.stall_s, clock)

    def health(self) -> Health:
        """See :class:`backend.engine.Engine`."""
        health = super().health()
        if health.ready and self._failed_passes >= FAILED_PASSES:
            return Health(False, f"the last {self._failed_passes} forward passes failed")
        return health

    def close(self) -> None:
        """See :class:`backend.engine.Engine`."""
        super().close()
        self._decoders.close()

    def _open(self, request: Segmentation, outlet: Outlet[Mask], now_s: float) -> str:
        job = self._books.open(request, outlet, now_s)
        if request.encoded is None:
            job.image = request.image
            self._books.ready(job)
        else:
            job.decoding = self._decoders.submit(request, partial(self._decoded, job))
        return job.id

    def _turn(self) -> None:
        self._runner.wait()  # before anything is chosen, so that who comes meanwhile is in this batch
        with self._wake:
            unwanted = self._books.unwanted(self._clock())
        for job, error in unwanted:
            self._end(job, error)
        self._start_jobs()
        with self._wake:
            picks = self._books.pick(self._runner.tile_batch)
        if picks:
            self._compute(picks)
        self._progress_s = self._clock()

    def _start_jobs(self) -> None:
        while True:
            with self._wake:
                job = self._books.next_to_start()
            if job is None:
                return
            work = f"the start of {job.request.width} x {job.request.height} pixels"
            _, fault = self._ladder.attempt(work, partial(job.start, self.limits.classes, self._clock()))
            if fault is not None:
                self._begin_anew(job, fault)

    def _compute(self, picks: Picks) -> None:
        """One batch. Where memory runs out, the ladder is climbed.

        What fails otherwise is done again job by job, so that only those fail that cannot be computed.
        """
        outcome = self._ladder.climb(f"a batch of {len(picks)} tiles", self._rungs(picks))
        self._failed_passes = self._failed_passes + 1 if outcome.fault is Fault.WORK else 0
        jobs = list(dict.fromkeys(job for job, _ in picks if self._books.jobs.get(job.id) is job))  # not handed over
        if outcome.result is not None:
            for (job, tile), its_logits in zip(picks, outcome.result, strict=False):
                job.note_rung(outcome.rung)
                self._take(job, tile, its_logits)
        elif outcome.fault is Fault.WORK and len(jobs) > 1:
            for job in jobs:
                self._compute([(owner, tile) for owner, tile in picks if owner is job])
        else:
            failure = NO_MEMORY if outcome.fault is Fault.MEMORY else "the model failed on this image"
            for job in jobs:
                self._end(job, errors.InternalFault(failure))

    def _rungs(self, picks: Picks) -> Iterator[Step[Sequence[Tensor]]]:
        yield Rung.NONE, partial(self._forward, picks)
        yield Rung.RECLAIM, partial(self._forward, picks)
        if self._pools.can_leave:
            yield Rung.HOST_CANVAS, partial(self._with_host_canvases, picks)
        if len(picks) > 1:
            yield Rung.HALVE, partial(self._one_by_one, picks)
        if self._make_host is not None:
            yield Rung.HOST_CPU, partial(self._on_host, picks, self._make_host)

    def _forward(self, picks: Picks) -> Sequence[Tensor]:
        """Logits of the tiles."""
        for slot, (job, tile) in zip(self._runner.slots(), picks, strict=False):
            assert job.image is not None
            cut(job.image, job.grid, tile, slot)
        return list(self._runner.run(len(picks)))

    def _with_host_canvases(self, picks: Picks) -> Sequence[Tensor]:
        self._retreat()
        return self._forward(picks)

    def _one_by_one(self, picks: Picks) -> Sequence[Tensor]:
        return [logits.clone() for pick in picks for logits in self._forward([pick])]

    def _on_host(self, picks: Picks, make_host: "Callable[[], UnetEngine]") -> Sequence[Tensor]:
        """Hands the jobs over to the host, or ends them where it is full: there are no logits of theirs here."""
        host = self._host = self._host or started(make_host(), self._report)
        for job in dict.fromkeys(job for job, _ in picks):
            if not host._books.can_adopt:
                self._end(job, errors.InternalFault("memory ran out, and the host has no room for more"))
                continue
            self._pools.send(job)
            job.note_rung(Rung.HOST_CPU)
            with self._wake, host._wake:
                self._books.part_with(job)
                host._rouse()
                host._books.adopt(job)
        return []

    def _take(self, job: Job, tile: int, logits: Tensor) -> None:
        if job.ended or tile != job.done:  # it begins anew: this is a tile of its first try
            return
        _, fault = self._ladder.attempt(f"taking in tile {tile}", partial(self._pools.take, job, tile, logits))
        if fault is not None:
            self._begin_anew(job, fault)
        elif job.is_complete:
            self._end(job, None)

    def _begin_anew(self, job: Job, fault: Fault) -> None:
        """After a fault outside the network: the image is begun anew, on its next rung while there is one.

        What was half done cannot be done again: parts of it are in the canvas and in the answer already.
        """
        if fault is not Fault.MEMORY:
            self._end(job, errors.InternalFault("the answer could not be put together"))
            return
        rungs = (Rung.RECLAIM, Rung.HOST_CANVAS) if self._pools.is_on_device(job) else (Rung.RECLAIM,)
        rung = next((rung for rung in rungs if deeper(job.rung, rung) is not job.rung), Rung.FAILED)
        self._ladder.count(rung)
        if rung is Rung.FAILED:
            self._end(job, errors.InternalFault(NO_MEMORY))
            return
        with self._wake:
            self._books.again(job)
        job.note_rung(rung)
        if rung is Rung.HOST_CANVAS:
            self._pools.send(job)

    @property
    def away_bytes(self) -> int:
        """See :class:`backend.engine.Engine`."""
        return self._pools.away_bytes

    def _retreat(self) -> None:
        if self._pools.can_leave:
            self._pools.leave(list(self._books.jobs.values()))
            log.warning("canvases are on the host now; %d bytes went back to the card", reclaim(self._torch_device))

    def _advance(self) -> None:
        if self._pools.away_bytes:
            _, fault = self._ladder.attempt("the pool of canvases", self._pools.device.restore)
            log.warning("canvases are %s", "on the device again" if fault is None else "still on the host")

    def _end(self, job: Job, error: errors.RequestError | None) -> None:
        """Takes a job out of the books, then tells its outlet; the work on the device has ended by then.

        Raises DeviceLost where the device is.
        """
        if not is_sound(self._torch_device):
            raise errors.DeviceLost("what was left to do for a request failed")
        self._dismiss(job, error)

    def _dismiss(self, job: Job, error: errors.RequestError | None) -> None:
        statement = job.statement(self._clock(), self._peak_bytes)
        with self._wake:
            self._books.end(job, error)
        if error is not None:
            self._tell(job.id, partial(job.outlet.fail, error))
        else:
            assert job.answer is not None
            self._tell(job.id, partial(_answer, job.outlet, job.answer.mask(), statement))

    def _abandon(self, error: errors.RequestError) -> None:
        is_sound(self._torch_device)  # by then the work on the device has ended, or never will
        with self._wake:
            jobs = list(self._books.jobs.values())
        for job in jobs:
            self._dismiss(job, error)

    def _decoded(self, job: Job, decoded: Decoded) -> None:
        """Called by a decoder's thread."""
        with self._wake:
            if not job.ended:
                job.image, job.failure, job.decode_s = decoded.image, decoded.failure, decoded.seconds
                job.request = replace(job.request, encoded=None)
                self._rouse()
                self._books.ready(job)

    def _warm_up(self) -> Canary:
        """Every shape of the network, then one image that needs a canvas, on the way that requests go."""
        self._runner.warm_up()
        rehearsal = Rehearsal(self.limits, in_full=self._runner.device.type == "cuda")
        image = rehearsal.request
        if canvas_bytes(image.height, image.width, self.limits) <= self.limits.canvas_bytes:
            self.submit(image, rehearsal)
            while self._books.jobs:
                self._turn()
            if rehearsal.error is not None:
                raise rehearsal.error
            self._books.totals.clear()
        return Canary(self._runner)


def _answer(outlet: Outlet[Mask], mask: Mask, statement: Statement) -> None:
    outlet.put(mask)
    outlet.finish(statement)
