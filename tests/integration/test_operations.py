"""What operators rely on: the metrics they alert on, ids that lead through every log, and logs that quote nobody."""

import json
import re
import urllib.error
import urllib.request

from backend.gauges import GAUGES
from tests.integration.running import Running
from tests.unit.test_dashboards import NAME, PAGES, alerts, queries

MARKER = "zyxmarkerprompt"
BODIES = [
    ("/v1/completions", {"model": "llama", "prompt": MARKER, "max_tokens": 2}),
    ("/v1/completions", {"model": MARKER, "prompt": MARKER}),
    ("/v1/chat/completions", {"model": "llama", "messages": [{"role": "user", "content": MARKER}], "max_tokens": 2}),
    ("/v1/chat/completions", {"model": "llama", "messages": [{"role": MARKER, "content": MARKER}]}),
    ("/predict", {"prompt": MARKER, "max_new_tokens": 10**6}),
    ("/v1/quote", {"model": "llama", "prompt": MARKER}),
    ("/v2/models/llama/generate", {"text_input": MARKER, "max_tokens": 2}),
    ("/v2/models/llama/generate", {"text_input": MARKER, MARKER: MARKER}),
    (
        "/v2/models/llama/infer",
        {"inputs": [{"name": "text_input", "shape": [1], "datatype": MARKER, "data": [MARKER]}]},
    ),
    ("/v1/segment", {"image": MARKER}),
]


def post(service: Running, path: str, body: object, request_id: str = "") -> tuple[int, str]:
    """Status, and the request id that came back."""
    headers = {"content-type": "application/json"} | ({"x-request-id": request_id} if request_id else {})
    request = urllib.request.Request(service.url + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.headers["x-request-id"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["x-request-id"]


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return str(reply.read().decode())


def test_nothing_that_is_written_quotes_a_client(service: Running) -> None:
    statuses = [post(service, path, body)[0] for path, body in BODIES]
    assert 200 in statuses
    assert max(statuses) < 500
    written = [path for path in service.state_dir.rglob("*") if path.is_file()]
    assert {"output", "tritonserver.log"} <= {path.name for path in written}
    assert [path.name for path in written if MARKER.encode() in path.read_bytes()] == []
    assert MARKER not in text_of(f"{service.url}/metrics")


def test_a_requests_id_leads_from_the_client_to_the_engine(service: Running) -> None:
    told = "id-that-leads-through"
    status, back = post(service, "/v1/completions", {"model": "llama", "prompt": "a", "max_tokens": 1}, told)
    assert (status, back) == (200, told)
    lines = [line for line in service.output.splitlines() if f"request={told}" in line]
    assert "outcome=ok" in lines[-1]
    lease = re.search(r"lease=(\S+)", lines[-1])
    assert lease is not None
    engine = (service.state_dir / "tritonserver.log").read_text(encoding="utf-8")
    assert re.search(rf"accepted request={told} lease={lease[1]}", engine)


def test_every_metric_that_is_shown_or_alerted_on_is_there(service: Running) -> None:
    post(service, "/v1/completions", {"model": "llama", "prompt": "a", "max_tokens": 1})
    triton = text_of(f"http://127.0.0.1:{service.environ['VRAMGATE_TRITON__METRICS_PORT']}/metrics")
    assert set(GAUGES) <= set(re.findall(r"^# TYPE (\S+)", triton, re.MULTILINE))
    there = text_of(f"{service.url}/metrics") + triton
    families = set(re.findall(r"^# TYPE (\S+)", there, re.MULTILINE))
    named = {name for page in PAGES for query in queries(page) for name in NAME.findall(query)}
    named |= {name for rule in alerts() for name in NAME.findall(rule["expr"])}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in named} <= families
