import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from common.errors import VramgateError
from common.sections import Server
from frontend import cli, keyfile, tables
from frontend.commands import options
from frontend.service_client import ServiceClient, local_url

QUOTE = {
    "lines": [{"account": "llama.pages", "bytes": 3 * 2**20, "why": "7 prompt + 9 output tokens"}],
    "accounts": [
        {"account": "llama.pages", "price_bytes": 3 * 2**20, "available_bytes": 2**20, "capacity_bytes": 2**30}
    ],
    "total_bytes": 3 * 2**20,
    "drift": {"widened": 1.0, "excesses": 0, "worst": 1.0},
    "verdict": "wait",
    "decided_by": "llama.pages",
    "retry_after_s": 1.5,
}
LEDGER = {
    "accounts": [
        {
            "name": "llama.pages",
            "capacity_bytes": 2**30,
            "held_bytes": 2**20,
            "unleased_bytes": 0,
            "available_bytes": 2**30 - 2**20,
            "overdraft_bytes": 0,
            "drift_bytes": None,
        }
    ],
    "leases": [
        {
            "id": "lease-1",
            "model": "llama",
            "state": "running",
            "total_bytes": 2**20,
            "age_s": 1.0,
            "expected_left_s": 2.0,
        }
    ],
    "engines": [{"model": "unet", "ready": False, "reason": "it has not answered yet"}],
    "waiting": 3,
    "closed": None,
}


@contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[str, list[Any]]]:
    """A server that gives one answer to everything; its address, and the bodies it is sent."""
    sent: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", sent
        finally:
            server.shutdown()
            thread.join()


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit status of the command line."""
    monkeypatch.setattr("sys.argv", ["vramgate", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def text_of(renderable: Any) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_a_quote_shows_every_line_and_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(200, json.dumps(QUOTE).encode()) as (url, sent):
        assert run(monkeypatch, "quote", "--url", url, "--prompt", "hi", "--max-tokens", "9") == 0
    assert sent == [{"model": "llama", "prompt": "hi", "max_tokens": 9, "n": 1}]
    shown = capsys.readouterr().out
    assert "3,145,728" in shown
    assert "7 prompt + 9 output tokens" in shown
    assert "now: wait, because of llama.pages" in shown


def test_a_quote_for_an_image_sends_its_size_and_not_its_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Path(__file__).parents[2] / "docs" / "nuclei.png"
    with answering(200, json.dumps(QUOTE).encode()) as (url, sent):
        assert run(monkeypatch, "quote", "--url", url, "--image", str(sample)) == 0
    assert sent == [
        {"model": "unet", "format": "png", "height": 256, "width": 256, "encoded_bytes": sample.stat().st_size}
    ]


@pytest.mark.parametrize("arguments", [[], ["--prompt", "a", "--prompt-tokens", "3"]])
def test_a_quote_needs_one_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(monkeypatch, "quote", *arguments) == 2
    assert capsys.readouterr().err.startswith("vramgate: quote: give one of")


@pytest.mark.parametrize("file", ["/nowhere.png", __file__])
def test_a_file_that_is_no_image_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    assert run(monkeypatch, "quote", "--image", file) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_ledger_is_printed_once_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(200, json.dumps(LEDGER).encode()) as (url, _):
        assert run(monkeypatch, "ledger", "--url", url) == 0
    shown = capsys.readouterr().out
    assert "1.0 GiB" in shown
    assert "1 leases, 3 waiting, admission open" in shown


def test_an_engine_that_never_answered_is_shown_with_its_reason() -> None:
    assert "not ready: it has not answered yet" in text_of(tables.ledger(LEDGER))


def test_the_services_own_words_are_passed_on() -> None:
    body = json.dumps({"error": {"message": "the prompt has 9,000 tokens, the context 8,192"}}).encode()
    with answering(400, body) as (url, _), pytest.raises(VramgateError, match="the context 8,192"):
        ServiceClient(url).post("/v1/quote", {})


def test_something_else_that_listens_there_is_no_vramgate() -> None:
    with answering(200, b"<html>") as (url, _), pytest.raises(VramgateError, match="is no vramgate"):
        ServiceClient(url).get("/v1/ledger")


def test_no_service_is_one_line_with_the_way_to_start_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "ledger", "--url", "http://127.0.0.1:1") == 2
    shown = capsys.readouterr().err
    assert "start one with `vramgate up`" in shown
    assert len(shown.splitlines()) == 1


def test_a_malformed_setting_is_one_line_that_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VRAMGATE_LLAMA__MAX_BATCH", "many")
    assert run(monkeypatch, "doctor") == 2
    shown = capsys.readouterr().err
    assert shown.startswith("vramgate: llama.max_batch:")
    assert len(shown.splitlines()) == 1


def test_a_port_that_is_no_number_is_refused_by_the_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "up", "--port", "http") == 2
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:8080"),
        ("gpu.example", "http://gpu.example:8080"),
    ],
)
def test_a_client_here_reaches_the_frontend_however_it_listens(host: str, url: str) -> None:
    assert local_url(Server(host=host)) == url


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**40, "3.0 TiB"), (2**51, "2,048.0 TiB")],
)
def test_sizes_are_for_readers(bytes_: int, text: str) -> None:
    assert tables.size(bytes_) == text


def test_a_key_is_printed_once_and_known_until_it_is_revoked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.json"
    monkeypatch.setenv("VRAMGATE_TENANTS__FILE", str(file))
    monkeypatch.setattr(options, "console", Console(width=200))
    assert run(monkeypatch, "keys", "add", "alice", "--share", "2", "--quota", "2GiB", "--model", "llama") == 0
    first = capsys.readouterr().out.strip()
    assert run(monkeypatch, "keys", "add", "alice", "--operator") == 0
    second = capsys.readouterr().out.strip()
    (alice,) = keyfile.read(file)
    assert (alice.share, alice.quota_bytes, alice.models, alice.operator) == (2.0, 2 * 2**30, ("llama",), True)
    assert [keyfile.owner((alice,), key) for key in (first, second)] == [alice, alice]
    assert run(monkeypatch, "keys", "list") == 0
    listed = capsys.readouterr().out
    assert "2.0 GiB" in listed
    assert first not in listed
    assert run(monkeypatch, "keys", "revoke", "alice", "--key", keyfile.hash_of(first)[:8]) == 0
    assert [keyfile.owner(keyfile.read(file), key) for key in (first, second)] == [None, *keyfile.read(file)]
    assert run(monkeypatch, "keys", "revoke", "alice") == 0
    assert keyfile.read(file) == ()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "Not A Name"), "name"),
        (("add", "alice", "--quota", "plenty"), "--quota"),
        (("add", "alice", "--share", "-1"), "share"),
        (("revoke", "nobody"), "no tenant 'nobody'"),
    ],
)
def test_a_key_that_cannot_be_made_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.setenv("VRAMGATE_TENANTS__FILE", str(tmp_path / "keys.json"))
    assert run(monkeypatch, "keys", *arguments) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "keys.json").exists()


def test_the_command_line_shows_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMGATE_TENANTS__KEY", "vg-mine")
    request = urllib.request.Request("http://nowhere", headers=options.client("http://x", None, None)._headers)
    assert request.get_header("Authorization") == "Bearer vg-mine"
