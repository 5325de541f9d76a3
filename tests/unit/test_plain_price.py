"""The laws of plain models against peaks that an H200 measured (torch 2.11, transformers 5.17, expandable segments)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.plain import Call, GenerateLaw, path_of, price_of
from estimator.plain_unet import ForwardLaw, Images
from estimator.shapes import named
from estimator.unet import UnetShape

BIG, SMALL = GenerateLaw(named("llama-3-8b"), "bfloat16"), GenerateLaw(named("llama-3.2-1b"), "bfloat16")
FULL = GenerateLaw(named("llama-3.2-1b"), "float32")


@pytest.mark.parametrize(
    ("law", "call", "moment", "measured_bytes"),
    [
        (BIG, Call(2, 300, 3, False), "feed-forward", 150_242_816),
        (BIG, Call(1, 1, 2, False), "logits", 1_551_360),
        (BIG, Call(4, 33, 24, False), "logits", 34_506_240),
        (BIG, Call(4, 33, 24, True), "mask in decode", 35_264_000),
        (BIG, Call(1, 3000, 2, True), "feed-forward", 760_202_240),
        (SMALL, Call(2, 300, 3, False), "feed-forward", 59_158_016),
        (SMALL, Call(1, 3000, 2, True), "feed-forward", 304_778_240),
        (FULL, Call(1, 3000, 2, False), "scores", 2_998_370_816),
        (FULL, Call(2, 300, 3, False), "scores", 126_277_632),
        (FULL, Call(3, 28, 31, False), "scores in decode", 17_376_768),
        (FULL, Call(1, 3000, 2, True), "feed-forward", 600_458_240),
    ],
)
def test_the_peak_of_generate_is_right_to_the_byte(
    law: GenerateLaw, call: Call, moment: str, measured_bytes: int
) -> None:
    peak = law.peak(call)
    assert (peak.moment, peak.allocated_bytes) == (moment, measured_bytes)


@pytest.mark.parametrize(
    ("law", "call", "measured_bytes"),
    [(BIG, Call(1, 4, 3, False, True), 7_239_168), (BIG, Call(3, 4, 3, True, True), 26_304_000)],
)
def test_sampling_with_a_cut_sorts_the_vocabulary(law: GenerateLaw, call: Call, measured_bytes: int) -> None:
    peak = law.peak(call)
    assert peak.moment == "sort"
    assert peak.allocated_bytes == pytest.approx(measured_bytes, rel=5e-4)


@pytest.mark.parametrize(
    ("dtype", "slots", "images", "measured_bytes"),
    [
        ("float16", 0, Images(1, 512, 512), 56_108_544),
        ("float16", 0, Images(3, 333, 517), 110_578_688),
        ("float32", 120, Images(1, 1024, 1024), 448_809_472),
        ("float32", 120, Images(1, 384, 448), 87_786_496 - 512),
    ],
)
def test_the_peak_of_a_forward_pass_is_right_to_the_byte(
    dtype: str, slots: int, images: Images, measured_bytes: int
) -> None:
    assert ForwardLaw(UnetShape(64, 2), dtype, slots).peak(images).allocated_bytes == measured_bytes


@given(st.integers(1, 32), st.integers(1, 4096), st.integers(1, 512), st.booleans(), st.booleans())
def test_more_work_never_costs_less(batch: int, prompt: int, new: int, padded: bool, sampled: bool) -> None:
    for law in (BIG, FULL):
        peak_bytes = law.peak(Call(batch, prompt, new, padded, sampled)).allocated_bytes
        for more in ((batch + 1, prompt, new), (batch, prompt + 1, new), (batch, prompt, new + 2)):
            assert law.peak(Call(*more, padded, sampled)).allocated_bytes >= peak_bytes


@given(st.integers(1, 8), st.integers(1, 2048), st.integers(1, 2048))
def test_a_larger_image_never_costs_less(batch: int, height: int, width: int) -> None:
    law = ForwardLaw(UnetShape(64, 2), "float16")
    peak_bytes = law.peak(Images(batch, height, width)).allocated_bytes
    assert law.peak(Images(batch + 1, height, width)).allocated_bytes >= peak_bytes
    assert law.peak(Images(batch, height + 32, width)).allocated_bytes >= peak_bytes


def test_a_price_names_the_moment_and_adds_up_to_the_peak() -> None:
    peak = BIG.peak(Call(2, 300, 3, False))
    price = price_of(peak)
    assert price.by_account() == {"card": peak.allocated_bytes}
    assert "feed-forward: keys and values of all layers, 64 of 1,228,800 B" in price.explain()


def test_the_path_says_where_keys_and_values_live_and_which_phase_decides() -> None:
    for call, path in (
        (Call(1, 100, 1, False), "plain short"),
        (Call(1, 1000, 1, True), "padded long"),
        (Call(4, 4, 24, False), "plain decode"),
    ):
        assert path_of(call, BIG.peak(call)) == path


def test_images_off_the_grid_or_few_pixels_are_a_path_of_their_own() -> None:
    assert [Images(*sizes).path for sizes in ((1, 512, 512), (2, 256, 256), (1, 256, 256), (1, 500, 512))] == [
        "grid",
        "grid",
        "odd",
        "odd",
    ]


def test_calls_and_images_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Call(0, 1, 1, False)
    with pytest.raises(ValueError, match="1 or more"):
        Images(1, 0, 1)
