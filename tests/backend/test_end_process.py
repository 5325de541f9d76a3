"""A process whose device is lost tells whoever waits, then is gone, with a status of its own."""

import subprocess
import sys
from pathlib import Path

from backend.service import EXIT_LOST

SCRIPT = """
import threading
from backend.service import end_process
from tests.backend.unet_kit import Pointwise, Recorder, engine, noise, request

def fall_over(images):
    raise RuntimeError("CUDA error: device-side assert triggered")

network, outlet = Pointwise(), Recorder()
unet = engine(network)
network.before = fall_over
unet.on_lost = lambda reason: end_process(lambda: print(outlet.wait().error, "|", unet.health().reason, flush=True))
unet.submit(request(noise(5, 5)), outlet)
threading.Event().wait(60)
"""


def test_a_process_whose_device_is_lost_answers_and_is_gone() -> None:
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == EXIT_LOST, ran.stderr
    assert ran.stdout.count("the device is lost: RuntimeError: CUDA error: device-side assert triggered") == 2
