"""``generate`` behind Triton, a thread for each request, no gate."""

import sys
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[5]))

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Starts a thread for each request; the pieces of its answer go out as they come."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the language model of the settings."""
        from common import settings
        from loadtests.baselines.models import Models

        self._models = Models(settings.load())
        assert self._models.llm is not None

    def execute(self, requests: list[Any]) -> None:
        """Returns at once."""
        for request in requests:
            Thread(target=self._answer, args=(request, request.get_response_sender()), daemon=True).start()

    def _answer(self, request: Any, sender: Any) -> None:
        try:
            ids = self._models.prompt(_value(request, "text_input", b"").decode())
            pieces = self._models.stream(ids, int(_value(request, "max_tokens", 128)))
            if not bool(_value(request, "stream", False)):
                pieces = iter(["".join(pieces)])
            for piece in pieces:
                output = pb_utils.Tensor("text_output", np.array([piece.encode()], dtype=np.object_))
                sender.send(pb_utils.InferenceResponse([output]))
        except Exception as error:
            sender.send(
                pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}"[:300]))
            )
        finally:
            sender.send(flags=FINAL)


def _value(request: Any, name: str, default: Any) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy()[0]
