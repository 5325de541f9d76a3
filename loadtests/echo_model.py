"""A model.py that costs next to nothing, in the place of either engine: what is left is the way there and back."""

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
    Lease,
    LlamaLimits,
    Op,
    Statement,
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
    canvas_bytes=2**30,
    canvas_itemsize=4,
    max_pixels=10**6,
    default_threshold=0.5,
)


class TritonPythonModel:
    """Answers an image with its first channel, and a control message as an engine at rest."""

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
            capacity_bytes=LLAMA.pages * LLAMA.page_bytes if model == "llama" else UNET.canvas_bytes,
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
        """One answer to each."""
        return [pb_utils.InferenceResponse(self._answer(request)) for request in requests]

    def _answer(self, request: Any) -> list[Any]:
        message = pb_utils.get_input_tensor_by_name(request, "control")
        if message is not None:
            return [_text("control", self._control(message.as_numpy().reshape(-1)[0]))]
        image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
        outputs = [pb_utils.Tensor("mask", np.ascontiguousarray(image[:, :, 0]))]
        lease = pb_utils.get_input_tensor_by_name(request, "lease")
        if lease is not None:
            outputs.append(_text("statement", _statement(Lease.from_json(lease.as_numpy().reshape(-1)[0]), image)))
        return outputs

    def _control(self, message: bytes) -> str:
        is_canary = Control.from_json(message).op is Op.CANARY
        return CanaryResult(True, "", 0.0, self._status.boot_id).to_json() if is_canary else self._status.to_json()


def _statement(lease: Lease, image: Any) -> str:
    quoted_bytes = lease.lines.get(UNET_CANVAS, 0)
    return Statement(lease.id, "unet", quoted_bytes, quoted_bytes, 0, run_s=1e-4, pixels=image[:, :, 0].size).to_json()


def _text(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text], dtype=object))
