"""Fixtures of the language model's tests."""

from pathlib import Path

import pytest
import torch

from tests.backend.llama_kit import save_model, small_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, small_config(vocab_size=256))
    return folder


@pytest.fixture(params=[False, True], ids=["in turn", "overlapping"])
def overlaps(request: pytest.FixtureRequest) -> bool:
    """Whether a step is launched before the tokens of the one in front are known, as on a card."""
    return bool(request.param)
