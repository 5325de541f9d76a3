"""The kernels run on a CUDA card, or, slowly and in float32, in Triton's interpreter (``TRITON_INTERPRET=1``)."""

import importlib.util
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CAN_RUN = importlib.util.find_spec("triton") is not None and (torch.cuda.is_available() or INTERPRETED)

collect_ignore_glob = [] if CAN_RUN else ["test_kernel_*.py"]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture
def dtype() -> torch.dtype:
    return torch.float32 if INTERPRETED else torch.bfloat16


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
