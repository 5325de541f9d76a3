import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from common.errors import SettingsError
from frontend import tritonserver
from tests.integration.running import Running

TOY = Path(__file__).with_name("toy_model.py")
CONFIG = """
name: "{model}"
backend: "python"
max_batch_size: 0
input [ {{ name: "control" data_type: TYPE_STRING dims: [ 1 ] optional: true }} ]
output [ {{ name: "control" data_type: TYPE_STRING dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_MODEL count: 1 }} ]
"""
SMALL = {
    "llama.pages": "40",
    "unet.canvas": "64MiB",
    "card.foreign": "64MiB",
    "guests.capacity": "4MiB",
    "guests.models": '{edges = {fixed = "1MiB", per_body_byte = 24.0}}',
}
"""Room for one full context of the demo model and a few short requests beside it."""


@pytest.fixture(scope="session", autouse=True)
def real_triton() -> None:
    """Skips where the server's binary does not exist for this machine; anything else that is missing is a failure."""
    try:
        tritonserver.locate()
    except SettingsError as error:
        pytest.skip(f"no tritonserver can be started here: {error}")


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The whole service with the demo models and small pools, started once."""
    with Running(tmp_path_factory.mktemp("service"), SMALL) as running:
        yield running.wait_up()


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository whose models only say how they are."""
    repository = tmp_path_factory.mktemp("toys")
    for model in ("llama", "unet"):
        (repository / model / "1").mkdir(parents=True)
        (repository / model / "config.pbtxt").write_text(CONFIG.format(model=model))
        shutil.copy(TOY, repository / model / "1" / "model.py")
    return repository


@pytest.fixture(scope="module")
def calm(toys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service of toys that a module's tests share; whoever disturbs it waits until it is ready again."""
    with Running(tmp_path_factory.mktemp("calm"), {"triton.model_repository": str(toys)}) as running:
        yield running.wait_up()


@pytest.fixture
def start(toys: Path, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a service of toys, with settings (``server__port="1"``) and arguments of ``vramgate up``."""
    with ExitStack() as stack:

        def start_one(*arguments: str, **settings: str) -> Running:
            named = {key.replace("__", "."): value for key, value in settings.items()}
            named = {"triton.model_repository": str(toys), **named}
            return stack.enter_context(Running(tmp_path / "state", named, arguments))

        yield start_one
