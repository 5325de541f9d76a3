"""A guest: the strength of edges in a grey image, by Sobel's operator. A whole model of one's own in a page."""

from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One request after the other; what each adds to the card is priced by ``guests.models.edges``."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads, and takes the wall that holds a wrong law: this process gets no more than guests may hold."""
        import torch

        from backend import allocator
        from backend.device import pick
        from common import settings

        told = settings.load()
        self._torch, self._device = torch, pick(told)
        allocator.wall(self._device, int(told.guests.capacity))
        across = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
        self._kernels = torch.stack([across, across.t()])[:, None].to(self._device)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers each by itself, so that one that fails does not take the others along."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
        try:
            edges = self._edges(image)
        except RuntimeError as error:
            return pb_utils.InferenceResponse([], pb_utils.TritonError(f"[INTERNAL] edges: {type(error).__name__}"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("edges", edges)])

    def _edges(self, image: Any) -> Any:
        """uint8 [H, W] -> uint8 [H, W]. At most 5 float32 a pixel are alive at once: 20 bytes, and the input."""
        with self._torch.inference_mode():
            grey = self._torch.from_numpy(image.copy()).to(self._device).float()[None, None]
            gradients = self._torch.nn.functional.conv2d(grey, self._kernels, padding=1)[0]
            return gradients.norm(dim=0).clamp_(max=255).byte().cpu().numpy()
