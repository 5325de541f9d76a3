"""Scripts of people who call Triton with ``tritonclient``; only their URL is ours."""

from urllib.parse import urlsplit

import numpy as np
from tritonclient import http


def complete(url: str, prompt: str, max_tokens: int, timeout_s: float) -> str:
    """The language model's answer through ``infer``; raises InferenceServerException."""
    inputs = [_input("text_input", np.array([prompt.encode()], dtype=np.object_), "BYTES")]
    inputs += [
        _input("max_tokens", np.array([max_tokens], dtype=np.int32), "INT32"),
        _input("temperature", np.array([0.0], dtype=np.float32), "FP32"),
    ]
    with _client(url, timeout_s) as client:
        return str(client.infer("llama", inputs).as_numpy("text_output")[0])


def segment(url: str, picture: bytes, timeout_s: float) -> tuple[int, ...]:
    """Shape of the mask of an encoded picture; raises InferenceServerException."""
    inputs = [_input("encoded", np.array([picture], dtype=np.object_), "BYTES")]
    with _client(url, timeout_s) as client:
        return tuple(client.infer("unet", inputs).as_numpy("mask").shape)


def _client(url: str, timeout_s: float) -> http.InferenceServerClient:
    return http.InferenceServerClient(urlsplit(url).netloc, connection_timeout=timeout_s, network_timeout=timeout_s)


def _input(name: str, values: np.ndarray, datatype: str) -> http.InferInput:  # type: ignore[type-arg]
    tensor = http.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return tensor
