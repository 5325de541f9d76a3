"""When memory runs out for the segmentation model, a rung of the ladder answers with the same mask, and says so."""

import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from backend.unet import answer, host
from backend.unet.canvas import StripPool
from backend.unet.runner import TileRunner
from common import errors
from common.sections import Unet
from tests.backend.unet_kit import (
    TILE,
    Gate,
    Pointwise,
    Recorder,
    expected,
    lease,
    request,
    running,
    strip_bytes_of,
    submit,
)
from tests.backend.unet_shortage import IMAGES, STRIPS, all_masks, assert_right, failing, opened, refuse, rungs


@pytest.fixture
def network() -> Pointwise:
    return Pointwise()


def test_a_batch_whose_memory_is_back_is_simply_done_again(network: Pointwise) -> None:
    with opened(network) as unet:
        network.before = failing(0)
        outlets = all_masks(unet, network)
        assert_right(outlets)
        assert rungs(outlets) == {"none", "reclaim"}
        assert unet.footprint().totals["oom_reclaim"] == 1


def test_canvases_go_to_the_host_and_their_pool_back_to_the_card_in_the_middle_of_an_image(network: Pointwise) -> None:
    with opened(network) as unet:
        network.before = failing(3, 4)
        outlets = all_masks(unet, network)
        assert_right(outlets)
        assert "host_canvas" in rungs(outlets)
        assert unet.away_bytes == STRIPS * strip_bytes_of()
        assert unet.footprint().used_bytes == 0
        # Until the pool is taken back, every canvas is on the host, and says so.
        outlets = all_masks(unet, network)
        assert_right(outlets)
        assert rungs(outlets) == {"none", "host_canvas"}
        unet.advance()
        outlets = all_masks(unet, network)
        assert_right(outlets)
        assert rungs(outlets) == {"none"}
        assert unet.away_bytes == 0


def test_a_batch_that_fits_only_in_pieces_is_computed_tile_by_tile(network: Pointwise) -> None:
    def more_than_one(images: torch.Tensor) -> None:
        if len(images) > 1:
            refuse()

    with opened(network) as unet:
        network.before = more_than_one
        outlets = all_masks(unet, network)
        assert_right(outlets)
        assert "halve" in rungs(outlets)
        assert "oom_failed" not in unet.footprint().totals


def test_images_that_find_no_memory_at_all_go_on_on_the_host(network: Pointwise) -> None:
    seen = [0]

    def after_two(images: torch.Tensor) -> None:
        seen[0] += 1
        if seen[0] > 2:
            refuse()

    with opened(network, with_host=True) as unet:
        network.before = after_two
        outlets = all_masks(unet, network)
        assert_right(outlets)
        assert "host_cpu" in rungs(outlets)
        assert unet.footprint().used_bytes == 0
        assert unet.footprint().leases == ()
        assert unet.footprint().totals["ended_well"] == len(IMAGES)


def test_an_image_on_the_host_has_its_lease_and_obeys_cancels_and_deadlines(network: Pointwise) -> None:
    with opened(network, with_host=True) as unet:
        network.before = refuse
        np.testing.assert_array_equal(submit(unet, IMAGES[1]).mask, expected(IMAGES[1]))
        assert unet._host is not None
        on_host = unet._host._runner.network
        assert isinstance(on_host, Pointwise)
        gate = Gate(on_host)
        gone, late = Recorder(), Recorder()
        unet.submit(request(IMAGES[0], lease("gone", canvas_bytes=10**9)), gone)
        gate.arrived()
        unet.submit(request(IMAGES[3], lease("late", canvas_bytes=10**9, deadline_s=0.2)), late)
        assert {lease.id: lease.held_bytes for lease in unet.footprint().leases}["gone"] == 0
        unet.cancel("gone")
        assert not threading.Event().wait(0.3)
        gate.open()
        assert isinstance(gone.wait().error, errors.Cancelled)
        assert isinstance(late.wait().error, errors.DeadlineExceeded)
        assert unet.footprint().leases == ()


def test_the_host_takes_only_so_many_images(network: Pointwise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_WAITING", 1)
    with opened(network, with_host=True) as unet:
        network.before = refuse
        outlets = all_masks(unet, network)
        ends = [outlet.error for outlet in outlets]
        assert None in ends
        assert all(error is None or isinstance(error, errors.InternalFault) for error in ends)
        assert unet.footprint().used_bytes == 0


def test_without_a_host_the_image_gets_a_plain_error_and_the_next_one_a_mask(network: Pointwise) -> None:
    with opened(network) as unet:
        network.before = refuse
        outlets = all_masks(unet, network)
        assert {type(outlet.error) for outlet in outlets} == {errors.InternalFault}
        network.before = lambda images: None
        np.testing.assert_array_equal(submit(unet, IMAGES[0]).mask, expected(IMAGES[0]))
        assert unet.health().ready


@pytest.mark.parametrize(("times", "rung"), [(1, "reclaim"), (2, "host_canvas"), (3, None)])
def test_an_answer_that_finds_no_memory_is_begun_anew_rung_by_rung(
    network: Pointwise, monkeypatch: pytest.MonkeyPatch, times: int, rung: str | None
) -> None:
    left = [times]
    write = answer.Answer.write

    def failing_write(self: answer.Answer, piece: Any, workspace: Any) -> None:
        if piece.rows.start > 0 and left[0]:
            left[0] -= 1
            refuse()
        write(self, piece, workspace)

    with opened(network) as unet:
        monkeypatch.setattr(answer.Answer, "write", failing_write)
        outlet = Recorder()
        unet.submit(request(IMAGES[0], lease("l", canvas_bytes=10**9)), outlet)
        outlet.wait()
        if rung is None:
            assert isinstance(outlet.error, errors.InternalFault)
        else:
            np.testing.assert_array_equal(outlet.mask, expected(IMAGES[0]))
            assert outlet.statement is not None
            assert outlet.statement.rung == rung
        assert unet.footprint().used_bytes == 0
        np.testing.assert_array_equal(submit(unet, IMAGES[2]).mask, expected(IMAGES[2]))


def test_a_canvas_that_finds_no_memory_at_its_start_is_tried_again(
    network: Pointwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [2]
    indices = StripPool.indices

    def failing_indices(self: StripPool, strips: list[int]) -> torch.Tensor:
        if left[0]:
            left[0] -= 1
            raise MemoryError
        return indices(self, strips)

    with opened(network) as unet:
        monkeypatch.setattr(StripPool, "indices", failing_indices)
        outlet = submit(unet, IMAGES[0])
        np.testing.assert_array_equal(outlet.mask, expected(IMAGES[0]))
        assert outlet.statement is not None
        assert outlet.statement.rung == "host_canvas"
        assert unet._pools.device.free == unet._pools.host.free == STRIPS


def test_the_tensors_of_a_failed_batch_are_gone_before_the_next_try(network: Pointwise) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def before(images: torch.Tensor) -> None:
        alive.append(sum(ref() is not None for ref in held))
        activations = torch.zeros(100)
        held.append(weakref.ref(activations))
        if len(held) <= 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with opened(network) as unet:
        network.before = before
        np.testing.assert_array_equal(submit(unet, IMAGES[1]).mask, expected(IMAGES[1]))
    assert alive[:3] == [0, 0, 0]


def test_canvases_retreat_and_return_while_an_image_is_computed(network: Pointwise) -> None:
    with opened(network) as unet:
        gate = Gate(network)
        outlet = submit(unet, IMAGES[0], wait=False)
        gate.arrived()
        unet.retreat()
        unet.advance()
        unet.retreat()
        gate.open()
        np.testing.assert_array_equal(outlet.mask, expected(IMAGES[0]))
        assert unet.away_bytes > 0
        unet.advance()
        second = submit(unet, IMAGES[0])
        assert second.statement is not None
        assert second.statement.rung == "none"


def test_where_the_device_is_the_host_nothing_moves() -> None:
    with running(Pointwise()) as unet:
        unet.retreat()
        np.testing.assert_array_equal(submit(unet, IMAGES[0]).mask, expected(IMAGES[0]))
        assert unet.away_bytes == 0


def test_a_network_on_the_host_is_the_same_in_float32() -> None:
    network = Pointwise().half()
    runner = TileRunner(network, TILE, 2, mean=(0.5,) * 3, std=(0.5,) * 3)
    copied = host.open_runner(runner, Unet())
    assert (copied.dtype, copied.tile_batch) == (torch.float32, 1)
    for old, new in zip(network.parameters(), copied.network.parameters(), strict=True):
        assert torch.equal(old.float(), new)
    assert not host.is_allowed(runner, Unet())
    assert host.need_bytes(runner) > 4 * sum(parameter.numel() for parameter in network.parameters())
