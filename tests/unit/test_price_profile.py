from dataclasses import asdict, replace
from pathlib import Path

import pytest

from common.errors import SettingsError
from estimator import profile
from estimator.plain import Call, GenerateLaw, Peak, path_of
from estimator.profile import GUARD, SPARE_BYTES, Holes, Profile, Setup
from estimator.rounding import Footprint
from estimator.shapes import named

MIB = 2**20
SETUP = Setup("bfloat16", "sdpa", "NVIDIA H200", "2.11.0", "5.17.0", "expandable_segments:True")
PROFILE = Profile(
    SETUP,
    named("llama-3-8b"),
    free=Footprint(MIB, 10 * MIB),
    workspace_bytes=32 * MIB,
    slots=0,
    paths={"plain long": Holes(1.0, 1.05, 0, 0.98, 50), "plain short": Holes(1.1, 1.0, 1, 0.95, 19)},
)


def peak(small_bytes: int, large_bytes: int) -> Peak:
    return Peak("feed-forward", (), small_bytes + large_bytes, Footprint(small_bytes, large_bytes))


def test_a_profile_comes_back_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(PROFILE.to_json(), encoding="utf-8")
    assert profile.read(file) == PROFILE


@pytest.mark.parametrize("field", list(asdict(SETUP)))
def test_another_setup_is_refused_with_the_field_that_differs(field: str) -> None:
    PROFILE.require(SETUP, PROFILE.shape)
    with pytest.raises(SettingsError, match=f"with {field} .*, here it is 'other'"):
        PROFILE.require(replace(SETUP, **{field: "other"}), PROFILE.shape)


def test_another_shape_is_refused_with_the_size_that_differs() -> None:
    with pytest.raises(SettingsError, match="layers 32, here it is 16"):
        PROFILE.require(SETUP, named("llama-3.2-1b"))


def test_a_bound_is_whole_pages_over_the_tensors_with_their_holes() -> None:
    bound_bytes = PROFILE.bound_bytes(peak(0, 100 * MIB), "plain long")
    assert bound_bytes == 100 * MIB + SPARE_BYTES
    assert 100 * 1.05 * GUARD - 10 < 100, "the example does not need another page"
    assert PROFILE.bound_bytes(peak(0, 110 * MIB), "plain long") == 120 * MIB + SPARE_BYTES


def test_a_widened_bound_is_larger_and_a_short_path_has_a_page_to_spare() -> None:
    assert PROFILE.bound_bytes(peak(0, 100 * MIB), "plain long", widened=1.5) > 140 * MIB
    assert PROFILE.bound_bytes(peak(0, 5 * MIB), "plain short") == 20 * MIB + SPARE_BYTES


def test_a_path_that_was_not_measured_is_refused() -> None:
    with pytest.raises(SettingsError, match="no path 'padded long'; measured were plain long, plain short"):
        PROFILE.bound_bytes(peak(0, 1), "padded long")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "other"}', PROFILE.to_json().replace("samples", "runs")])
def test_what_is_no_profile_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=r"some\.json is no profile"):
        profile.read(file)
    with pytest.raises(SettingsError, match="cannot read"):
        profile.read(tmp_path / "none.json")


def test_the_shipped_profiles_cover_what_their_card_reserved() -> None:
    known = profile.shipped()["llama-3-8b-bfloat16"]
    law = GenerateLaw(named("llama-3-8b"), "bfloat16")
    for call, reserved_mib in ((Call(3, 93, 3, False), 76), (Call(10, 43, 1, True), 116), (Call(8, 59, 9, True), 146)):
        peak_of_call = law.peak(call)
        bound_bytes = known.bound_bytes(peak_of_call, path_of(call, peak_of_call))
        assert reserved_mib * MIB <= bound_bytes < 1.6 * reserved_mib * MIB
