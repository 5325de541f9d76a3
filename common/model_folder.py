"""Where the language model's folder is."""

from pathlib import Path

from common.errors import SettingsError
from common.settings import Settings

DEMO_NAME = "smollm2-135m-instruct"


def demo_folder(cache_dir: Path) -> Path:
    """Where the converted demo model lies, whether or not it has been made yet."""
    return cache_dir.expanduser() / "models" / DEMO_NAME


def resolve(settings: Settings) -> Path:
    """The folder that ``llama.model`` names; raises SettingsError when there is no config.json in it."""
    is_demo = settings.llama.model == DEMO_NAME
    folder = demo_folder(settings.state.cache_dir) if is_demo else Path(settings.llama.model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    advice = "run `python -m backend.checkpoint` to make it" if is_demo else "set llama.model to a Hugging Face folder"
    raise SettingsError(f"llama.model: no config.json in {folder}; {advice}")
