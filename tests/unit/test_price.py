import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.price import Line, Price

PRICES = st.builds(
    Price.of,
    st.lists(st.builds(Line, st.sampled_from(["a", "b"]), st.integers(0, 100), st.just("because")), max_size=4),
)


@given(PRICES, PRICES)
def test_prices_add_account_by_account(x: Price, y: Price) -> None:
    both = (x + y).by_account()
    assert both == {k: x.by_account().get(k, 0) + y.by_account().get(k, 0) for k in both}
    assert (x + y).total_bytes == x.total_bytes + y.total_bytes


@given(PRICES)
def test_a_price_fits_exactly_what_it_asks_for_and_not_a_byte_less(price: Price) -> None:
    need = price.by_account()
    assert price.fits(need)
    for account in need:
        assert not price.fits(need | {account: need[account] - 1})


def test_an_account_nobody_opened_has_nothing() -> None:
    assert not Price((Line("card", 1, "x"),)).fits({})


def test_a_negative_price_cannot_be_written_down() -> None:
    with pytest.raises(ValueError, match="negative"):
        Line("a", -1, "x")


def test_explain_says_bytes_and_reason() -> None:
    assert "1,024 B  one page" in Price((Line("llama.pages", 1024, "one page"),)).explain()
