"""``vramgate quote --shape``: what a model would hold and cost on a card, without a service."""

import pytest
from typer.testing import CliRunner

from common.errors import SettingsError
from common.settings import Settings
from estimator.plain import Call
from estimator.shapes import named
from frontend import offer
from frontend.cli import app

BIG = named("llama-3-8b")


def test_an_engine_on_a_small_card_is_offered_line_by_line() -> None:
    told = offer.of_engine(Settings(), BIG, "24GiB", (1000, 200, 2))
    divided_bytes = int(told.equation.split(" llama")[0].split("+ ")[-1].replace(",", ""))
    assert told.standing.total_bytes <= divided_bytes < told.standing.total_bytes + told.limits.page_bytes
    assert told.request is not None
    assert told.request.total_bytes == 2 * 5 * told.limits.page_bytes
    assert told.at_once == told.limits.pages // 10 > 0


def test_a_model_that_does_not_fit_a_card_is_refused_with_the_equation() -> None:
    with pytest.raises(SettingsError, match=r"the weights take .* 16,106,127,360 total"):
        offer.of_engine(Settings(), named("llama-2-13b"), "t4", None)


def test_a_plain_call_has_the_bound_of_its_profile_and_says_where_it_was_measured() -> None:
    told = offer.of_plain(BIG, "bfloat16", Call(4, 1000, 20, True))
    assert told.bound_bytes is not None
    assert told.price.total_bytes < told.bound_bytes < 1.2 * told.price.total_bytes
    assert "NVIDIA H200" in told.measured_on
    other = offer.of_plain(named("llama-2-7b"), "bfloat16", Call(4, 1000, 20, True))
    assert (other.bound_bytes, "vramgate calibrate" in other.measured_on) == (None, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt-tokens", "1000", "--max-tokens", "200"], ["weights", "rounding", "nominal", "5 pages", "at once"]),
        ([], ["weights", "pages of 256 tokens"]),
        (["--plain", "--prompt-tokens", "50", "--max-tokens", "5"], ["feed-forward", "bound on reserved"]),
    ],
)
def test_the_command_answers_without_a_service(arguments: list[str], words: list[str]) -> None:
    result = CliRunner().invoke(app, ["quote", "--shape", "llama-3-8b", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert all(word in result.output for word in words)


def test_a_plain_call_without_sizes_is_refused() -> None:
    with pytest.raises(SettingsError, match="give --prompt-tokens and --max-tokens"):
        offer.call_of(1, None, 5, False)
