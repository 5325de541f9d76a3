import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.errors import SettingsError, Unauthenticated
from common.settings import Settings
from frontend import keyfile
from frontend.access import LOOK_S, KeyRing
from frontend.routes import bank, health, kserve, openai, predict, segment
from frontend.tenants import ANYONE, Tenant
from tests.unit.fake_parts import Parts, check_error

PROBES = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")


def add(file: Path, tenant: Tenant) -> str:
    """A new key of this tenant."""
    key = keyfile.make_key()
    with keyfile.editing(file) as tenants:
        tenants[tenant.name] = Tenant(**{**vars(tenant), "keys": (keyfile.hash_of(key),)})
    return key


class House:
    """The app with an operator, a guest, and one who may use one model only."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys.json"
        self.operator = add(self.file, Tenant("boss", operator=True))
        self.guest = add(self.file, Tenant("guest", deadline_s=7.0))
        self.painter = add(self.file, Tenant("painter", models=("unet",)))
        self.parts = Parts(Settings.model_validate({"tenants": {"file": str(self.file)}}))

    def ask(
        self, path: str, key: str = "", client: str = "10.0.0.9", method: str = "GET", **headers: str | bytes
    ) -> httpx.Response:
        """A request from another machine."""
        told: dict[str, Any] = {"authorization": f"Bearer {key}"} if key else {}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}

        async def get() -> httpx.Response:
            transport = httpx.ASGITransport(self.parts._app, raise_app_exceptions=False, client=(client, 5000))
            async with httpx.AsyncClient(transport=transport, base_url="http://vramgate") as web:
                return await web.request(method, path, headers=told)

        return asyncio.run(get())


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_quote_is_refused_where_the_request_would_be(house: House) -> None:
    headers = {"authorization": f"Bearer {house.painter}"}
    body = {"model": "llama", "prompt_tokens": 5}
    answer = asyncio.run(house.parts.ask("POST", "/v1/quote", json=body, headers=headers))
    assert "may not use llama" in check_error(answer, 403, "forbidden")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_no_route_has_a_way_around_the_door(house: House, method: str) -> None:
    modules = (openai, segment, kserve, predict, bank, health)
    declared = [getattr(route, "path", "") for module in modules for route in module.router.routes]
    paths = {re.sub(r"{[^}]*}", "llama", path) for path in declared}
    assert {"/metrics", "/predict", "/v2/models/llama/infer", "/v2/models/llama/versions/llama/infer"} <= paths
    assert {path: house.ask(path, method=method).status_code for path in paths - set(PROBES)} == dict.fromkeys(
        paths - set(PROBES), 401
    )


def test_who_has_no_key_or_a_wrong_one_stays_outside(house: House) -> None:
    for path in ("/v1/models", "/v1/ledger", "/v2/models/llama", "/v2", "/nowhere"):
        for key in ("", "vg-wrong", house.guest[:-1]):
            answer = house.ask(path, key)
            assert answer.status_code == 401, (path, key)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert house.guest not in answer.text
    assert "x-api-key" in check_error(house.ask("/v1/models"), 401, "invalid_api_key")
    assert "not known" in check_error(house.ask("/v1/models", "vg-wrong"), 401, "invalid_api_key")


def test_a_key_is_read_as_openai_clients_send_it_and_from_a_header_of_its_own(house: House) -> None:
    assert house.ask("/v1/models", house.guest).status_code == 200
    assert house.ask("/v1/models", authorization=f"bearer  {house.guest}").status_code == 200
    assert house.ask("/v1/models", x_api_key=house.guest).status_code == 200
    assert house.ask("/v1/models", authorization=f"Basic {house.guest}").status_code == 401
    assert house.ask("/v1/models", authorization=b"Bearer \xff").status_code == 401


def test_probes_are_open_and_metrics_on_this_machine(house: House) -> None:
    assert 401 not in [house.ask(path).status_code for path in PROBES]
    assert house.ask("/metrics", client="127.0.0.1").status_code != 401
    assert house.ask("/metrics").status_code == 401
    check_error(house.ask("/metrics", house.guest), 403, "forbidden")


def test_the_books_of_all_are_for_operators(house: House) -> None:
    assert "operator" in check_error(house.ask("/v1/ledger", house.guest), 403, "forbidden")


def test_a_tenants_deadline_holds_where_the_request_names_none(house: House) -> None:
    body: dict[str, Any] = {"model": "llama", "prompt": "x", "max_tokens": 3}
    headers = {"authorization": f"Bearer {house.guest}"}
    asyncio.run(house.parts.ask("POST", "/v1/completions", json=body, headers=headers))
    asyncio.run(house.parts.ask("POST", "/v1/completions", json=body, headers=headers | {"x-request-timeout": "9"}))
    assert house.parts.teller.timeouts_s == [7.0, 9.0]


def test_the_key_file_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, now_s = tmp_path / "keys.json", [0.0]
    old = add(file, Tenant("old"))
    ring = KeyRing(file, lambda: now_s[0])
    new = add(file, Tenant("new"))
    with keyfile.editing(file) as tenants:
        del tenants["old"]
    assert ring.admit(old).name == "old", "not yet looked at"
    now_s[0] = LOOK_S
    assert ring.admit(new).name == "new"
    with pytest.raises(Unauthenticated):
        ring.admit(old)
    file.write_text("{ half a file")
    now_s[0] += LOOK_S
    assert ring.admit(new).name == "new"
    assert "keys before it stay good" in caplog.text
    file.unlink()
    now_s[0] += LOOK_S
    assert ring.admit(new).name == "new", "a file that is gone opens nothing and closes nothing"
    with pytest.raises(Unauthenticated):
        ring.admit(None)


def test_without_a_file_everybody_is_anyone() -> None:
    assert KeyRing(None, lambda: 0.0).admit("whatever an SDK sends") == ANYONE


def test_an_app_that_nobody_guards_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"tenants\.open"):
        Parts(Settings.model_validate({"server": {"host": "0.0.0.0"}}))
