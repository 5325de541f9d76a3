"""A model.py that only says how it is: what the launcher's tests load, in place of weights."""

import uuid
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from common.wire import (
    LLAMA_PAGES,
    UNET_CANVAS,
    Breaker,
    CanaryResult,
    Control,
    EngineStatus,
    LlamaLimits,
    Op,
    UnetLimits,
)

LLAMA = LlamaLimits(
    context_tokens=512, vocab_tokens=512, page_tokens=16, page_bytes=1024, pages=64, tokenizer_dir="/nowhere"
)
UNET = UnetLimits(
    classes=1,
    class_names=("nucleus",),
    tile_pixels=64,
    overlap_pixels=16,
    canvas_bytes=65536,
    canvas_itemsize=4,
    max_pixels=1000,
    default_threshold=0.5,
)


class TritonPythonModel:
    """Answers every request with its status."""

    def initialize(self, args: dict[str, str]) -> None:
        """The status, with a new boot id."""
        model = args["model_name"]
        self._status = EngineStatus(
            model=model,
            boot_id=uuid.uuid4().hex,
            ready=True,
            reason="",
            device="cpu",
            standing={},
            account=LLAMA_PAGES if model == "llama" else UNET_CANVAS,
            capacity_bytes=65536,
            used_bytes=0,
            unleased_bytes=0,
            leases=(),
            pool_keys=(),
            breaker=Breaker.CLOSED,
            headroom_bytes=None,
            fragmentation_ratio=0.0,
            llama=LLAMA if model == "llama" else None,
            unet=UNET if model == "unet" else None,
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """The answer to a control message: that the canary is well, or the status."""
        return [pb_utils.InferenceResponse([self._answer(request)]) for request in requests]

    def _answer(self, request: Any) -> Any:
        message = pb_utils.get_input_tensor_by_name(request, "control").as_numpy().reshape(-1)[0]
        canary = CanaryResult(True, "", 0.0, self._status.boot_id)
        answer = canary if Control.from_json(message).op is Op.CANARY else self._status
        return pb_utils.Tensor("control", np.array([answer.to_json()], dtype=object))
