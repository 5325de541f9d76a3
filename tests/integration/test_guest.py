"""A model of the operator's own, on the real model server, guarded by the same ledger."""

from typing import Any

import numpy as np
import pytest
import tritonclient.http as http
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from common.wire import CARD
from tests.integration.running import Running


def edges(service: Running, height: int, width: int) -> NDArray[np.uint8]:
    image = np.zeros((height, width), np.uint8)
    image[:, width // 2 :] = 255
    asked = http.InferInput("image", [height, width], "UINT8")
    asked.set_data_from_numpy(image)
    with http.InferenceServerClient(f"127.0.0.1:{service.port}") as client:
        found = client.infer("edges", [asked]).as_numpy("edges")
    assert isinstance(found, np.ndarray)
    return found


def statements(service: Running) -> list[dict[str, Any]]:
    """Of the guest; the journal writes a little later than the answer."""
    return [one for one in service.get("/v1/statements")["statements"] if one["model"] == "edges"]


def test_a_guest_answers_through_the_frontend_and_gives_its_bytes_back(service: Running) -> None:
    found = edges(service, 20, 30)
    assert found.shape == (20, 30)
    inner = found[1:-1]
    assert (inner[:, 14:16] == 255).all()
    assert not inner[:, 1:13].any()
    card = next(account for account in service.get("/v1/ledger")["accounts"] if account["name"] == CARD)
    assert (card["capacity_bytes"], card["held_bytes"]) == (4 * 2**20, 0)
    service.wait_for(lambda: statements(service), 10)
    (newest, *_) = statements(service)
    assert newest["outcome"] == "settled"
    assert newest["quoted_bytes"] > 2**20 + 24 * 20 * 30


def test_a_guest_that_asks_for_more_than_all_guests_have_never_reaches_the_model(service: Running) -> None:
    with pytest.raises(InferenceServerException, match="4,194,304 in all") as refused:
        edges(service, 400, 400)
    assert "413" in str(refused.value)


def test_a_guest_says_itself_whether_it_is_ready(service: Running) -> None:
    with http.InferenceServerClient(f"127.0.0.1:{service.port}") as client:
        assert client.is_model_ready("edges")
        assert client.get_model_metadata("edges")["inputs"][0]["name"] == "image"
