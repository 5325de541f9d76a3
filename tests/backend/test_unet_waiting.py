"""How many batches of tiles a small image waits behind a large one, on a device that is as far behind as it can be."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from common.wire import Statement
from tests.backend.unet_kit import Pointwise, Recorder, expected, noise, request, running, submit

SMALL = noise(20, 20, seed=1)


class LazyDevice:
    """Computes only when somebody waits for it: no device is further behind the thread that gives it work."""

    def __init__(self) -> None:
        self.given = 0
        """Batches."""
        self.computed = 0

    def mark(self, device: torch.device) -> "LazyMark":
        """See :func:`backend.unet.marks.mark`; called behind each batch."""
        self.given += 1
        return LazyMark(self, self.given)


@dataclass(frozen=True)
class LazyMark:
    """Behind so many batches."""

    device: LazyDevice
    batches: int

    def synchronize(self) -> None:
        """Has the device compute them."""
        self.device.computed = max(self.device.computed, self.batches)


class Late(Recorder):
    """Of an image that comes while the device is at work."""

    def __init__(self, device: LazyDevice) -> None:
        super().__init__()
        self._device, self._computed = device, device.computed
        self.behind = -1
        """Batches that were not computed when it came, until the one that it was part of."""

    def finish(self, statement: Statement) -> None:
        self.behind = self._device.given - self._computed - 1
        super().finish(statement)


@pytest.mark.parametrize(("tile_batch", "most"), [(1, 3), (2, 2), (4, 2)])
def test_a_small_image_waits_for_what_was_given_and_chosen_already(tile_batch: int, most: int) -> None:
    """Each comes at the worst moment: a batch is computed, the next one has just been chosen.

    One batch more where batches are of a single tile: the large image and the small one take turns.
    """
    network, device = Pointwise(), LazyDevice()
    outlets: list[Late] = []
    with running(network, tile_batch=tile_batch, mark=device.mark) as unet:

        def come(images: torch.Tensor) -> None:
            if len(network.batches) % 6 == 3 and len(outlets) < 5:
                outlets.append(Late(device))
                unet.submit(request(SMALL), outlets[-1])

        network.before = come
        large = submit(unet, noise(300, 300))
        np.testing.assert_array_equal(large.mask, expected(noise(300, 300)))
        for outlet in outlets:
            np.testing.assert_array_equal(outlet.mask, expected(SMALL))
    assert [outlet.behind for outlet in outlets] == [most] * 5
