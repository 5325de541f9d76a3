import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import SettingsError
from common.sections import Card, Llama, Unet
from common.settings import Settings
from estimator.grants import divide, unet_need_bytes

GIB = 2**30


@given(st.integers(8 * GIB, 200 * GIB), st.integers(0, GIB), st.sampled_from(["5%", "10%", "2GiB"]))
def test_the_parts_add_up_to_the_card(total_bytes: int, reserved_bytes: int, margin: str) -> None:
    grants = divide(Settings(card=Card(margin=margin)), "cuda", total_bytes, reserved_bytes)
    parts = (
        grants.reserved_bytes,
        grants.foreign_bytes,
        grants.margin_bytes,
        grants.context_bytes,
        grants.llama_bytes,
        grants.unet_bytes,
        grants.card_bytes,
    )
    assert sum(parts) == total_bytes
    assert grants.card_bytes == 0
    assert min(parts) >= 0


def test_grants_that_are_set_are_kept_and_the_rest_is_for_guests() -> None:
    settings = Settings(llama=Llama(grant=4 * GIB), unet=Unet(grant=2 * GIB))
    grants = divide(settings, "cuda", 24 * GIB, 0)
    assert (grants.llama_bytes, grants.unet_bytes) == (4 * GIB, 2 * GIB)
    assert grants.card_bytes > 10 * GIB


def test_a_card_too_small_is_refused_with_the_whole_equation() -> None:
    with pytest.raises(SettingsError, match=r"total = .* margin .* llama .* unet"):
        divide(Settings(), "cuda", 2 * GIB, 0)


def test_a_smaller_total_by_setting_beats_the_card_and_a_larger_does_not() -> None:
    assert divide(Settings(card=Card(total=24 * GIB)), "cuda", 140 * GIB, 0).total_bytes == 24 * GIB
    assert divide(Settings(card=Card(total=240 * GIB)), "cuda", 140 * GIB, 0).total_bytes == 140 * GIB


def test_a_total_of_zero_is_a_card_without_memory_not_the_whole_card() -> None:
    with pytest.raises(SettingsError, match="0 total"):
        divide(Settings(card=Card(total=0)), "cuda", 140 * GIB, 0)


def test_unet_needs_more_for_more_canvas() -> None:
    small, large = (unet_need_bytes(Settings(unet=Unet(canvas=canvas)), "cpu") for canvas in (GIB, 2 * GIB))
    assert large - small >= GIB
