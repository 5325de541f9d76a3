from pathlib import Path

import pytest

from common.errors import SettingsError
from common.settings import Settings, load, parse_margin, to_environ

GIB = 2**30


def test_defaults_need_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load({}) == Settings()


def test_the_environment_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "v.toml"
    file.write_text('[server]\nport = 9000\nhost = "0.0.0.0"\n[card]\ntotal = "24GiB"\n')
    settings = load({"VRAMGATE_CONFIG": str(file), "VRAMGATE_SERVER__PORT": "9001", "HOME": "/x"})
    assert (settings.server.port, settings.server.host, settings.card.total) == (9001, "0.0.0.0", 24 * GIB)


def test_lists_are_written_as_in_toml() -> None:
    assert load({"VRAMGATE_UNET__CLASS_NAMES": '["background", "a", "b"]'}).unet.class_names == ("background", "a", "b")


@pytest.mark.parametrize(
    ("environ", "key"),
    [
        ({"VRAMGATE_SERVER__PRT": "1"}, "server.prt"),
        ({"VRAMGATE_SEVER__PORT": "1"}, "VRAMGATE_SEVER__PORT"),
        ({"VRAMGATE_PORT": "1"}, "VRAMGATE_PORT"),
        ({"VRAMGATE_SERVER__PORT": "99999"}, "server.port"),
        ({"VRAMGATE_SERVER__PORT": "eighty"}, "server.port"),
        ({"VRAMGATE_CARD__TOTAL": "24 potatoes"}, "card.total"),
        ({"VRAMGATE_CARD__TOTAL": "-1"}, "card.total"),
        ({"VRAMGATE_CARD__MARGIN": "a lot"}, "card.margin"),
        ({"VRAMGATE_LLAMA__DTYPE": "int4"}, "llama.dtype"),
        ({"VRAMGATE_SERVER__REQUEST_TIMEOUT_S": "nan"}, "server.request_timeout_s"),
        ({"VRAMGATE_UNET__TILE_PIXELS": "100"}, "unet.tile_pixels"),
        ({"VRAMGATE_UNET__MEAN": "[0.5, 0.5"}, "VRAMGATE_UNET__MEAN"),
    ],
)
def test_a_typo_or_a_bad_value_is_named_not_ignored(environ: dict[str, str], key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(environ)
    assert key in str(caught.value)


@pytest.mark.parametrize("text", ["[server", "\xff"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "v.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"v\.toml"):
        load({"VRAMGATE_CONFIG": str(file)})


def test_a_missing_file_that_was_asked_for_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        load({"VRAMGATE_CONFIG": str(tmp_path / "none.toml")})


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().server.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("margin", "total_bytes", "expected_bytes"),
    [("10%", 24 * GIB, int(2.4 * GIB)), ("15%", 80 * GIB, 3 * GIB), ("3072MiB", 24 * GIB, 3 * GIB), ("0", GIB, 0)],
)
def test_margin_is_a_share_or_an_amount(margin: str, total_bytes: int, expected_bytes: int) -> None:
    assert parse_margin(margin, total_bytes) == expected_bytes


def test_to_environ_is_what_load_reads() -> None:
    assert load(to_environ("llama", "grant", 123)).llama.grant == 123
