from hypothesis import given
from hypothesis import strategies as st

from estimator.rounding import Footprint, footprint, reserved_bytes, round_up

MIB = 2**20


def test_every_tensor_is_rounded_by_itself_and_an_empty_one_takes_nothing() -> None:
    assert footprint([("", 3, 1), ("", 1, 0)]) == Footprint(3 * 512, 0)


def test_a_tensor_of_a_mebibyte_is_small_and_one_byte_more_is_large() -> None:
    assert footprint([("", 2, MIB), ("", 1, MIB + 1)]) == Footprint(2 * MIB, MIB + 512)


def test_what_is_free_in_a_pool_is_used_before_a_page_is_mapped_and_pools_do_not_share() -> None:
    free = Footprint(MIB, 5 * MIB)
    assert reserved_bytes(Footprint(MIB, 5 * MIB), free) == 0
    assert reserved_bytes(Footprint(MIB + 1, 5 * MIB), free) == 2 * MIB
    assert reserved_bytes(Footprint(0, 25 * MIB + 1), free) == 40 * MIB


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_rounding_up_is_the_least_multiple(size: int, step: int) -> None:
    rounded = round_up(size, step)
    assert rounded % step == 0
    assert size <= rounded < size + step
