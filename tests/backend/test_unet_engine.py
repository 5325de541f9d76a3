"""The engine: right masks for any size, fair batches, exact canvases, whole books."""

import io

import numpy as np
import pytest
from PIL import Image

from common import errors
from estimator.unet import canvas_bytes, grid
from tests.backend.unet_kit import (
    TILE,
    Gate,
    Pointwise,
    Recorder,
    encoded_request,
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


@pytest.mark.parametrize(
    "size", [(1, 1), (31, 33), (32, 32), (33, 32), (32, 33), (100, 13), (13, 100), (1, 200), (200, 1), (97, 131)]
)
def test_the_mask_has_the_size_and_the_pixels_of_the_image(network: Pointwise, size: tuple[int, int]) -> None:
    image = noise(*size)
    with running(network) as unet:
        outlet = Recorder()
        unet.submit(request(image), outlet)
        np.testing.assert_array_equal(outlet.mask, expected(image))


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1)])
def test_a_line_of_pixels_is_an_image_like_any_other(network: Pointwise, size: tuple[int, int]) -> None:
    image = noise(*size)
    with running(network, strips=grid(limits(), *size).strips) as unet:
        np.testing.assert_array_equal(submit(unet, image).mask, expected(image))


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


def test_standing_and_capacity_are_whole(network: Pointwise) -> None:
    with running(network, strips=10) as unet:
        footprint = unet.footprint()
        assert footprint.account == "unet.canvas"
        assert footprint.standing["canvas pool"] == footprint.capacity_bytes == unet.limits.canvas_bytes
        assert all(size > 0 for size in footprint.standing.values())
        assert footprint.pool_keys == (f"unet/float32/width4/1/tile{TILE}/batch2",)
