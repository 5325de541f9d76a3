"""One request while the engine works on it."""

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from backend.engine import Outlet
from backend.fallback import Rung, deeper
from backend.unet.answer import Answer
from backend.unet.canvas import Canvas, Piece, StripPool
from backend.unet.request import Mask, Segmentation
from backend.unet.workspace import Workspace
from common.errors import RequestError
from common.wire import UNET_CANVAS, Statement
from estimator.unet import TileGrid


@dataclass(eq=False)
class Job:
    """Decoded by one thread, then touched by the engine's thread only; the flags are guarded by the engine's lock."""

    id: str
    request: Segmentation
    outlet: Outlet[Mask]
    grid: TileGrid
    pool: StripPool
    """Where its canvas comes from."""
    on_host: bool
    """The pool is not the device's, though the engine's is."""
    arrived_s: float
    image: NDArray[np.uint8] | None = field(default=None, repr=False)
    failure: RequestError | None = None
    """Why the image could not be decoded."""
    decoding: Future[None] | None = None
    """Where its image is made, if it came encoded."""
    rung: Rung = Rung.NONE
    """The deepest that it needed; that of the host's canvas too where its lease pays for no other."""
    cancelling: bool = False
    ended: bool = False
    decode_s: float = 0.0
    started_s: float | None = None
    picked: int = 0
    """Tiles that have been given to a batch."""
    done: int = 0
    """Tiles whose logits have been taken in."""
    held_bytes: int = 0
    """Of the canvas account."""
    canvas: Canvas | None = field(default=None, repr=False)
    answer: Answer | None = field(default=None, repr=False)

    @property
    def is_complete(self) -> bool:
        """Every tile is in."""
        return self.done == self.grid.tiles

    def is_late(self, now_s: float) -> bool:
        """The time that the lease gives is used up."""
        return self.request.lease is not None and now_s - self.arrived_s >= self.request.lease.deadline_s

    def forgo_image(self) -> bool:
        """Whether its image was still to be decoded, and now never is; the first call decides."""
        decoding, self.decoding = self.decoding, None
        return decoding is not None and decoding.cancel()

    def start(self, classes: int, now_s: float) -> None:
        """Takes the canvas and the room for the answer; there must be as many free strips as the grid has."""
        self.started_s = now_s
        self.answer = Answer(self.request, classes)
        if not self.grid.is_single:
            self.canvas = Canvas(self.grid, self.pool)
            self.held_bytes = 0 if self.on_host else self.canvas.held_bytes

    def take(self, tile: int, logits: Tensor, workspace: Workspace) -> None:
        """Takes in a tile's logits, float16 [C, T, T]; `workspace` is where its canvas is, or else where they are."""
        assert self.answer is not None
        if self.canvas is None:
            self.answer.write(Piece(range(self.request.height), 0, logits[None]), workspace)
        else:
            self.canvas.add(tile, logits)
            for piece in self.canvas.finish(tile, workspace):
                self.answer.write(piece, workspace)
        self.done += 1

    def note_rung(self, rung: Rung) -> None:
        """Memory ran out for it, and this was done."""
        self.rung = deeper(self.rung, rung)

    def go_to_host(self, pool: StripPool) -> None:
        """Goes on with a canvas of `pool`, on the host; what has been taken in stays."""
        if self.canvas is not None:
            self.canvas.move_to(pool)
        self.pool, self.on_host, self.held_bytes = pool, True, 0
        self.note_rung(Rung.HOST_CANVAS)

    def forget(self) -> None:
        """Back to where it was before it started: no canvas, no answer, no tile taken."""
        if self.canvas is not None:
            self.canvas.close()
        self.canvas, self.answer, self.started_s = None, None, None
        self.picked = self.done = self.held_bytes = 0

    def release(self) -> None:
        """Gives the canvas back and forgets the pixels."""
        self.ended = True
        self.held_bytes = 0
        self.image = None
        if self.canvas is not None:
            self.canvas.close()

    def statement(self, now_s: float, process_peak_bytes: int) -> Statement:
        """What it was quoted, held and used."""
        lease, started_s = self.request.lease, self.started_s if self.started_s is not None else now_s
        return Statement(
            lease=lease.id if lease else None,
            model="unet",
            quoted_bytes=lease.lines.get(UNET_CANVAS, 0) if lease else 0,
            held_bytes=self.held_bytes,
            process_peak_bytes=process_peak_bytes,
            rung=self.rung,
            queue_s=started_s - self.arrived_s,
            run_s=now_s - started_s,
            pixels=self.request.height * self.request.width,
            tiles=self.grid.tiles,
            canvas_bytes=self.grid.strips * self.pool.strip_bytes,
            decode_image_s=self.decode_s,
        )
