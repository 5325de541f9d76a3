import re
import tomllib
from pathlib import Path

from common.settings import Settings, load

EXAMPLE = Path(__file__).parents[2] / "vramgate.toml.example"


def test_the_example_says_what_the_defaults_are() -> None:
    assert load({}, EXAMPLE) == Settings()


def test_the_example_names_every_setting_that_there_is() -> None:
    uncommented = re.sub(r"^## ", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = {section: set(keys) for section, keys in tomllib.loads(uncommented).items()}
    assert named == {section: set(type(getattr(Settings(), section)).model_fields) for section in Settings.model_fields}


def test_every_commented_line_is_a_setting_that_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "vramgate.toml"
    file.write_text(re.sub(r"^## ", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")
    assert load({}, file).llama.pages == 400
