"""Shapes and cards that are known by name."""

import pytest

from common.errors import SettingsError
from estimator import cards, shapes
from estimator.llama import weights_bytes

PARAMETERS = {
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "mistral-7b-v0.3": 7_248_023_552,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
}


def test_every_shape_has_its_published_number_of_parameters() -> None:
    assert {name: weights_bytes(shape, "float16") // 2 for name, shape in shapes.SHAPES.items()} == PARAMETERS


def test_names_are_found_in_any_case_and_unknown_ones_are_answered_with_the_known() -> None:
    assert shapes.named("Llama-3-8B") is shapes.SHAPES["llama-3-8b"]
    assert cards.named("NVIDIA RTX 4090") == cards.named("rtx-4090")
    with pytest.raises(SettingsError, match="no shape 'llama-9'; known are llama-3-8b"):
        shapes.named("llama-9")
    with pytest.raises(SettingsError, match="no card 'abacus'; give a size such as 24GiB, or t4"):
        cards.named("abacus")


def test_a_size_is_a_nominal_card_and_the_h200_was_measured() -> None:
    nominal = cards.named("24GiB")
    assert (nominal.total_bytes, nominal.measured) == (24 * 2**30, False)
    assert 0 < nominal.reserved_bytes < nominal.total_bytes // 20
    assert cards.named("H200").measured
