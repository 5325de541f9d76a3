"""``tritonclient.http``, unchanged but for the URL, against the whole service: real server, real weights."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray
from PIL import Image
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.integration.running import Running

ENDED_S = 10.0
IMAGE = np.random.default_rng(5).integers(0, 256, (40, 31, 3), dtype=np.uint8)
PROMPT = b"The sun rises in the"


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(service.url.removeprefix("http://"), network_timeout=120) as one:
        yield one


@pytest.fixture(scope="module")
def direct(service: Running) -> Iterator[triton.InferenceServerClient]:
    """The model server itself, for what the answer would have been."""
    with triton.InferenceServerClient(service.triton_url.removeprefix("http://"), network_timeout=120) as one:
        yield one


@pytest.fixture(autouse=True)
def idle_afterwards(service: Running) -> Iterator[None]:
    """Whatever a test did, its leases end."""
    yield
    service.wait_for(lambda: service.held_bytes() == 0, ENDED_S)


def strings(*values: bytes) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def tensor(name: str, array: NDArray[Any], binary: bool = True) -> triton.InferInput:
    return triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)).set_data_from_numpy(
        array, binary_data=binary
    )


def text_inputs(max_tokens: int = 8, **more: NDArray[Any]) -> list[triton.InferInput]:
    """A greedy request."""
    arrays = {
        "text_input": strings(PROMPT),
        "max_tokens": np.array([max_tokens], np.int32),
        "temperature": np.array([0], np.float32),
    }
    return [tensor(name, array) for name, array in (arrays | more).items()]


def png(array: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def refusal(ask: Callable[[], object], status: int, says: str) -> None:
    """The call is refused, and tritonclient's exception shows our words."""
    with pytest.raises(InferenceServerException) as caught:
        ask()
    assert caught.value.status() == str(status)
    assert says in str(caught.value)


def test_server_and_models_introduce_themselves(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("llama")
    assert client.is_model_ready("unet", "1")
    assert client.get_server_metadata()["name"] == "triton"
    names = {item["name"] for item in client.get_model_metadata("unet")["inputs"]}
    assert names == {"image", "encoded", "threshold"}
    assert client.get_model_config("llama")["model_transaction_policy"]["decoupled"]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("outputs", [None, {"mask": True}, {"mask": False}, {"probabilities": True, "mask": True}])
def test_masks_are_those_of_the_model_server(
    client: triton.InferenceServerClient,
    direct: triton.InferenceServerClient,
    binary: bool,
    outputs: dict[str, bool] | None,
) -> None:
    inputs = [tensor("image", IMAGE, binary)]
    named = outputs if outputs is not None else {"mask": True}
    wanted = [triton.InferRequestedOutput(name, binary_data=form) for name, form in named.items()]
    ours = client.infer("unet", inputs, outputs=None if outputs is None else wanted, request_id="7")
    theirs = direct.infer("unet", inputs, outputs=wanted, request_id="7")
    assert ours.get_response() == theirs.get_response()
    for name in named:
        np.testing.assert_array_equal(ours.as_numpy(name), theirs.as_numpy(name))
    assert ours.as_numpy("mask").shape == IMAGE.shape[:2]


def test_encoded_image_has_the_mask_of_its_pixels(client: triton.InferenceServerClient) -> None:
    encoded = client.infer("unet", [tensor("encoded", strings(png(IMAGE)))]).as_numpy("mask")
    np.testing.assert_array_equal(encoded, client.infer("unet", [tensor("image", IMAGE)]).as_numpy("mask"))


def test_threshold_decides_the_mask(client: triton.InferenceServerClient) -> None:
    wanted = [triton.InferRequestedOutput(name) for name in ("mask", "probabilities")]
    result = client.infer("unet", [tensor("image", IMAGE)], outputs=wanted)
    probabilities = result.as_numpy("probabilities")
    middle = np.median(probabilities).astype(np.float32)
    assert 0 < middle < 1
    inputs = [tensor("image", IMAGE), tensor("threshold", np.array([middle]))]
    shares = (probabilities[0] > middle).mean(), client.infer("unet", inputs).as_numpy("mask").mean()
    assert shares[1] == pytest.approx(shares[0], abs=0.02)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_are_read(client: triton.InferenceServerClient, algorithm: str) -> None:
    inputs = [tensor("image", IMAGE)]
    result = client.infer(
        "unet", inputs, request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
    )
    np.testing.assert_array_equal(result.as_numpy("mask"), client.infer("unet", inputs).as_numpy("mask"))


def test_infer_on_the_language_model_gathers_its_stream(client: triton.InferenceServerClient, service: Running) -> None:
    result = client.infer("llama", text_inputs(), request_id="r1")
    assert result.get_response()["id"] == "r1"
    (text,) = result.as_numpy("text_output")
    assert text.decode().strip()
    assert result.as_numpy("token_ids").shape == (8,)
    assert result.as_numpy("finish_reason").tolist() == [b"length"]
    assert result.as_numpy("statement") is None
    body = {"text_input": PROMPT.decode(), "max_tokens": 8, "temperature": 0}
    alone = httpx.post(f"{service.triton_url}/v2/models/llama/generate", json=body, timeout=60).json()
    assert alone["text_output"] == text.decode(), "what the model server says without us"


def test_outputs_of_the_language_model_come_as_asked_for(client: triton.InferenceServerClient) -> None:
    wanted = [
        triton.InferRequestedOutput("text_output", binary_data=False),
        triton.InferRequestedOutput("logprobs", binary_data=True),
    ]
    many = {"n": np.array([2], np.int32), "logprobs": np.array([2], np.int32)}
    result = client.infer("llama", text_inputs(4, **many), outputs=wanted)
    assert [output["name"] for output in result.get_response()["outputs"]] == ["text_output", "logprobs"]
    assert len(result.get_output("text_output")["data"]) == 2
    assert [len(json.loads(text)) for text in result.as_numpy("logprobs")] == [4, 4]


def test_generate_and_its_stream_say_what_the_model_server_says(service: Running) -> None:
    body = {"text_input": PROMPT.decode(), "parameters": {"max_tokens": 8, "temperature": 0}}
    path = "/v2/models/llama/generate"
    ours = httpx.post(service.url + path, json=body, timeout=60).json()
    theirs = httpx.post(service.triton_url + path, json=body, timeout=60).json()
    theirs.pop("statement")
    assert ours == theirs
    answer = httpx.post(f"{service.url}{path}_stream", json=body | {"stream": True}, timeout=60)
    events = [json.loads(block.removeprefix("data: ")) for block in answer.text.split("\n\n") if block]
    assert "".join(event["text_output"] for event in events) == ours["text_output"]
    assert events[-1]["finish_reason"] == "length"
    assert {event["model_name"] for event in events} == {"llama"}


def test_a_client_that_leaves_a_generate_stream_ends_the_work(service: Running) -> None:
    body = {"text_input": PROMPT.decode(), "max_tokens": 4000, "temperature": 0}
    with httpx.stream("POST", f"{service.url}/v2/models/llama/generate_stream", json=body, timeout=60) as stream:
        next(stream.iter_lines())
        assert service.held_bytes() > 0
    service.wait_for(lambda: service.held_bytes() == 0, ENDED_S)


BAD: list[tuple[str, dict[str, NDArray[Any]], int, str]] = [
    ("unet", {"image": IMAGE[..., :1]}, 400, "[H, W, 3]"),
    ("unet", {"image": IMAGE.reshape(1, *IMAGE.shape)}, 400, "[H, W, 3]"),
    ("unet", {"image": IMAGE[:0]}, 400, "[H, W, 3]"),
    ("unet", {"image": IMAGE.astype(np.float32)}, 400, "UINT8"),
    ("unet", {"picture": IMAGE}, 400, "'picture'"),
    ("unet", {"threshold": np.array([0.5], np.float32)}, 400, "either"),
    ("unet", {"image": IMAGE, "threshold": np.array([np.nan], np.float32)}, 400, "threshold"),
    ("unet", {"encoded": strings(b"no image")}, 400, "no image"),
    ("unet", {"encoded": strings(png(IMAGE)[:700])}, 400, "broken"),
    ("unet", {"image": IMAGE, "lease": strings(b"{}")}, 403, "'lease'"),
    ("unet", {"control": strings(b'{"op": "status"}')}, 403, "'control'"),
    ("unet", {"image": np.zeros((1, 150_000, 3), np.uint8)}, 413, "unet.canvas"),
    ("llama", {"max_tokens": np.array([1], np.int32)}, 400, "text_input"),
    ("llama", {"text_input": strings(b"")}, 400, "text_input"),
    ("llama", {"text_input": strings(b"\xff")}, 400, "UTF-8"),
    ("llama", {"text_input": strings(b"a"), "max_tokens": np.array([0], np.int32)}, 400, "max_tokens"),
    ("llama", {"text_input": strings(b"a"), "max_tokens": np.array([2**31 - 1], np.int32)}, 400, "max_tokens"),
    ("llama", {"text_input": strings(b"a"), "max_tokens": np.array([1], np.int64)}, 400, "INT32"),
    ("llama", {"input_ids": np.array([10**6], np.int32)}, 400, "input_ids"),
    ("llama", {"text_input": strings(b"a"), "lease": strings(b"{}")}, 403, "'lease'"),
    ("llama", {"control": strings(b'{"op": "status"}')}, 403, "'control'"),
    ("resnet", {"image": IMAGE}, 404, "'resnet'"),
]


@pytest.mark.parametrize(
    ("model", "inputs", "status", "says"), BAD, ids=[f"{model} {' '.join(inputs)}" for model, inputs, *_ in BAD]
)
def test_bad_requests_are_refused_in_our_words_and_the_next_one_works(
    client: triton.InferenceServerClient, model: str, inputs: dict[str, NDArray[Any]], status: int, says: str
) -> None:
    refusal(lambda: client.infer(model, [tensor(*item) for item in inputs.items()]), status, says)
    assert client.infer("unet", [tensor("image", IMAGE[:1, :1])]).as_numpy("mask").shape == (1, 1)


def test_management_is_forbidden(client: triton.InferenceServerClient) -> None:
    for ask in (
        lambda: client.load_model("unet"),
        lambda: client.unload_model("unet"),
        client.get_model_repository_index,
        client.get_system_shared_memory_status,
        lambda: client.register_system_shared_memory("region", "/key", 8),
        client.get_cuda_shared_memory_status,
        client.get_trace_settings,
        client.get_log_settings,
        lambda: client.get_inference_statistics("unet"),
    ):
        refusal(ask, 403, "not for clients")
    assert client.is_server_ready()


def test_shared_memory_in_a_request_is_forbidden(client: triton.InferenceServerClient) -> None:
    there = triton.InferInput("image", [1, 1, 3], "UINT8")
    there.set_shared_memory("region", 3)
    refusal(lambda: client.infer("unet", [there]), 403, "shared memory")


def test_deadline_of_the_client_is_kept(client: triton.InferenceServerClient) -> None:
    # The engine keeps the same deadline, so the words are those of whoever is first.
    refusal(lambda: client.infer("llama", text_inputs(4000), timeout=500_000), 504, "")


def test_malformed_bodies_are_refused_at_once(service: Running) -> None:
    url = f"{service.url}/v2/models/unet/infer"
    for headers, content in (
        ({}, b"{"),
        ({}, b'{"inputs": [], "surprise": 1}'),
        ({"Inference-Header-Content-Length": "999"}, b"{}"),
        ({"Content-Encoding": "gzip"}, b"{}"),
    ):
        answer = httpx.post(url, headers=headers, content=content)
        assert answer.status_code == 400
        assert isinstance(answer.json()["error"], str)
    assert httpx.get(url).status_code == 405
