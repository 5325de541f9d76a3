"""Images that have moved to the engine on the host, when something happens to others or to the device."""

import threading

import numpy as np
import pytest
import torch

from backend.unet.job import Job
from common import errors
from tests.backend.unet_kit import Gate, Pointwise, Recorder, expected, lease, request, submit
from tests.backend.unet_shortage import IMAGES, opened, refuse


@pytest.fixture
def network() -> Pointwise:
    return Pointwise()


def test_an_image_that_the_host_has_taken_is_not_failed_with_the_one_it_could_not_take(network: Pointwise) -> None:
    with opened(network, with_host=True) as unet:
        network.before = refuse
        send = unet._pools.send

        def send_but_one(job: Job) -> None:
            if job.id == "stays" and unet._host is not None:
                raise MemoryError
            send(job)

        unet._pools.send = send_but_one  # type: ignore[method-assign]
        moves, stays = Recorder(), Recorder()
        with unet._wake:  # both in one batch
            unet.submit(request(IMAGES[0], lease("moves", canvas_bytes=10**9)), moves)
            unet.submit(request(IMAGES[2], lease("stays", canvas_bytes=10**9)), stays)
        assert isinstance(stays.wait().error, errors.InternalFault)
        np.testing.assert_array_equal(moves.mask, expected(IMAGES[0]))
        assert (moves.ends, stays.ends) == (1, 1)


def test_a_host_that_was_idle_for_long_is_not_taken_for_hung(network: Pointwise) -> None:
    with opened(network, with_host=True) as unet:
        network.before = refuse
        submit(unet, IMAGES[1]).wait()
        assert unet._host is not None
        unet._host._progress_s -= 1000
        on_host = unet._host._runner.network
        assert isinstance(on_host, Pointwise)
        gate = Gate(on_host)
        outlet = submit(unet, IMAGES[0], wait=False)
        gate.arrived()
        assert unet.health().ready
        gate.open()
        outlet.wait()


def test_a_lost_device_ends_the_process_when_those_on_the_host_are_told_too(network: Pointwise) -> None:
    told: list[bool] = []
    ended = threading.Event()
    with opened(network, with_host=True) as unet:
        moved = Recorder()
        network.before = refuse
        submit(unet, IMAGES[1]).wait()
        assert unet._host is not None
        on_host, engine = unet._host._runner.network, unet._host
        assert isinstance(on_host, Pointwise)
        gate = Gate(on_host)
        unet.submit(request(IMAGES[0], lease("moved", canvas_bytes=10**9)), moved)
        gate.arrived()

        def hear(reason: str) -> None:
            told.append(moved.ended)
            ended.set()

        def break_down(images: torch.Tensor) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        unet.on_lost, network.before = hear, break_down
        assert isinstance(submit(unet, IMAGES[3]).error, errors.NotReady)
        while not engine._closing and not ended.wait(0.002):
            pass
        gate.open()
        assert ended.wait(20)
        assert told == [True]
        assert isinstance(moved.error, errors.NotReady)
