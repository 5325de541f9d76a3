import json
import re
from pathlib import Path

from common.settings import Settings
from frontend.app import create_app
from frontend.metrics import ROUTES as COUNTED
from frontend.openapi import ROUTES, document
from tests.unit.test_route_names import route_of

CONTRACT = Path(__file__).parents[2] / "docs" / "openapi.json"


def test_the_contract_in_docs_is_the_one_in_force() -> None:
    assert json.loads(CONTRACT.read_text(encoding="utf-8")) == document(), "vramgate openapi --out docs/openapi.json"


def test_every_route_of_the_contract_is_served_and_every_counted_one_is_in_it() -> None:
    told = {route.path for route in ROUTES}
    for route in ROUTES:
        assert route_of(route.method.upper(), re.sub(r"\{\w+\}", "llama", route.path)) not in (
            "none",
            "/v2/{rest:path}",
        )
    assert {path.replace(":path", "") for path in COUNTED - {"none"}} <= told


def test_every_reference_leads_somewhere() -> None:
    told = document()
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(told)):
        assert name in told["components"]["schemas"]


def test_no_route_of_the_app_serves_a_contract_of_its_own() -> None:
    assert create_app(Settings()).openapi_url is None
