"""The segmentation model as Triton sees it: everything is delegated to `backend.service`."""

from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Requests are handed over and answered later, from the engine's side, so any number overlap."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the weights, takes the standing memory, warms up; what is imported here is not paid for twice."""
        from backend import service

        try:
            self._service = service.start("unet", pb_utils)
        except Exception as error:
            raise pb_utils.TritonModelException(f"unet: {error}") from error

    def execute(self, requests: list[Any]) -> None:
        """Starts the requests and returns at once; their response senders answer."""
        for request in requests:
            self._service.accept(request)

    def is_ready(self) -> bool:
        """Asked by servers from 26.03 on."""
        return self._service.is_ready()

    def finalize(self) -> None:
        """Ends the running work and frees the device."""
        self._service.close()
