from typing import Any

import pytest

from tests.unit.fake_parts import Parts
from tests.unit.v2_kit import IMAGE, ask, image_input, refused, written


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_generate_on_images_is_refused_with_advice(verb: str) -> None:
    refused(ask(Parts(), "POST", f"/v2/models/unet/{verb}", json={"image": [1]}), 400, "/v1/segment")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/llama/load"),
        ("POST", "/v2/repository/models/llama/unload"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/systemsharedmemory/region/x/register"),
        ("POST", "/v2/cudasharedmemory/region/x/register"),
        ("GET", "/v2/trace/setting"),
        ("POST", "/v2/models/llama/trace/setting"),
        ("GET", "/v2/logging"),
        ("POST", "/v2/logging"),
        ("GET", "/v2/models/llama/stats"),
        ("GET", "/v2/models/llama/versions/1/stats"),
        ("GET", "/v2/models"),
        ("GET", "/v2/"),
        ("GET", "/v2/models/llama/../../repository/index"),
        ("GET", "/v2/models/llama%2F..%2F..%2Frepository/index"),
    ],
)
def test_management_is_forbidden(method: str, path: str) -> None:
    parts = Parts()
    refused(ask(parts, method, path), 403, "not for clients")
    assert parts.triton.asked == []


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v2/models/llama/infer"), ("POST", "/v2"), ("DELETE", "/v2/models/unet")]
)
def test_wrong_verb_on_a_served_route_is_said_so(method: str, path: str) -> None:
    refused(ask(Parts(), method, path), 405, method)


def test_models_without_a_price_are_forbidden_and_unknown_ones_not_found() -> None:
    parts = Parts()
    parts.triton.answers["/v2/models/resnet"] = {"name": "resnet"}
    for method, path in (("GET", "/v2/models/{}"), ("POST", "/v2/models/{}/infer"), ("GET", "/v2/models/{}/ready")):
        refused(ask(parts, method, path.format("resnet")), 403, "no price")
        assert refused(ask(parts, method, path.format("nothing")), 404, "nothing")["code"] == "model_not_found"
    refused(ask(parts, "GET", "/v2/models/llama/versions/2"), 404, "version")
    refused(ask(parts, "POST", "/v2/models/unet/versions/x/infer"), 404, "version")


def test_health_is_that_of_the_whole_service() -> None:
    parts = Parts()
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/llama/ready", "/v2/models/unet/versions/1/ready"):
        assert ask(parts, "GET", path).status_code == 200
    parts.engines.trouble = {"unet": "loading"}
    assert ask(parts, "GET", "/v2/health/live").status_code == 200
    refused(ask(parts, "GET", "/v2/health/ready"), 503, "unet: loading")
    refused(ask(parts, "GET", "/v2/models/unet/ready"), 503, "loading")
    assert ask(parts, "GET", "/v2/models/llama/ready").status_code == 200
    refused(ask(parts, "POST", "/v2/models/unet/infer", **written({"image": IMAGE})), 503, "loading")


def test_metadata_shows_what_clients_may_use() -> None:
    parts = Parts()
    tensors = [{"name": "image"}, {"name": "lease"}, {"name": "control"}]
    outputs = [{"name": "mask"}, {"name": "statement"}, {"name": "control"}]
    parts.triton.answers = {
        "/v2": {
            "name": "triton",
            "extensions": ["classification", "model_repository(unload_dependents)", "statistics"],
        },
        "/v2/models/unet": {"name": "unet", "versions": ["1"], "inputs": tensors, "outputs": outputs},
        "/v2/models/unet/config": {"name": "unet", "input": tensors, "output": outputs, "max_batch_size": 0},
    }
    assert ask(parts, "GET", "/v2").json()["extensions"] == ["classification"]
    about = {"name": "unet", "versions": ["1"], "inputs": [{"name": "image"}], "outputs": [{"name": "mask"}]}
    assert ask(parts, "GET", "/v2/models/unet").json() == about
    assert ask(parts, "GET", "/v2/models/unet/versions/1").json() == about
    config = ask(parts, "GET", "/v2/models/unet/config").json()
    assert config == {"name": "unet", "input": [{"name": "image"}], "output": [{"name": "mask"}], "max_batch_size": 0}


def test_masses_of_wrong_fields_cost_no_masses_of_errors() -> None:
    many = {str(number): None for number in range(100_000)}
    bodies: list[dict[str, Any]] = [{"inputs": [image_input()], "parameters": many}, {"inputs": [{}] * 100_000}, many]
    for body in bodies:
        refused(ask(Parts(), "POST", "/v2/models/unet/infer", json=body), 400)
    refused(ask(Parts(), "POST", "/v2/models/llama/generate", json={"text_input": "a", "parameters": many}), 400)
