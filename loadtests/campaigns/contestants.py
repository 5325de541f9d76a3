"""Who can be measured, and how each is started: our own service and what people run today."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import SettingsError
from common.settings import to_environ
from loadtests.campaigns.campaign import Campaign

OURS = "vramgate"


@dataclass(frozen=True)
class Place:
    """Where a contestant runs."""

    folder: Path
    """For its state and its log."""
    ports: tuple[int, int, int, int]
    """HTTP; and of our own service Triton's three."""
    model_folder: Path | None
    """Of the language model; None is the demo model."""

    @property
    def url(self) -> str:
        """Where its clients call."""
        return f"http://127.0.0.1:{self.ports[0]}"


@dataclass(frozen=True)
class Contestant:
    """One service under test."""

    name: str
    says: str
    """In the words of a report."""
    command: tuple[str, ...]
    environ: Mapping[str, str]
    ready_path: str
    dialect: str = "openai"
    served_model: str = "llama"
    options: tuple[str, ...] = field(default=())


def contestant(name: str, campaign: Campaign, place: Place, base: Mapping[str, str]) -> Contestant:
    """The contestant of that name, ready to be started; raises SettingsError where there is none."""
    port = str(place.ports[0])
    environ = environment(campaign, place, base)
    python = (sys.executable, "-m")
    served = "llama" if place.model_folder is None else str(place.model_folder)
    known = {
        OURS: ("vramgate", (sys.executable, "-c", "from frontend.cli import main; main()", "up"), "/readyz", "openai"),
        "semaphore": (
            f"FastAPI, a semaphore of {campaign.semaphore}, generate in threads",
            (*python, "loadtests.baselines.semaphore", "--port", port, "--most", str(campaign.semaphore)),
            "/stats",
            "openai",
        ),
        "check_then_run": (
            "FastAPI, free memory checked before generate, no ledger",
            (*python, "loadtests.baselines.check_then_run", "--port", port),
            "/stats",
            "openai",
        ),
        "plain_triton": (
            "Triton with generate in model.py, no gate",
            (*python, "loadtests.baselines.plain_triton", "--port", port),
            "/v2/health/ready",
            "triton",
        ),
        "transformers_serve": (
            "transformers serve, continuous batching",
            (*python, "loadtests.baselines.transformers_serve", "--port", port),
            "/v1/models",
            "openai",
        ),
    }
    if name not in known:
        raise SettingsError(f"contestants: there is no {name!r}; there are: {', '.join(known)}")
    says, command, ready_path, dialect = known[name]
    return Contestant(name, says, command, environ, ready_path, dialect, _served_model(name, served, environ))


def environment(campaign: Campaign, place: Place, base: Mapping[str, str]) -> dict[str, str]:
    """`base` without settings of its own, with those of the campaign and of the place."""
    found = {name: value for name, value in base.items() if not name.startswith("VRAMGATE_")}
    http, *triton = place.ports
    ours: dict[str, dict[str, object]] = {
        "server": {"port": http},
        "triton": dict(zip(("http_port", "grpc_port", "metrics_port"), triton, strict=True)),
        "state": {"dir": place.folder / "state"},
    }
    if place.model_folder is not None:
        ours["llama"] = {"model": place.model_folder, "dummy_weights": True}
    if campaign.wall is not None:
        ours["card"] = {"total": int(campaign.wall)}
    for sections in (ours, campaign.service):
        for section, values in sections.items():
            for key, value in values.items():
                found |= to_environ(section, key, value)
    return found


def _served_model(name: str, served: str, environ: Mapping[str, str]) -> str:
    """The library names a model by its folder."""
    if name != "transformers_serve":
        return "llama"
    if served != "llama":
        return served
    from common import model_folder, settings

    return str(model_folder.resolve(settings.load(environ)))
