"""Clients against a server that answers as told, over real sockets."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from loadtests.campaigns.campaign import Kind
from loadtests.campaigns.schedule import Shot
from loadtests.users.attempt import attempt
from loadtests.users.outcome import End, Outcome
from loadtests.users.requests import SEND, Target

PIECE = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}, "vram": {"quoted_bytes": 5}}\n\n'
DONE = b"data: [DONE]\n\n"
SILENT = b"silent"


class Scripted(BaseHTTPRequestHandler):
    status: ClassVar[int] = 200
    pieces: ClassVar[tuple[bytes, ...]] = ()
    over: ClassVar[threading.Event]
    paths: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.paths.append(self.path)
        self.send_response(self.status)
        self.end_headers()
        for piece in self.pieces:
            if piece is SILENT:
                self.wfile.flush()
                self.over.wait(5)
                return
            self.wfile.write(piece)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    Scripted.status, Scripted.pieces, Scripted.over, Scripted.paths = 200, (), threading.Event(), []
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        Scripted.over.set()
        httpd.shutdown()
        thread.join()


def sent(url: str, kind: Kind, *, seed: int = 3, give_up_s: float = 5.0, deadline_s: float = 5.0) -> Outcome:
    shot = Shot(0, 0.0, "1x", kind, prompt_tokens=8, output_tokens=4, megapixels=0.01, seed=seed)
    return attempt(Target(url, deadline_s=deadline_s, give_up_s=give_up_s), shot, 0.0)


def test_a_whole_stream_is_good_and_its_usage_and_bytes_are_kept(server: str) -> None:
    Scripted.pieces = (PIECE, PIECE, PIECE, USAGE, DONE)
    outcome = sent(server, Kind.CHAT)
    assert (outcome.end, outcome.prompt_tokens, outcome.output_tokens) == (End.GOOD, 7, 3)
    assert outcome.vram == {"quoted_bytes": 5}
    assert outcome.ttft_s is not None
    assert len(outcome.gaps_s) == 4


def test_an_answer_after_the_deadline_is_late(server: str) -> None:
    Scripted.pieces = (PIECE, USAGE, DONE)
    assert sent(server, Kind.CHAT, deadline_s=1e-9).end is End.LATE


@pytest.mark.parametrize(
    ("status", "body", "end"),
    [
        (429, b'{"error": {"message": "no room", "code": "rate_limit_exceeded"}}', End.REFUSED),
        (429, b'{"error": {"message": "no room, after waiting for 9 s", "code": "rate_limit_exceeded"}}', End.EXPIRED),
        (413, b'{"error": {"message": "never", "code": "never_fits"}}', End.REFUSED),
        (504, b'{"error": {"message": "too late"}}', End.LATE),
        (500, b'{"error": {"message": "CUDA out of memory. Tried to allocate 2 GiB"}}', End.OOM),
        (500, b"torch.OutOfMemoryError", End.OOM),
        (500, b"Internal Server Error", End.ERROR),
        (400, b'{"error": "[400] bad"}', End.ERROR),
        (200, b'data: {"error": {"message": "no bytes", "code": "rate_limit_exceeded"}}\n\n', End.REFUSED),
        (200, b'data: {"error": {"message": "not finished", "code": "timeout"}}\n\n', End.LATE),
        (200, b'data: {"error": {"message": "CUDA out of memory"}}\n\n', End.OOM),
        (200, b"data: [DONE]\n\n", End.ERROR),
    ],
)
def test_an_error_has_the_end_that_it_means(server: str, status: int, body: bytes, end: End) -> None:
    Scripted.status, Scripted.pieces = status, (body,)
    assert sent(server, Kind.CHAT).end is end


def test_the_numbers_of_a_refusal_are_kept(server: str) -> None:
    Scripted.status = 429
    Scripted.pieces = (b'{"error": {"message": "full", "price_bytes": 5, "capacity_bytes": 9, "code": "x"}}',)
    outcome = sent(server, Kind.COMPLETION)
    assert outcome.numbers == {"price_bytes": 5, "capacity_bytes": 9}


@pytest.mark.parametrize("pieces", [(SILENT,), (PIECE, SILENT)])
def test_a_service_without_an_end_hangs_its_client_for_as_long_as_it_bears(
    server: str, pieces: tuple[bytes, ...]
) -> None:
    Scripted.pieces = pieces
    outcome = sent(server, Kind.CHAT, give_up_s=0.1)
    assert outcome.end is End.HUNG
    assert outcome.latency_s < 3


def test_a_service_that_is_not_there_is_an_error() -> None:
    assert sent("http://127.0.0.1:1", Kind.CHAT).end is End.ERROR


def test_a_leaver_goes_in_the_middle(server: str) -> None:
    Scripted.pieces = (PIECE, PIECE, PIECE, SILENT)
    outcome = sent(server, Kind.LEAVER, seed=3)
    assert (outcome.end, outcome.output_tokens) == (End.LEFT, 3)


def test_a_leaver_goes_before_the_first_piece_too(server: str) -> None:
    Scripted.pieces = (SILENT,)
    outcome = sent(server, Kind.LEAVER, seed=800)
    assert (outcome.end, outcome.output_tokens) == (End.LEFT, 0)


@pytest.mark.parametrize("kind", [Kind.GLUTTON, Kind.GARBAGE])
def test_nonsense_that_is_sent_back_is_as_it_should_be(server: str, kind: Kind) -> None:
    Scripted.status, Scripted.pieces = 400, (b'{"error": {"message": "no"}}',)
    assert sent(server, kind).end is End.REBUFFED
    Scripted.status = 500
    assert sent(server, kind).end is End.ERROR


def test_every_kind_has_a_client() -> None:
    assert SEND.keys() == set(Kind)
