"""What goes wrong stays with its own request: cancels, deadlines, broken images, failing passes, closing."""

import io
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from backend.unet import decoders
from backend.unet import engine as engine_module
from common import errors
from common.wire import CancelOutcome
from estimator.unet import grid
from tests.backend.unet_kit import (
    WAIT_S,
    Gate,
    Pointwise,
    Recorder,
    encoded_request,
    engine,
    expected,
    lease,
    limits,
    noise,
    request,
    running,
    submit,
)


@pytest.fixture
def network() -> Pointwise:
    return Pointwise()


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


def test_cancel_does_not_wait_for_the_images_that_are_decoded_first(
    network: Pointwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_decode = threading.Event()

    def slow(data: bytes) -> NDArray[np.uint8]:
        assert may_decode.wait(WAIT_S)
        return noise(5, 5)

    monkeypatch.setattr(decoders, "decode", slow)
    with running(network) as unet:
        first = [Recorder() for _ in range(decoders.THREADS)]
        for outlet in first:
            unet.submit(encoded_request(noise(5, 5), b"x"), outlet)
        gone = Recorder()
        unet.submit(replace(encoded_request(noise(5, 5), b"x"), lease=lease("gone")), gone)
        for _ in range(2):
            unet.cancel("gone")
        try:
            assert isinstance(gone.wait().error, errors.Cancelled)
            assert unet.footprint().leases == ()
        finally:
            may_decode.set()
        assert [outlet.wait().error for outlet in first] == [None] * decoders.THREADS
        assert gone.ends == 1


def test_a_broken_device_leaves_no_request_without_an_end(network: Pointwise, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    with running(network) as unet:
        unet.on_lost = lambda reason: ended.set()
        gate = Gate(network)
        outlets = [submit(unet, noise(100, 100, seed), wait=False) for seed in range(2)]
        gate.arrived()
        monkeypatch.setattr(engine_module, "is_sound", lambda device: False)
        gate.open()
        assert all(isinstance(outlet.wait().error, errors.NotReady) for outlet in outlets)
        assert ended.wait(WAIT_S)
        assert unet.footprint().used_bytes == 0
