"""The laws of plain models against a card's allocator, in small."""

import os

import pytest
import torch

from backend.plain import PlainLlama, PlainUnet, measure
from estimator.llama import LlamaShape
from estimator.plain import Call, GenerateLaw
from estimator.plain_unet import ForwardLaw, Images
from estimator.profile import ALLOCATOR_ENV
from estimator.unet import UnetShape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
    pytest.mark.skipif(
        "expandable_segments:True" not in os.environ.get(ALLOCATOR_ENV, ""),
        reason=f"exact with {ALLOCATOR_ENV}=expandable_segments:True alone",
    ),
]
SHAPE = LlamaShape(3, 1024, 16, 4, 64, 2816, 32000, 8192)


@pytest.mark.parametrize(
    "call", [Call(2, 700, 2, False), Call(2, 700, 2, True), Call(1, 40, 60, False), Call(4, 9, 40, True)], ids=str
)
def test_a_call_peaks_where_its_shapes_say(call: Call) -> None:
    device = torch.device("cuda", 0)
    plain = PlainLlama(SHAPE, torch.bfloat16, device)
    plain.generate(call)
    measured = measure(lambda: plain.generate(call), device)
    assert GenerateLaw(SHAPE, "bfloat16").peak(call).allocated_bytes == pytest.approx(
        measured.allocated_bytes, rel=1e-3
    )


def test_a_forward_pass_peaks_where_its_shapes_say() -> None:
    device, images = torch.device("cuda", 0), Images(1, 512, 640)
    plain = PlainUnet(UnetShape(64, 2), torch.float16, device)
    plain.forward(images)
    measured = measure(lambda: plain.forward(images), device)
    law = ForwardLaw(UnetShape(64, 2), "float16")
    assert law.peak(images).allocated_bytes == pytest.approx(measured.allocated_bytes, rel=1e-3)
