"""``locust -f loadtests/users/locustfile.py --campaign NAME --host URL``: a campaign's clients, with or without a page.

Open loop: every arrival is sent when it is due, however many are still waiting. Locust shows, besides the requests,
time to the first token (``ttft``), between tokens (``inter_token``) and tokens per second (``tokens_per_s``) as own
events; every outcome goes as a line into ``--outcomes``.
"""

import time
from argparse import Namespace
from pathlib import Path
from typing import Any, ClassVar

import gevent
from gevent.lock import Semaphore
from gevent.pool import Group
from locust import User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from loadtests.campaigns import campaign as campaigns
from loadtests.campaigns.campaign import Campaign, Kind
from loadtests.campaigns.schedule import Shot, shots
from loadtests.users import pictures
from loadtests.users.attempt import attempt
from loadtests.users.outcome import End, Outcome
from loadtests.users.requests import Target

LEAD_S = 1.0
"""From the start of the run to the first arrival, so that all users are there."""


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: LocustArgumentParser) -> None:
    """What a run needs besides locust's own options."""
    parser.add_argument("--campaign", default="cpu_mixed", help="name of a campaign, or its TOML file")
    parser.add_argument("--phase-s", type=float, default=0.0, help="seconds of arrivals per phase instead of its own")
    parser.add_argument("--dialect", default="openai", choices=("openai", "triton"))
    parser.add_argument("--served-model", default="llama")
    parser.add_argument("--outcomes", default="", help="file that gets a line for every request")


class Replay:
    """What all users of a run share."""

    def __init__(self, asked: Namespace) -> None:
        self.campaign = chosen(asked)
        limits = self.campaign.limits
        self.target = Target(
            url=str(asked.host).rstrip("/"),
            model=asked.served_model,
            dialect=asked.dialect,
            deadline_s=limits.deadline_s,
            give_up_s=limits.deadline_s + limits.patience_s,
            tokens_per_word=self.campaign.traffic.tokens_per_word,
        )
        self.shots = shots(self.campaign)
        for megapixels in {shot.megapixels for shot in self.shots if shot.kind is Kind.SEGMENT}:
            pictures.encoded(megapixels)
        self._file = Path(asked.outcomes).open("w", encoding="utf-8") if asked.outcomes else None  # noqa: SIM115
        self._writing = Semaphore()
        self.begins_unix_s = time.time() + LEAD_S
        self.left = set(Kind)
        """Kinds whose users have not ended."""

    def keep(self, outcome: Outcome) -> None:
        """Writes the outcome down."""
        if self._file is not None:
            with self._writing:
                self._file.write(outcome.to_json() + "\n")
                self._file.flush()


def chosen(asked: Namespace) -> Campaign:
    """The campaign that the command line names."""
    campaign = campaigns.load(asked.campaign)
    return campaign.faster(asked.phase_s) if asked.phase_s else campaign


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def prepare(environment: Environment, **_: Any) -> None:
    """The schedule is made before the first user starts."""
    assert environment.parsed_options is not None
    environment.replay = Replay(environment.parsed_options)  # type: ignore[attr-defined]


class ReplayUser(User):
    """Sends all arrivals of one kind; one user stands for all its clients."""

    abstract = True
    fixed_count = 1
    kind: ClassVar[Kind]

    @task
    def replay(self) -> None:
        """Every arrival when it is due, then waits for the last of them, and ends the run when no other has work."""
        replay: Replay = self.environment.replay
        under_way = Group()
        for shot in replay.shots:
            if shot.kind is self.kind:
                due_unix_s = replay.begins_unix_s + shot.at_s
                gevent.sleep(max(0.0, due_unix_s - time.time()))
                under_way.spawn(self._send, replay, shot, due_unix_s)
        under_way.join()
        replay.left.discard(self.kind)
        if not replay.left:
            self.environment.runner.quit()
        gevent.sleep(replay.campaign.total_s)

    def _send(self, replay: Replay, shot: Shot, due_unix_s: float) -> None:
        outcome = attempt(replay.target, shot, due_unix_s)
        replay.keep(outcome)
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        """Locust's own books."""
        fine = outcome.end in (End.GOOD, End.LEFT, End.REBUFFED)
        name = outcome.phase
        self._fire(self.kind, name, outcome.latency_s, None if fine else outcome)
        if outcome.ttft_s is not None:
            self._fire("ttft", name, outcome.ttft_s)
        if outcome.gaps_s:
            self._fire("inter_token", name, outcome.gaps_s[0])
            self._fire("tokens_per_s", name, 1e-3 / max(outcome.gaps_s[0], 1e-6))

    def _fire(self, event: str, name: str, seconds: float, failed: Outcome | None = None) -> None:
        self.environment.events.request.fire(
            request_type=event,
            name=name,
            response_time=1000 * seconds,
            response_length=0,
            exception=RuntimeError(f"{failed.end}: {failed.status} {failed.code}") if failed else None,
            context={},
        )


class ChatUser(ReplayUser):
    """Streamed chats."""

    kind = Kind.CHAT


class CompletionUser(ReplayUser):
    """Continuations in one piece."""

    kind = Kind.COMPLETION


class SegmentUser(ReplayUser):
    """Pictures."""

    kind = Kind.SEGMENT


class ScriptUser(ReplayUser):
    """Scripts with ``tritonclient``."""

    kind = Kind.SCRIPT


class QuoteUser(ReplayUser):
    """Prices."""

    kind = Kind.QUOTE


class LeaverUser(ReplayUser):
    """Clients that go away."""

    kind = Kind.LEAVER


class GluttonUser(ReplayUser):
    """Prompts beyond the context."""

    kind = Kind.GLUTTON


class GarbageUser(ReplayUser):
    """Bytes that are no request."""

    kind = Kind.GARBAGE
