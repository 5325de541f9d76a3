"""Dashboards and alerts speak of metrics that exist."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from backend.gauges import GAUGES
from frontend.metrics import Metrics

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
PAGES = sorted((DOCKER / "grafana" / "dashboards").glob("*.json"))
RULES = DOCKER / "prometheus" / "rules.yml"
NAME = re.compile(r"\bvramgate_\w+")
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


def series() -> set[str]:
    """Names of all series that the service can have."""
    families = text_string_to_metric_families(Metrics().render().decode())
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]} | set(GAUGES)


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels(page: Path) -> list[dict[str, Any]]:
    told = json.loads(page.read_text(encoding="utf-8"))["panels"]
    assert isinstance(told, list)
    return told


def queries(page: Path) -> Iterator[str]:
    yield from (target["expr"] for panel in panels(page) for target in panel.get("targets", ()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_metric_of_a_page_exists(page: Path) -> None:
    named = {name for query in queries(page) for name in NAME.findall(query)}
    assert named
    assert named <= series()


def test_every_metric_of_an_alert_exists() -> None:
    named = {name for rule in alerts() for name in NAME.findall(rule["expr"])}
    assert named
    assert named <= series()


def test_every_metric_of_the_service_is_on_a_page() -> None:
    shown = {name for page in PAGES for query in queries(page) for name in NAME.findall(query)}
    alerted = {name for rule in alerts() for name in NAME.findall(rule["expr"])}
    families = {family.name for family in text_string_to_metric_families(Metrics().render().decode())}
    families = {family for family in families if not family.endswith("_created")}
    unseen = {family for family in families if not any(name.startswith(family) for name in shown | alerted)}
    assert not unseen, "new metrics: show them in docker/grafana/*.py, then run docker/grafana/build.py"


def test_the_pages_are_what_their_sources_say(tmp_path: Path) -> None:
    subprocess.run([sys.executable, DOCKER / "grafana" / "build.py", tmp_path], check=True, timeout=60)
    assert {page.name: page.read_text() for page in PAGES} == {
        page.name: page.read_text() for page in tmp_path.glob("*.json")
    }, "run `python docker/grafana/build.py`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_panel_lies_on_another_and_each_says_what_it_shows(page: Path) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels(page):
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
                assert x < 24
        assert panel["type"] in ("row", "text") or panel["description"]


def test_the_operators_page_begins_with_the_five_golden_metrics() -> None:
    page = DOCKER / "grafana" / "dashboards" / "operators.json"
    golden = [NAME.findall(panel["targets"][0]["expr"])[0] for panel in panels(page)[1:7]]
    assert golden == [
        "vramgate_vram_used_ratio",
        "vramgate_vram_fragmentation_ratio",
        "vramgate_price_error_ratio_bucket",
        "vramgate_queue_wait_seconds_bucket",
        "vramgate_refusals_total",
        "vramgate_oom_total",
    ]


def test_every_alert_says_what_to_do_and_the_runbook_has_the_rest() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    headings = {line.removeprefix("## ").strip() for line in text.splitlines() if line.startswith("## ")}
    for rule in alerts():
        assert rule["annotations"]["do"], rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["alert"] in headings


@pytest.mark.parametrize(
    "command", ["check rules rules.yml", "test rules rules_test.yml", "check config prometheus.yml"]
)
def test_promtool_has_no_complaint(command: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    words = command.replace("config", "config --syntax-only").split()
    run = subprocess.run(
        [promtool, *words], cwd=DOCKER / "prometheus", capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr
