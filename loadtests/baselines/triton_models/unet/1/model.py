"""The loop over tiles behind Triton, one picture after the other."""

import sys
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[5]))


class TritonPythonModel:
    """One class; the mask is 0 and 1."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the segmentation model of the settings."""
        from common import settings
        from loadtests.baselines.models import Models

        self._models = Models(settings.load())
        assert self._models.unet is not None

    def execute(self, requests: list[Any]) -> list[Any]:
        """An answer for each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            picture = pb_utils.get_input_tensor_by_name(request, "encoded").as_numpy()[0]
            return pb_utils.InferenceResponse([pb_utils.Tensor("mask", self._models.segment(picture))])
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}"[:300]))
