import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.settings import load
from frontend import tritonserver

DOCKER = Path(__file__).parents[2] / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
VARIABLE = re.compile(r"\$\{([A-Z_]+)")


def compose(*names: str) -> dict[str, Any]:
    """The services of these files, the later laid over the earlier."""
    merged: dict[str, Any] = {}
    for name in names:
        for service, told in yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))["services"].items():
            merged[service] = merged.get(service, {}) | told
    return merged


def variables(text: str) -> set[str]:
    return {line.split("=", 1)[0] for line in text.splitlines() if re.match(r"[A-Z_]+=", line)}


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_hadolint_has_no_complaint(file: Path) -> None:
    run = subprocess.run([tool("hadolint"), file], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("files", [["compose.yaml"], ["compose.yaml", "compose.gpu.yaml"]], ids=["cpu", "gpu"])
def test_compose_can_read_its_files(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "env").write_text(re.sub(r"=$", "=1", example(), flags=re.MULTILINE))
    command = [tool("docker-compose"), "--env-file", str(tmp_path / "env")]
    for file in files:
        command += ["-f", str(DOCKER / file)]
    run = subprocess.run([*command, "config", "--quiet"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def example() -> str:
    return (DOCKER / ".env.example").read_text(encoding="utf-8")


def test_every_variable_of_compose_is_in_the_example_and_is_explained() -> None:
    used = {name for file in DOCKER.glob("compose*.yaml") for name in VARIABLE.findall(file.read_text())}
    assert variables(example()) - {"COMPOSE_FILE", "COMPOSE_PROJECT_NAME"} == used
    paragraphs = example().split("\n\n")
    assert all(part.startswith("#") for part in paragraphs)


def test_what_compose_sets_of_vramgate_are_settings() -> None:
    for service in compose("compose.yaml", "compose.gpu.yaml").values():
        told = {
            name: "30.0" if name.endswith("_S") else VARIABLE.sub("", str(value)).strip(":-}?") or "json"
            for name, value in service.get("environment", {}).items()
            if name.startswith("VRAMGATE_") and name != "VRAMGATE_CONFIG" and "FORMAT" not in name
        }
        load(told)


def test_the_model_servers_ports_are_published_nowhere() -> None:
    services = compose("compose.yaml", "compose.gpu.yaml")
    assert "ports" not in services["triton"]
    for name, service in services.items():
        for port in service.get("ports", ()):
            assert ":-127.0.0.1:" in port, f"{name} is open to the network by default: {port}"


def test_every_service_restarts_has_a_health_check_and_can_gain_no_rights() -> None:
    for name, service in compose("compose.yaml").items():
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name


def test_the_frontend_stops_before_the_model_server_and_each_has_the_time_it_needs() -> None:
    services, settings = compose("compose.yaml"), load({})
    assert services["frontend"]["depends_on"] == {"triton": {"condition": "service_healthy"}}
    grace_s = {name: int(services[name]["stop_grace_period"].rstrip("s")) for name in ("triton", "frontend")}
    assert grace_s["triton"] > settings.triton.exit_timeout_s
    assert grace_s["frontend"] > settings.server.drain_s + settings.server.shutdown_s + 5


def test_in_a_container_the_same_doors_of_the_model_server_are_locked() -> None:
    script = (DOCKER / "triton-entrypoint.sh").read_text(encoding="utf-8")
    assert f"apis={tritonserver.MANAGEMENT_APIS}\n" in script
    assert f'guard="$apis:{tritonserver.ADMIN_HEADER}=$' in script
    ours = {flag.split("=")[0] for flag in tritonserver.command(load({}), Path("t"), Path("b"), Path("m"), "key")[1:]}
    here_only = {"--http-address", "--grpc-address", "--metrics-address", "--backend-directory", "--backend-config"}
    missing = {flag for flag in ours if f"{flag}=" not in script and flag not in script.split()}
    assert missing == here_only | {"--http-port", "--grpc-port", "--metrics-port"}


def test_the_build_has_every_package_and_nothing_of_the_operators() -> None:
    ignored = (DOCKER.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    for needed in ("common", "estimator", "frontend", "backend", "model_repository"):
        assert f"!{needed}/**" in ignored
    assert not any(secret in line for line in ignored[1:] for secret in (".env", "keys", "toml.example"))


def test_nobody_is_root_in_our_containers() -> None:
    for file in DOCKERFILES:
        users = re.findall(r"^USER (\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert users, file
        assert users[-1].split(":")[0] not in ("0", "root"), file
