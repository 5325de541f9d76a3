"""What blending and reducing takes of a device is there from the start: no image needs more of it than another."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from backend.unet.canvas import StripPool
from backend.unet.job import Job
from backend.unet.rehearsal import Rehearsal
from backend.unet.request import Segmentation
from backend.unet.workspace import Workspace
from estimator.unet import STAGED_STRIPS, UnetShape, grid, staging_bytes
from tests.backend.unet_kit import TILE, Recorder, limits, noise, request

CPU = torch.device("cpu")
OVERLAP = TILE // 4
STRIPS = 4 * STAGED_STRIPS


class Live(TorchDispatchMode):
    """Bytes of what operators made and somebody still holds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.highest_bytes = 0
        self._made: list[tuple[StorageWeakRef, int]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """There is nothing to skip; torch would import all of its compiler to do so."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage()._cdata for leaf in _tensors((args, kwargs))}
        result = func(*args, **kwargs or {})
        for storage in (leaf.untyped_storage() for leaf in _tensors(result)):
            if storage._cdata not in given:
                made = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._made.append((made, storage.nbytes()))
        self._made = [(made, size_bytes) for made, size_bytes in self._made if not made.expired()]  # type: ignore[no-untyped-call]
        self.highest_bytes = max(self.highest_bytes, sum(size_bytes for _, size_bytes in self._made))
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def highest_bytes(asked: Segmentation, pool: StripPool, workspace: Workspace, classes: int) -> int:
    """What is made beside pool, workspace and logits, at the most, until the mask of `asked` is whole."""
    tiles = grid(limits(classes, strips=STRIPS), asked.height, asked.width)
    job = Job("a", asked, Recorder(), tiles, pool, on_host=False, arrived_s=0.0)
    logits = torch.ones(classes, TILE, TILE, dtype=torch.half)
    live = Live()
    with live:
        job.start(classes, 0.0)
        for tile in range(tiles.tiles):
            job.take(tile, logits, workspace)
    job.release()
    return live.highest_bytes


@pytest.mark.parametrize("classes", [1, 3])
def test_no_image_takes_more_than_the_one_that_warms_up(classes: int) -> None:
    """Of one tile, narrow, nearly as wide as one staging step, and wider than two."""
    bounds = limits(classes, strips=STRIPS)
    pool, workspace = StripPool(bounds, CPU), Workspace(bounds, CPU)
    warm_bytes = highest_bytes(Rehearsal(bounds, in_full=True).request, pool, workspace, classes)
    step = STAGED_STRIPS * OVERLAP
    for size in ((1, 1), (90, 70), (TILE + 1, step - 3), (2 * TILE, 2 * step + 5)):
        assert highest_bytes(request(noise(*size)), pool, workspace, classes) <= warm_bytes
    one_staged_row_bytes = step * torch.half.itemsize
    assert warm_bytes < one_staged_row_bytes


@pytest.mark.parametrize("classes", [1, 2, 7])
def test_a_workspace_and_the_blend_weights_are_what_blending_stands_on(classes: int) -> None:
    bounds = limits(classes)
    held_bytes = Workspace(bounds, CPU).held_bytes + StripPool(bounds, CPU).weights.nbytes
    assert held_bytes == staging_bytes(UnetShape(4, classes), TILE)
