import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.errors import SettingsError
from common.settings import Settings
from estimator import cards
from estimator.shapes import named
from frontend.cli import app
from frontend.engine_model import Rates
from frontend.plan import limits_on, make, shape_of
from frontend.trace import Request

LLAMA = named("llama-3-8b")


def test_the_pages_of_a_card_fill_what_the_weights_leave() -> None:
    small, large = (limits_on(Settings(), LLAMA, cards.named(size)) for size in ("24GiB", "40GiB"))
    assert small.page_bytes == 32 * 2**20
    assert 90 < small.pages < 130
    assert large.pages - small.pages == pytest.approx((16 - 0.6) * 32, abs=3), "16 GiB more, less margin and driver"


def test_a_card_too_small_for_the_weights_says_so_with_the_equation() -> None:
    with pytest.raises(SettingsError, match=r"16GiB: the weights take 16,060,522,496 bytes.*llama"):
        limits_on(Settings(), LLAMA, cards.named("16GiB"))
    with pytest.raises(SettingsError, match="give a size such as 24GiB"):
        cards.named("a large one")


def test_a_larger_card_refuses_less_and_lets_wait_less() -> None:
    crowd = [Request(0.01 * index, 2000, 500, 1000) for index in range(150)]
    rates = Rates(((1, 0.02), (64, 0.03)), 0.00001)
    small, large = (make(Settings(), LLAMA, cards.named(size), crowd, rates, 30.0) for size in ("22GiB", "48GiB"))
    assert small.at_once_share < large.at_once_share
    assert small.in_time_share < large.in_time_share
    assert small.refused_share("at_once") > large.refused_share("at_once")
    for plan in (small, large):
        assert plan.in_time_share + plan.refused_share("at_once", "after_waiting", "never_fits") == pytest.approx(1)


def test_a_model_is_known_by_name_or_by_its_config_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 64,
                "num_attention_heads": 4,
                "num_hidden_layers": 2,
                "intermediate_size": 128,
                "vocab_size": 100,
                "max_position_embeddings": 512,
            }
        )
    )
    assert shape_of(str(tmp_path)) == shape_of(str(tmp_path / "config.json"))
    assert shape_of("LLAMA-3-8B") == LLAMA
    with pytest.raises(SettingsError, match="llama-3-8b"):
        shape_of("no-such-model")


def test_the_command_prints_a_column_for_each_card_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n1,100,30\n")
    asked = ["plan", "--config", "llama-3-8b", "--card", "24GiB", "--card", "40GiB", "--trace", "t.csv"]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0, told.output
    assert "24GiB" in told.output
    assert "40GiB" in told.output
    assert "100.0%" in told.output
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    missing = CliRunner().invoke(app, [*asked, "--plot", "waits.png"])
    assert "pip install" in str(missing.exception)
