"""How the UNet engine shows itself to Triton: one image in, one mask out."""

from backend.triton_io import Arrays
from backend.unet import request as unet_request
from backend.unet.engine import UnetEngine
from backend.unet.request import Mask, Segmentation
from common.sections import Unet
from common.wire import Lease


class UnetAdapter:
    """A request has one response, so nothing streams and nothing is joined."""

    inputs = ("image", "encoded", "threshold")

    def __init__(self, engine: UnetEngine, settings: Unet) -> None:
        self.engine = engine
        self._settings = settings

    def parse(self, inputs: Arrays, lease: Lease | None, wanted: frozenset[str]) -> Segmentation:
        """Checks every input on its own, since clients may reach Triton directly; raises RequestError."""
        want_probabilities = "probabilities" in wanted
        return unet_request.parse(inputs, lease, self.engine.limits, self._settings, want_probabilities)

    def streams(self, inputs: Arrays, lease: Lease | None) -> bool:
        """Never."""
        return False

    def greeting(self) -> Arrays:
        """Nothing to say before the mask."""
        return {}

    def key(self, result: Mask) -> int:
        """There is one."""
        return 0

    def join(self, first: Mask, second: Mask) -> Mask:
        """The engine puts one mask; a second would be the newer truth."""
        return second

    def tensors(self, results: list[Mask]) -> Arrays:
        """mask UINT8 [H, W] and, where asked for, probabilities FP32 [C, H, W]."""
        (result,) = results
        if result.probabilities is None:
            return {"mask": result.mask}
        return {"mask": result.mask, "probabilities": result.probabilities}
