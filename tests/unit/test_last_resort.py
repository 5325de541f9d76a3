"""What is done where a new process is needed and the model server cannot be made to start one."""

import os
import signal

import pytest

from frontend.last_resort import LAUNCHER_ENV, PAUSE_S, RESTART_SIGNAL, LastResort
from tests.unit.books import Clock


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, signal.Signals]]:
    """The signals that were sent, and to whom."""
    signals: list[tuple[int, signal.Signals]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    return signals


def test_the_launcher_is_asked_and_not_again_while_it_helps(sent: list[tuple[int, signal.Signals]]) -> None:
    clock = Clock()
    call = LastResort(may_exit=True, environ={LAUNCHER_ENV: str(os.getppid())}, clock=clock)
    call("it hangs")
    call("it hangs")
    assert sent == [(os.getppid(), RESTART_SIGNAL)]
    clock.now_s += PAUSE_S
    call("it hangs")
    assert len(sent) == 2
    assert not call.stuck


def test_without_a_launcher_the_process_ends_where_somebody_restarts_it(
    sent: list[tuple[int, signal.Signals]],
) -> None:
    call = LastResort(may_exit=True, environ={LAUNCHER_ENV: "1234567890"}, clock=Clock())
    call("its models cannot be loaded from here")
    assert sent == [(os.getpid(), signal.SIGTERM)]
    assert call.stuck


def test_whoever_takes_over_from_a_launcher_that_has_ended_is_sent_nothing(
    sent: list[tuple[int, signal.Signals]], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = LastResort(may_exit=False, environ={LAUNCHER_ENV: str(os.getppid())}, clock=Clock())
    monkeypatch.setattr(os, "getppid", lambda: 1)
    call("it hangs")
    assert sent == []


def test_else_it_is_only_said(sent: list[tuple[int, signal.Signals]], caplog: pytest.LogCaptureFixture) -> None:
    call = LastResort(may_exit=False, environ={}, clock=Clock())
    call("its models cannot be loaded from here")
    assert sent == []
    assert "its models cannot be loaded from here" in caplog.text
    assert not call.stuck
