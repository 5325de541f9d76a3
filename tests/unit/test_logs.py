import json
import logging
from collections.abc import Iterator

import pytest

from common import logs
from common.sections import Log
from frontend import logs as frontend_logs
from frontend import record


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The root logger's own handlers and level come back."""
    root = logging.getLogger()
    kept, level = root.handlers[:], root.level
    yield
    root.handlers[:] = kept
    root.setLevel(level)


def test_a_json_line_is_one_object_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    frontend_logs.start(Log(format="json"))
    record.begin("id-1")
    logging.getLogger("a.b").warning("two\nlines of %s", "text", extra={logs.FIELDS: {"lease": "l1"}})
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "warning",
        "logger": "a.b",
        "message": "two\nlines of text",
        "request": "id-1",
        "lease": "l1",
    }


def test_a_pretty_line_names_the_request_that_it_was_written_for(capsys: pytest.CaptureFixture[str]) -> None:
    frontend_logs.start(Log())
    record.begin("id-2")
    logging.getLogger("x").info("told", extra={logs.FIELDS: {"lease": "l1"}})
    assert capsys.readouterr().err.endswith("INFO x: told request=id-2 lease=l1\n")


def test_a_line_outside_of_requests_names_none(capsys: pytest.CaptureFixture[str]) -> None:
    frontend_logs.start(Log(format="json"))
    record.begin("")
    logging.getLogger("x").info("told")
    assert "request" not in json.loads(capsys.readouterr().err)


def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    frontend_logs.start(Log(level="warning"))
    logging.getLogger("x").info("told")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("form", ["pretty", "json"])
def test_an_exception_that_may_quote_a_prompt_is_told_by_type_and_place(
    form: logs.Form, capsys: pytest.CaptureFixture[str]
) -> None:
    frontend_logs.start(Log(format=form))
    try:
        try:
            int("a secret prompt")
        except ValueError as error:
            raise RuntimeError("CUDA error: launch failure") from error
    except RuntimeError:
        logging.getLogger("x").exception("it failed")
    text = capsys.readouterr().err
    assert "secret prompt" not in text.replace('int(\\"a secret prompt\\")', "").replace('int("a secret prompt")', "")
    for fact in ("it failed", "RuntimeError: CUDA error: launch failure", "ValueError", "test_logs.py"):
        assert fact in text
