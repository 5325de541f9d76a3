"""Where the logits of overlapping tiles are added up: a pool of equal strips, and canvases made of them.

A canvas holds one row of tiles. When the row is complete, the image rows above the next one are finished: they are
handed out, what overlaps the next row moves up, and the rest is cleared. So a canvas is as high as a tile, whatever the
image.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.unet.tiles import blend_weights
from backend.unet.workspace import Workspace
from common.wire import UnetLimits
from estimator.unet import STAGED_STRIPS, TileGrid, strip_bytes


@dataclass(frozen=True)
class Piece:
    """Finished logits of a part of the image."""

    rows: range
    """Image rows."""
    column: int
    """First image column; columns beyond the image's edge are padding."""
    logits: Tensor
    """[strips, C, at least len(rows), strip width]: strips lie side by side; rows beyond are padding as well."""


class StripPool:
    """Strips of float16 [C, tile, overlap] on one device, allocated once, with the blend weights; not thread-safe.

    On the host an allocation becomes memory where it is written first: strips that were never taken are not resident.
    """

    def __init__(self, limits: UnetLimits, device: torch.device) -> None:
        """As many strips as the account's capacity in `limits` holds."""
        tile, overlap = limits.tile_pixels, limits.overlap_pixels
        self.strip_bytes = strip_bytes(limits.classes, tile, overlap, limits.canvas_itemsize)
        self.strips = limits.canvas_bytes // self.strip_bytes
        self.logits = torch.empty(self.strips, limits.classes, tile, overlap, dtype=torch.half, device=device)
        self.weights = blend_weights(tile, overlap).to(device)
        self._free = list(range(self.strips))

    @property
    def free(self) -> int:
        """Strips that nobody holds."""
        return len(self._free)

    @property
    def used_bytes(self) -> int:
        """Bytes of the strips that are held."""
        return (self.strips - self.free) * self.strip_bytes

    @property
    def is_released(self) -> bool:
        """Its memory was given back."""
        return len(self.logits) < self.strips

    def release(self) -> None:
        """Gives its memory back until ``restore``; raises ValueError while anybody holds a strip."""
        if self.free < self.strips:
            raise ValueError(f"{self.strips - self.free} strips are held")
        self.logits, self._free = self.logits[:0].clone(), []

    def restore(self) -> None:
        """Takes its memory again; raises what the allocator raises."""
        self.logits = self.logits.new_empty(self.strips, *self.logits.shape[1:])
        self._free = list(range(self.strips))

    def take(self, count: int) -> list[int]:
        """Indices of `count` strips, cleared; the caller has looked at `free`."""
        if count > self.free:
            raise ValueError(f"{count} strips asked of {self.free}")
        taken = [self._free.pop() for _ in range(count)]
        try:
            for part in _parts(taken):
                self.logits.index_fill_(0, self.indices(part), 0)
        except BaseException:
            self.give_back(taken)
            raise
        return taken

    def indices(self, strips: list[int]) -> Tensor:
        """`strips` on the pool's device; where that is not the host nothing waits for them."""
        on_host = self.logits.device.type == "cpu"
        return torch.tensor(strips, pin_memory=not on_host).to(self.logits.device, non_blocking=True)

    def give_back(self, strips: list[int]) -> None:
        """Makes strips free again."""
        self._free.extend(strips)


class Canvas:
    """The canvas of one image: tiles are added in order, each finished before the next; closing twice is no harm."""

    def __init__(self, grid: TileGrid, pool: StripPool) -> None:
        """Takes the grid's strips from the pool."""
        self._grid = grid
        self._pool = pool
        self._strips = pool.take(grid.strips)

    @property
    def held_bytes(self) -> int:
        """Bytes of the pool that this canvas holds."""
        return len(self._strips) * self._pool.strip_bytes

    def add(self, tile: int, logits: Tensor) -> None:
        """Adds a tile's logits, float16 [C, T, T], which are changed."""
        grid = self._grid
        rows, columns = grid.shared(tile)
        logits = logits.to(self._pool.weights.device)
        logits.mul_(self._pool.weights[rows][:, None]).mul_(self._pool.weights[columns])
        first = grid.origin(tile)[1] // grid.overlap_pixels
        for offset, part in enumerate(torch.split(logits, grid.overlap_pixels, dim=2)):
            self._pool.logits[self._strips[first + offset]].add_(part)

    def finish(self, tile: int, workspace: Workspace) -> Iterator[Piece]:
        """What the image gains by this tile: nothing, or, at the end of a row of tiles, the finished image rows.

        A piece lies in `workspace`, on the pool's device, and is gone when the next one is asked for.
        """
        row, tile_column = self._grid.position(tile)
        if tile_column < self._grid.columns - 1:
            return
        rows = self._grid.finished_rows(row)
        column = 0
        for part in _parts(self._strips):
            finished = self._pool.logits[:, :, : len(rows)]
            yield Piece(rows, column, workspace.gather(finished, self._pool.indices(part)))
            if row < self._grid.rows - 1:
                self._move_up(self._pool.indices(part), len(rows), workspace)
            column += len(part) * self._grid.overlap_pixels

    def move_to(self, pool: StripPool) -> None:
        """Goes on in strips of another pool; allocates nothing on either device."""
        taken = pool.take(len(self._strips))
        for old, new in zip(self._strips, taken, strict=True):
            pool.logits[new].copy_(self._pool.logits[old])
        self.close()
        self._pool, self._strips = pool, taken

    def close(self) -> None:
        """Gives the strips back."""
        self._pool.give_back(self._strips)
        self._strips = []

    def _move_up(self, indices: Tensor, rows: int, workspace: Workspace) -> None:
        """Drops the first `rows` rows of some strips; as many empty ones come in below."""
        logits = self._pool.logits
        kept = workspace.gather(logits[:, :, rows:], indices)
        logits[:, :, :-rows].index_copy_(0, indices, kept)
        logits[:, :, -rows:].index_fill_(0, indices, 0)


def _parts(strips: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(strips), STAGED_STRIPS):
        yield strips[start : start + STAGED_STRIPS]
