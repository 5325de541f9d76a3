import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.drift import HALF_LIFE, MOST, WARN_RATIO, Drift


def test_work_within_its_price_changes_nothing() -> None:
    assert Drift().observe(90, 100).observe(100, 100) == Drift(worst=1.0)


def test_an_excess_widens_at_once_and_is_told_once() -> None:
    before = Drift()
    after = before.observe(120, 100)
    assert after == Drift(widened=1.2, excesses=1, worst=1.2)
    assert after.warns(before)
    assert not after.observe(110, 100).warns(after)
    assert not before.observe(1001, 1000).warns(before), f"below {WARN_RATIO}"


def test_a_widening_halves_in_its_half_life_and_is_gone_in_the_end() -> None:
    drift = Drift().observe(120, 100)
    for _ in range(HALF_LIFE):
        drift = drift.observe(50, 100)
    assert drift.widened == pytest.approx(1.1)
    for _ in range(20 * HALF_LIFE):
        drift = drift.observe(50, 100)
    assert drift.widened == 1.0
    assert drift.excesses == 1


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**3)), max_size=60))
def test_a_bound_is_never_below_the_law_nor_without_limit(work: list[tuple[int, int]]) -> None:
    drift = Drift()
    for used_bytes, quoted_bytes in work:
        drift = drift.observe(used_bytes, quoted_bytes)
        assert 1.0 <= drift.widened <= MOST
        if quoted_bytes and used_bytes > quoted_bytes:
            assert drift.widened >= min(MOST, used_bytes / quoted_bytes) - 1e-4


def test_work_that_was_quoted_nothing_says_nothing() -> None:
    assert Drift().observe(5, 0) == Drift()
