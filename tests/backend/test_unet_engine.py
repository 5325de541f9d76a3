"""The engine: right masks for any size, fair batches, exact canvases, and faults that stay with their own request."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from backend.unet.engine import UnetEngine
from backend.unet.request import Segmentation
from common import errors
from common.wire import CancelOutcome
from estimator.unet import canvas_bytes, grid
from tests.backend.unet_kit import TILE, WAIT_S, Pointwise, Recorder, engine, lease, limits, noise, request


@pytest.fixture
def network() -> Pointwise:
    return Pointwise()


@contextmanager
def running(network: Pointwise, strips: int = 64, tile_batch: int = 2, **settings: object) -> Iterator[UnetEngine]:
    started = engine(network, strips, tile_batch, **settings)
    try:
        yield started
    finally:
        started.close()


def expected(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (image[:, :, 0] > 127).astype(np.uint8)


class Gate:
    """Holds the network's passes back until it is opened, and tells when the first one has come."""

    def __init__(self, network: Pointwise) -> None:
        self._arrived, self._open = threading.Event(), threading.Event()
        network.before = self._wait

    def _wait(self, images: torch.Tensor) -> None:
        self._arrived.set()
        assert self._open.wait(WAIT_S)

    def arrived(self) -> None:
        assert self._arrived.wait(WAIT_S)

    def open(self) -> None:
        self._open.set()


@pytest.mark.parametrize(
    "size", [(1, 1), (31, 33), (32, 32), (33, 32), (32, 33), (100, 13), (13, 100), (1, 200), (200, 1), (97, 131)]
)
def test_the_mask_has_the_size_and_the_pixels_of_the_image(network: Pointwise, size: tuple[int, int]) -> None:
    image = noise(*size)
    with running(network) as unet:
        outlet = Recorder()
        unet.submit(request(image), outlet)
        np.testing.assert_array_equal(outlet.mask, expected(image))


def test_probabilities_come_only_when_asked_for_and_match_the_mask(network: Pointwise) -> None:
    image = noise(50, 60)
    with running(network) as unet:
        plain, rich = Recorder(), Recorder()
        unet.submit(request(image), plain)
        unet.submit(request(image, want_probabilities=True), rich)
        np.testing.assert_array_equal(plain.mask, rich.mask)
        assert plain.results[0].probabilities is None
        probabilities = rich.results[0].probabilities
        assert probabilities is not None
        assert probabilities.shape == (1, 50, 60)
        assert probabilities.dtype == np.float32
        logits = 8 * (image[:, :, 0] / 127.5 - 1)
        np.testing.assert_allclose(probabilities[0], 1 / (1 + np.exp(-logits)), atol=5e-3)


def test_several_classes_are_decided_by_the_highest() -> None:
    image = noise(70, 40)
    with running(Pointwise(classes=3)) as unet:
        outlet = Recorder()
        unet.submit(request(image, want_probabilities=True), outlet)
        levels = np.sort(image, axis=2)
        clear = levels[:, :, 2] > levels[:, :, 1] + 1
        np.testing.assert_array_equal(outlet.mask[clear], image.argmax(axis=2)[clear])
        probabilities = outlet.results[0].probabilities
        assert probabilities is not None
        np.testing.assert_allclose(probabilities.sum(axis=0), 1, atol=1e-3)


def test_a_higher_threshold_takes_fewer_pixels(network: Pointwise) -> None:
    image = noise(40, 40)
    with running(network) as unet:
        outlet = Recorder()
        unet.submit(request(image, threshold=0.9), outlet)
        bound = 127.5 * (1 + np.log(9) / 8)
        np.testing.assert_array_equal(outlet.mask, image[:, :, 0] > bound)


def test_an_encoded_image_is_decoded_on_the_way(network: Pointwise) -> None:
    image = noise(45, 52)
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    with running(network) as unet:
        outlet = Recorder()
        unet.submit(encoded_request(image, stream.getvalue()), outlet)
        np.testing.assert_array_equal(outlet.mask, expected(image))
        assert outlet.statement is not None
        assert outlet.statement.decode_image_s > 0


@pytest.mark.parametrize("size", [(20, 20), (33, 70), (300, 40)])
def test_the_statement_says_what_was_held_and_done(network: Pointwise, size: tuple[int, int]) -> None:
    image = noise(*size)
    price_bytes = canvas_bytes(*size, limits())
    with running(network) as unet:
        outlet = Recorder()
        unet.submit(request(image, lease(canvas_bytes=price_bytes)), outlet)
        statement = outlet.wait().statement
        assert statement is not None
        assert statement.lease == "a"
        assert statement.quoted_bytes == statement.held_bytes == statement.canvas_bytes == price_bytes
        assert (statement.pixels, statement.tiles) == (size[0] * size[1], grid(limits(), *size).tiles)
        assert statement.rung == "none"
        assert unet.footprint().used_bytes == 0


def test_tiles_of_several_requests_share_a_batch(network: Pointwise) -> None:
    with running(network, tile_batch=4) as unet:
        gate = Gate(network)
        outlets = [Recorder() for _ in range(5)]
        for number, outlet in enumerate(outlets):
            unet.submit(request(noise(20, 20, seed=number)), outlet)
            gate.arrived()
        gate.open()
        for number, outlet in enumerate(outlets):
            np.testing.assert_array_equal(outlet.mask, expected(noise(20, 20, seed=number)))
    assert network.batches == [1, 4]


def test_a_small_image_waits_for_a_few_batches_of_a_large_one_only(network: Pointwise) -> None:
    with running(network, tile_batch=2) as unet:
        gate = Gate(network)
        large, small = Recorder(), Recorder()
        unet.submit(request(noise(300, 300)), large)
        gate.arrived()
        unet.submit(request(noise(20, 20)), small)
        passes_at_the_end: list[int] = []
        small.finish = lambda statement: passes_at_the_end.append(len(network.batches))  # type: ignore[method-assign]
        gate.open()
        large.wait()
    assert passes_at_the_end[0] <= 3
    assert len(network.batches) > 50


def test_running_requests_take_turns(network: Pointwise) -> None:
    """Two equal large images end within one batch of each other, though one came first."""
    ends: list[int] = []
    with running(network, tile_batch=2) as unet:
        gate = Gate(network)
        outlets = [Recorder(), Recorder()]
        for outlet in outlets:
            outlet.finish = lambda statement: ends.append(len(network.batches))  # type: ignore[method-assign]
            unet.submit(request(noise(150, 150)), outlet)
            gate.arrived()
        gate.open()
        last = Recorder()
        unet.submit(request(noise(500, 500)), last)
        last.wait()
    assert ends[1] - ends[0] <= 1


def test_what_never_fits_is_refused_at_once_with_both_numbers(network: Pointwise) -> None:
    with running(network, strips=9) as unet:
        outlet = Recorder()
        with pytest.raises(errors.NeverFits) as refusal:
            unet.submit(request(noise(40, 400)), outlet)
        assert refusal.value.numbers == {
            "price_bytes": canvas_bytes(40, 400, limits()),
            "capacity_bytes": unet.limits.canvas_bytes,
        }
        assert not outlet.ended
        assert unet.footprint().leases == ()


def test_a_canvas_that_is_not_free_yet_is_waited_for_and_small_images_pass(network: Pointwise) -> None:
    wide = noise(40, 70)
    with running(network, strips=grid(limits(), 40, 70).strips + 2) as unet:
        gate = Gate(network)
        first, second, small = Recorder(), Recorder(), Recorder()
        unet.submit(request(wide, lease("first")), first)
        gate.arrived()
        unet.submit(request(wide, lease("second")), second)
        unet.submit(request(noise(10, 10)), small)
        held = {entry.id: entry.held_bytes for entry in unet.footprint().leases}
        assert held == {"first": canvas_bytes(40, 70, limits()), "second": 0}
        gate.open()
        for outlet in (first, second):
            np.testing.assert_array_equal(outlet.mask, expected(wide))
        np.testing.assert_array_equal(small.mask, expected(noise(10, 10)))


def test_cancel_ends_the_work_within_one_batch(network: Pointwise) -> None:
    with running(network) as unet:
        gate = Gate(network)
        outlet = Recorder()
        unet.submit(request(noise(300, 300), lease("gone")), outlet)
        gate.arrived()
        assert unet.cancel("gone") == CancelOutcome.CANCELLED
        (entry,) = unet.footprint().leases
        assert entry.cancelling
        gate.open()
        assert isinstance(outlet.wait().error, errors.Cancelled)
        assert outlet.results == []
        assert unet.footprint().used_bytes == 0
        assert unet.footprint().leases == ()
        np.testing.assert_array_equal(submit(unet, noise(40, 40)).mask, expected(noise(40, 40)))
    assert network.batches[0] == 2
    assert len(network.batches) == 1 + grid(limits(), 40, 40).tiles // 2


def test_cancel_before_the_request_comes_refuses_it(network: Pointwise) -> None:
    with running(network) as unet:
        assert unet.cancel("early") == CancelOutcome.UNKNOWN
        with pytest.raises(errors.Cancelled):
            unet.submit(request(noise(5, 5), lease("early")), Recorder())


def test_one_lease_is_one_piece_of_work(network: Pointwise) -> None:
    with running(network) as unet:
        gate = Gate(network)
        outlet = Recorder()
        unet.submit(request(noise(5, 5), lease("twice")), outlet)
        gate.arrived()
        with pytest.raises(errors.InvalidRequest, match="in use"):
            unet.submit(request(noise(5, 5), lease("twice")), Recorder())
        gate.open()
        outlet.wait()


def test_work_past_its_deadline_is_stopped(network: Pointwise) -> None:
    with running(network) as unet:
        gate = Gate(network)
        late = Recorder()
        unet.submit(request(noise(300, 300), lease("late", deadline_s=0.05)), late)
        gate.arrived()
        assert not threading.Event().wait(0.1)
        gate.open()
        assert isinstance(late.wait().error, errors.DeadlineExceeded)


def test_a_broken_image_fails_alone(network: Pointwise) -> None:
    stream = io.BytesIO()
    Image.fromarray(noise(64, 64)).save(stream, "PNG")
    with running(network) as unet:
        broken, sound = Recorder(), Recorder()
        unet.submit(encoded_request(noise(64, 64), stream.getvalue()[:-900]), broken)
        unet.submit(request(noise(64, 64)), sound)
        assert isinstance(broken.wait().error, errors.InvalidRequest)
        np.testing.assert_array_equal(sound.mask, expected(noise(64, 64)))


def test_an_image_that_is_not_what_its_header_said_is_refused(network: Pointwise) -> None:
    stream = io.BytesIO()
    Image.fromarray(noise(64, 64)).save(stream, "PNG")
    with running(network) as unet:
        outlet = Recorder()
        unet.submit(encoded_request(noise(10, 10), stream.getvalue()), outlet)
        assert isinstance(outlet.wait().error, errors.InvalidRequest)


def test_a_pass_that_fails_on_one_image_takes_only_that_one_down(network: Pointwise) -> None:
    poison = np.full((20, 20, 3), 200, np.uint8)
    with running(network, tile_batch=4) as unet:
        gate = Gate(network)
        hold = network.before

        def fail_on_poison(images: torch.Tensor) -> None:
            hold(images)
            if any(bool((image == image[0, 0, 0]).all()) for image in images):
                raise RuntimeError("this pass cannot be computed")

        network.before = fail_on_poison
        outlets = [submit(unet, noise(20, 20), wait=False)]
        gate.arrived()
        outlets.append(submit(unet, poison, wait=False))
        outlets.append(submit(unet, noise(20, 20, seed=1), wait=False))
        gate.open()
        assert isinstance(outlets[1].wait().error, errors.InternalFault)
        np.testing.assert_array_equal(outlets[0].mask, expected(noise(20, 20)))
        np.testing.assert_array_equal(outlets[2].mask, expected(noise(20, 20, seed=1)))
        assert unet.health().ready


def test_passes_that_only_fail_make_the_engine_unready_until_one_succeeds(network: Pointwise) -> None:
    with running(network) as unet:

        def fail(images: torch.Tensor) -> None:
            raise RuntimeError("the card is broken")

        network.before = fail
        for _ in range(3):
            assert submit(unet, noise(5, 5)).error is not None
        assert not unet.health().ready
        network.before = lambda images: None
        np.testing.assert_array_equal(submit(unet, noise(5, 5)).mask, expected(noise(5, 5)))
        assert unet.health().ready


def test_a_pass_that_hangs_is_seen(network: Pointwise) -> None:
    with running(network, stall_s=0.05) as unet:
        gate = Gate(network)
        outlet = submit(unet, noise(300, 300), wait=False)
        gate.arrived()
        assert not threading.Event().wait(0.1)
        health = unet.health()
        assert not health.ready
        assert "no tile for" in health.reason
        gate.open()
        outlet.wait()


def test_more_waiting_requests_than_allowed_are_refused(network: Pointwise) -> None:
    with running(network, max_waiting=1) as unet:
        gate = Gate(network)
        first = submit(unet, noise(5, 5), wait=False)
        gate.arrived()
        second = submit(unet, noise(5, 5), wait=False)
        with pytest.raises(errors.NotNow) as refusal:
            submit(unet, noise(5, 5), wait=False)
        assert refusal.value.retry_after_s is not None
        gate.open()
        assert first.mask.shape == second.mask.shape == (5, 5)


def test_direct_work_is_told_as_unleased(network: Pointwise) -> None:
    with running(network) as unet:
        gate = Gate(network)
        outlet = submit(unet, noise(300, 300), wait=False)
        gate.arrived()
        footprint = unet.footprint()
        assert footprint.unleased_bytes == footprint.used_bytes == canvas_bytes(300, 300, limits())
        assert footprint.leases == ()
        gate.open()
        outlet.wait()
        assert unet.footprint().unleased_bytes == 0


def test_closing_fails_what_is_running_and_refuses_what_comes(network: Pointwise) -> None:
    unet = engine(network)
    gate = Gate(network)
    outlet = submit(unet, noise(300, 300), wait=False)
    gate.arrived()
    closer = threading.Thread(target=unet.close)
    closer.start()
    gate.open()
    closer.join(WAIT_S)
    assert isinstance(outlet.error, errors.NotReady)
    assert not unet.health().ready
    with pytest.raises(errors.NotReady):
        submit(unet, noise(5, 5), wait=False)


def test_idle_means_zero_after_a_storm_of_everything(network: Pointwise) -> None:
    random = np.random.default_rng(0)
    with running(network, strips=40, tile_batch=3) as unet:
        outlets = []
        for number in range(60):
            height, width = (int(edge) for edge in random.integers(1, 120, 2))
            outlets.append(Recorder())
            unet.submit(request(noise(height, width, number), lease(f"storm-{number}")), outlets[-1])
            if number % 5 == 0:
                unet.cancel(f"storm-{random.integers(0, number + 1)}")
        for outlet in outlets:
            outlet.wait()
        assert all(outlet.ends == 1 for outlet in outlets)
        footprint = unet.footprint()
        assert (footprint.used_bytes, footprint.unleased_bytes, footprint.leases) == (0, 0, ())
        assert footprint.totals["requests"] == 60
        assert sum(value for name, value in footprint.totals.items() if name.startswith("ended")) == 60


def test_standing_and_capacity_are_whole(network: Pointwise) -> None:
    with running(network, strips=10) as unet:
        footprint = unet.footprint()
        assert footprint.account == "unet.canvas"
        assert footprint.standing["canvas pool"] == footprint.capacity_bytes == unet.limits.canvas_bytes
        assert all(size > 0 for size in footprint.standing.values())
        assert footprint.pool_keys == (f"unet/float32/width4/1/tile{TILE}/batch2",)


def encoded_request(announced: NDArray[np.uint8], data: bytes) -> Segmentation:
    return replace(request(announced), image=None, encoded=data)


def submit(unet: UnetEngine, image: NDArray[np.uint8], *, wait: bool = True) -> Recorder:
    outlet = Recorder()
    unet.submit(request(image), outlet)
    return outlet.wait() if wait else outlet
