"""The embedded model server: where its files are, how it is called, and what it must find in its environment.

The real ``tritonserver`` comes out of the wheel ``nvidia-pytriton``, or from ``$TRITON_BIN`` and ``$TRITON_BACKENDS``
where an unpacked server is brought along. Nothing here starts a process.
"""

import hashlib
import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import SettingsError
from common.sections import Triton
from common.settings import Settings
from frontend import interpreter

ADMIN_HEADER = "x-vramgate-admin"
"""Carries the key that opens the management APIs."""
LOOPBACK = "127.0.0.1"
DEFAULT_REPOSITORY = Triton().model_repository
SHARED_MEMORY = Path("/dev/shm")
STUB = "triton_python_backend_stub"
BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
MANAGEMENT_APIS = "model-repository,shared-memory,trace,logging"
"""Protocols of Triton that change the server; they ask for the admin key."""


@dataclass(frozen=True)
class Installation:
    """The files of a Triton server with its Python backend."""

    binary: Path
    backends_dir: Path
    """Holds ``python/`` with the backend's library, its utilities and, where it is complete, the stub."""
    stub: Path
    """The process that runs model.py; built for one version of Python."""
    library_dirs: tuple[Path, ...]
    """Where the loader finds the server's own libraries and the interpreter's."""


def locate(environ: Mapping[str, str] = os.environ) -> Installation:
    """The server that can be started here.

    Raises SettingsError with what to install when there is none, or none for this version of Python.
    """
    if "TRITON_BIN" in environ:
        return _brought_along(Path(environ["TRITON_BIN"]), environ.get("TRITON_BACKENDS"))
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise SettingsError(
            "no Triton server is installed: pip install 'vramgate[embedded]' (x86-64 only), "
            "or use one that runs already: vramgate up --triton-url http://HOST:8000"
        )
    package = Path(spec.origin).parent
    server = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    installation = Installation(
        binary=server / "bin" / "tritonserver",
        backends_dir=server / "backends",
        stub=server / "python_backend_stubs" / version / STUB,
        library_dirs=(package.parent / "nvidia_pytriton.libs", *interpreter.library_dirs()),
    )
    _require(installation.binary, installation.stub)
    return installation


def is_plain(path: Path) -> bool:
    """Whether a shell reads `path` as it is: Triton starts the stub by an unquoted shell command, and hangs else."""
    return shlex.quote(str(path)) == str(path)


def plain_backends(installation: Installation, folder: Path) -> Path:
    """A plain path of a backend directory with the stub of this version of Python; links in `folder`, made anew."""
    if is_plain(installation.backends_dir) and (installation.backends_dir / "python" / STUB).exists():
        return installation.backends_dir
    backends_dir = folder / "backends"
    shutil.rmtree(backends_dir, ignore_errors=True)
    python = backends_dir / "python"
    python.mkdir(parents=True)
    for name in BACKEND_FILES:
        (python / name).symlink_to(installation.backends_dir / "python" / name)
    (python / STUB).symlink_to(installation.stub)
    return backends_dir


def plain_repository(repository: Path, folder: Path) -> Path:
    """A plain path of `repository`: itself, or a link in `folder`, made anew."""
    if is_plain(repository):
        return repository
    link = folder / "models"
    folder.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(repository)
    return link


def model_repository(settings: Settings) -> Path:
    """The folder of model folders; the default is looked for beside the packages too, so any working directory will do.

    Raises SettingsError.
    """
    folder = settings.triton.model_repository.expanduser()
    if folder == DEFAULT_REPOSITORY and not folder.is_dir():
        folder = Path(__file__).resolve().parent.parent / DEFAULT_REPOSITORY
    if not folder.is_dir():
        raise SettingsError(f"triton.model_repository: there is no folder {folder}")
    return folder.resolve()


def command(settings: Settings, binary: Path, backends_dir: Path, repository: Path, admin_key: str) -> Sequence[str]:
    """The command line: explicit model control, full configs only, loopback only, management behind the key.

    Other users of this machine can read a command line, hence the key; it guards against clients, not against them.
    """
    triton = settings.triton
    return (
        str(binary),
        f"--model-repository={repository}",
        f"--backend-directory={backends_dir}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        f"--http-address={LOOPBACK}",
        f"--http-port={triton.http_port}",
        f"--grpc-address={LOOPBACK}",
        f"--grpc-port={triton.grpc_port}",
        f"--metrics-address={LOOPBACK}",
        f"--metrics-port={triton.metrics_port}",
        f"--http-restricted-api={MANAGEMENT_APIS}:{ADMIN_HEADER}={admin_key}",
        f"--grpc-restricted-protocol={MANAGEMENT_APIS}:{ADMIN_HEADER}={admin_key}",
        f"--exit-timeout-secs={triton.exit_timeout_s}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix(settings)}",
        "--log-format=ISO8601",
        *tracing(settings.log.traces),
    )


def tracing(url: str | None) -> Sequence[str]:
    """Flags that have the server send its spans to `url`, of requests alone that belong to a trace already."""
    if url is None:
        return ()
    wishes = ("mode=opentelemetry", f"opentelemetry,url={url}", "level=TIMESTAMPS", "rate=0")
    return tuple(f"--trace-config={wish}" for wish in wishes)


def environment(installation: Installation, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with this interpreter first on PATH (the stub finds its packages by it) and the server's libraries."""
    known = [part for part in base.get("LD_LIBRARY_PATH", "").split(":") if part]
    return dict(base) | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), base.get("PATH", os.defpath)]),
        "LD_LIBRARY_PATH": ":".join([*map(str, installation.library_dirs), *known]),
    }


def shm_prefix(settings: Settings) -> str:
    """What the names of our shared-memory regions begin with; one prefix for each state directory."""
    state_dir = settings.state.dir.expanduser().resolve()
    return f"vramgate-{hashlib.sha256(str(state_dir).encode()).hexdigest()[:12]}-"


def remove_shared_memory(settings: Settings, folder: Path = SHARED_MEMORY) -> int:
    """Removes the regions a killed server left behind; returns how many. To be called when no server of ours runs."""
    left = list(folder.glob(shm_prefix(settings) + "*"))
    for region in left:
        region.unlink(missing_ok=True)
    return len(left)


def remove_process_ids(settings: Settings) -> None:
    """Removes what the engines of an earlier server wrote of themselves. To be called when no server of ours runs."""
    for left in (settings.state.dir.expanduser() / "engines").glob("*.pid"):
        left.unlink(missing_ok=True)


def _brought_along(binary: Path, backends: str | None) -> Installation:
    if backends is None:
        raise SettingsError("TRITON_BIN is set, TRITON_BACKENDS is not: it names the folder that holds python/")
    stub = Path(backends) / "python" / STUB
    _require(binary, stub)
    return Installation(binary, Path(backends), stub, interpreter.library_dirs())


def _require(*files: Path) -> None:
    for file in files:
        if not os.access(file, os.X_OK):
            raise SettingsError(
                f"{file} is missing or not executable: reinstall nvidia-pytriton with Python 3.11 or 3.12, "
                "or set TRITON_BIN and TRITON_BACKENDS"
            )
