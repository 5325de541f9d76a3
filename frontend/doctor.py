"""What must be true before the service can run here, checked one by one; every finding says what to do about it."""

import errno
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from common import model_folder, nvml
from common.errors import SettingsError
from common.readings import GIB, host_total_bytes
from common.settings import Settings
from estimator.grants import divide
from frontend import interpreter, keyfile, tritonserver
from frontend.service_client import ServiceClient, local_url

SHM_BYTES = 256 * 2**20
"""Enough for the requests and answers of both models; tensors pass through shared memory."""
PROBE_S = 2.0


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    """Works, but somebody should know."""
    BAD = "bad"
    """The service cannot start."""


@dataclass(frozen=True)
class Finding:
    """One line of the doctor."""

    subject: str
    level: Level
    says: str
    advice: str = ""
    """What to type or to set; empty when all is well."""


def examine(settings: Settings) -> Iterator[Finding]:
    """Every finding, in the order in which one would mend them; nothing is changed, and no model code is loaded."""
    yield from requirements(settings)
    url = local_url(settings.server)
    if ServiceClient(url, PROBE_S).answers("/healthz"):
        yield Finding("service", Level.OK, f"runs at {url}")
    else:
        yield from ports(settings)


def requirements(settings: Settings) -> Iterator[Finding]:
    """What this machine must have."""
    yield python()
    yield state_dir(settings)
    yield keys(settings)
    if settings.triton.url is None:
        yield embedded_triton()
        yield numpy()
        yield python_library()
        yield shared_memory()
        yield weights(settings)
        yield card(settings)
    else:
        yield running_triton(settings.triton.url)


def python() -> Finding:
    """Whether this interpreter is one that the packages and the model server's stub support."""
    says = f"Python {sys.version.split()[0]} at {sys.executable}"
    if interpreter.is_supported():
        return Finding("python", Level.OK, says)
    return Finding("python", Level.BAD, says, "use Python 3.11 or 3.12: make up PYTHON=python3.12")


def state_dir(settings: Settings) -> Finding:
    """Whether the journal and the snapshots can be written."""
    folder = settings.state.dir.expanduser()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Finding("state", Level.OK, f"{folder} can be written")
    return Finding("state", Level.BAD, f"{existing} cannot be written", "set state.dir (VRAMGATE_STATE__DIR)")


def keys(settings: Settings) -> Finding:
    """Who may use the service, and whether anybody on the network could."""
    try:
        tenants = keyfile.require_guard(settings)
    except SettingsError as error:
        return Finding("keys", Level.BAD, "who may use the service?", str(error))
    if settings.tenants.file is not None:
        return Finding("keys", Level.OK, f"{len(tenants)} tenants in {settings.tenants.file}")
    if keyfile.is_loopback(settings.server.host):
        return Finding("keys", Level.OK, "none are asked for; only this machine reaches the service")
    return Finding("keys", Level.NOTE, f"none are asked for on {settings.server.host}", "tenants.open says so")


def embedded_triton() -> Finding:
    """Whether there is a tritonserver to start."""
    try:
        return Finding("triton", Level.OK, str(tritonserver.locate().binary))
    except SettingsError as error:
        return Finding("triton", Level.BAD, "cannot be started", str(error))


def running_triton(url: str) -> Finding:
    """Whether the server at `url` answers."""
    if ServiceClient(url, PROBE_S).answers("/v2/health/live"):
        return Finding("triton", Level.OK, f"{url} answers")
    return Finding("triton", Level.BAD, f"{url} does not answer", "start it, or correct --triton-url / triton.url")


def numpy() -> Finding:
    """Whether the embedded server's stub can read strings: it was built for numpy 1."""
    try:
        found = version("numpy")
    except PackageNotFoundError:
        found = "missing"
    if found.startswith("1."):
        return Finding("numpy", Level.OK, found)
    return Finding("numpy", Level.BAD, f"{found}; the embedded server's stub needs 1.26", "pip install 'numpy<2'")


def python_library() -> Finding:
    """Whether the stub finds the shared library of this interpreter."""
    name = interpreter.shared_library()
    if interpreter.has_shared_library():
        return Finding("libpython", Level.OK, name)
    advice = f"sudo apt-get install {name.partition('.so')[0]}, or use an interpreter built with --enable-shared"
    return Finding("libpython", Level.BAD, f"{name} is not installed", advice)


def shared_memory(folder: Path = tritonserver.SHARED_MEMORY) -> Finding:
    """Whether tensors can pass between the server and the models."""
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return Finding(str(folder), Level.BAD, "cannot be written", "mount a tmpfs there; docker does it by itself")
    free_bytes = shutil.disk_usage(folder).free
    says = f"{free_bytes // 2**20:,} MiB free"
    if free_bytes >= SHM_BYTES:
        return Finding(str(folder), Level.OK, says)
    advice = f"{SHM_BYTES // 2**20} MiB are wanted: docker run --shm-size=1g, or remove what lies there"
    return Finding(str(folder), Level.BAD, says, advice)


def weights(settings: Settings) -> Finding:
    """Whether the models' weights are on this machine."""
    unet = settings.unet.weights
    if unet is not None and not unet.expanduser().is_file():
        return Finding("weights", Level.BAD, f"unet.weights: there is no {unet}", "correct unet.weights")
    try:
        return Finding("weights", Level.OK, str(model_folder.resolve(settings)))
    except SettingsError as error:
        is_demo = settings.llama.model == model_folder.DEMO_NAME
        advice = "`vramgate up` makes it: 93 MB to download, once" if is_demo else "correct llama.model"
        return Finding("weights", Level.NOTE if is_demo else Level.BAD, str(error), advice)


def card(settings: Settings) -> Finding:
    """What NVML says of the card, or how host memory is divided where there is none."""
    wanted = settings.card.device
    total_bytes, says = _gpu("auto" if wanted == "cpu" else wanted)
    if total_bytes is not None and wanted != "cpu":
        return Finding("card", Level.OK, says)
    if wanted not in ("auto", "cpu"):
        return Finding("card", Level.BAD, says, f"card.device is {wanted!r}: install the driver, or set it to auto")
    try:
        grants = divide(settings, "cpu", host_total_bytes(settings.card), 0)
    except SettingsError as error:
        return Finding("card", Level.BAD, "host memory plays the card", str(error))
    return Finding("card", Level.OK, f"{says}; host memory plays the card: {grants.explain()}")


def ports(settings: Settings) -> Iterator[Finding]:
    """Whether what the service listens on is free."""
    listeners = [("--port", settings.server.host, settings.server.port)]
    if settings.triton.url is None:
        triton = settings.triton
        listeners += [
            ("--triton-http-port", tritonserver.LOOPBACK, triton.http_port),
            ("--triton-grpc-port", tritonserver.LOOPBACK, triton.grpc_port),
            ("--triton-metrics-port", tritonserver.LOOPBACK, triton.metrics_port),
        ]
    given: dict[int, str] = {}
    spoken_for = {port for _, _, port in listeners}
    for flag, host, port in listeners:
        yield _port(flag, host, port, given.setdefault(port, flag), spoken_for)


def _port(flag: str, host: str, port: int, owner: str, spoken_for: set[int]) -> Finding:
    """`owner` is the first flag with this port; a port that is advised is added to `spoken_for`."""
    error = _bind(host, port)
    if error is None and owner == flag:
        return Finding(f"port {port}", Level.OK, f"free on {host}")
    if error is None or error.errno == errno.EADDRINUSE:
        later = (p for p in range(port + 1, min(port + 100, 65536)) if p not in spoken_for and _bind(host, p) is None)
        free = next(later, None)
        spoken_for.update({free} if free else ())
        says, first = (f"taken on {host}", "stop what listens there, or ") if error else (f"already {owner}", "")
        return Finding(f"port {port}", Level.BAD, says, f"{first}choose another: {flag} {free or 'PORT'}")
    return Finding(f"port {port}", Level.BAD, f"cannot listen on {host}: {error.strerror}", f"see {flag}, server.host")


def _bind(host: str, port: int) -> OSError | None:
    """What stands in the way of listening on `host`:`port`."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None


def _gpu(wanted: str) -> tuple[int | None, str]:
    """Size in bytes of the GPU that ``card.device`` names among those shown to us, and a sentence about it."""
    import pynvml

    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        pynvml.nvmlInit()
        uuids = nvml.visible(pynvml, shown)
        uuid = nvml.choose(uuids, wanted)
        card = nvml.NvmlCard(pynvml, uuid) if uuid is not None else None
        reading = card.read() if card is not None else None
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    if card is None or reading is None:
        among = "" if shown is None else f" with CUDA_VISIBLE_DEVICES={shown}"
        return None, f"{card.name} does not say its memory" if card else f"NVML shows {len(uuids)} GPUs{among}"
    free_gib, total_gib = reading.free_bytes / GIB, reading.total_bytes / GIB
    says = f"{card.name}, {free_gib:.1f} of {total_gib:.1f} GiB free ({reading.source}); {len(uuids)} in all"
    return reading.total_bytes, says
