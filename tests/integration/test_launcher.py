import os
import shutil
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from common.settings import load
from frontend import tritonserver
from tests.integration.running import Running, command_of, descendants, environ

Start = Callable[..., Running]


def pid_of(running: Running, part: str) -> int:
    found = [pid for pid in descendants(running.process.pid) if part in command_of(pid)]
    assert found, f"no {part} runs"
    return found[0]


def shared_memory_of(running: Running) -> list[Path]:
    return list(tritonserver.SHARED_MEMORY.glob(tritonserver.shm_prefix(load(running.environ)) + "*"))


def all_gone(pids: list[int], limit_s: float = 10.0) -> bool:
    latest_s = time.monotonic() + limit_s
    while any(command_of(pid) for pid in pids) and time.monotonic() < latest_s:
        time.sleep(0.02)
    return not any(command_of(pid) for pid in pids)


def listening_addresses(port: int) -> list[str]:
    """Addresses in the kernel's spelling, on which somebody listens at `port`."""
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()]
    listening = [row[1].split(":") for row in rows if row[3] == "0A"]
    return [address for address, local_port in listening if int(local_port, 16) == port]


def default_regions() -> set[Path]:
    return set(tritonserver.SHARED_MEMORY.glob("triton_python_backend_shm_region_*"))


def test_both_stop_signals_leave_no_process_and_no_shared_memory_and_a_second_start_works(start: Start) -> None:
    before = default_regions()
    for number in (signal.SIGINT, signal.SIGTERM):
        running = start().wait_up()
        assert running.ready()
        pids = descendants(running.process.pid)
        assert shared_memory_of(running)
        assert running.stop(number) == 0
        assert all_gone(pids, 0)
        assert shared_memory_of(running) == []
    assert default_regions() <= before


def test_idle_connections_of_clients_do_not_hold_up_the_stop(start: Start) -> None:
    running = start().wait_up()
    with (
        socket.create_connection(("127.0.0.1", running.port)),
        socket.create_connection(("127.0.0.1", running.triton_port)),
    ):
        running.stop()
    assert shared_memory_of(running) == []


def test_paths_with_spaces_work(start: Start, toys: Path, tmp_path: Path) -> None:
    repository = tmp_path / "your models"
    shutil.copytree(toys, repository)
    running = start(state__dir=str(tmp_path / "my state"), triton__model_repository=str(repository)).wait_up()
    assert running.stop() == 0


def test_nothing_outlives_a_launcher_that_is_killed(start: Start) -> None:
    running = start().wait_up()
    pids = descendants(running.process.pid)
    assert len(pids) == 4
    running.process.kill()
    running.process.wait()
    assert all_gone(pids, 15)


def test_a_stop_while_the_models_load_leaves_nothing(start: Start) -> None:
    running = start()
    running.wait_for(lambda: "loading unet" in running.output)
    pids = descendants(running.process.pid)
    assert running.stop() == 0
    assert all_gone(pids, 0)
    assert shared_memory_of(running) == []


def test_a_frontend_that_dies_comes_back_while_the_models_stay(calm: Running) -> None:
    frontend, triton = pid_of(calm, "frontend.serve"), pid_of(calm, "bin/tritonserver")
    os.kill(frontend, signal.SIGKILL)
    calm.wait_for(lambda: "frontend ended with status -9" in calm.output and calm.ready(), 60)
    assert pid_of(calm, "bin/tritonserver") == triton
    assert pid_of(calm, "frontend.serve") != frontend


def test_a_model_server_that_dies_comes_back_with_its_models_while_the_frontend_says_503(calm: Running) -> None:
    frontend = pid_of(calm, "frontend.serve")
    os.kill(pid_of(calm, "bin/tritonserver"), signal.SIGKILL)
    calm.wait_for(lambda: not calm.ready(), 30)
    with pytest.raises(urllib.error.HTTPError) as refusal:
        calm.get("/readyz")
    with refusal.value as reply:
        assert reply.code == 503
    calm.wait_for(calm.ready, 60)
    assert pid_of(calm, "frontend.serve") == frontend
    assert len(shared_memory_of(calm)) == 2


def test_the_leftovers_of_a_killed_run_are_removed(start: Start, tmp_path: Path) -> None:
    prefix = tritonserver.shm_prefix(load(environ(tmp_path / "state", {})))
    left = tritonserver.SHARED_MEMORY / f"{prefix}left-by-a-killed-run"
    left.touch()
    running = start().wait_up()
    assert len(shared_memory_of(running)) == 2
    assert not left.exists()


def test_a_taken_port_is_named_with_the_flag_that_chooses_another(start: Start) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        running = start("--port", str(port))
        assert running.process.wait(30) == 2
    assert f"port {port}: taken" in running.output
    assert "--port " in running.output
    assert "Traceback" not in running.output


def test_a_taken_triton_port_is_named_too(start: Start) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        running = start("--triton-grpc-port", str(port))
        assert running.process.wait(30) == 2
    assert f"port {port}: taken" in running.output
    assert "--triton-grpc-port " in running.output


def test_two_services_side_by_side_need_a_state_directory_each(start: Start, calm: Running) -> None:
    second = start(state__dir=str(calm.state_dir))
    assert second.process.wait(30) == 2
    assert f"process {calm.process.pid}" in second.output
    assert "VRAMGATE_STATE__DIR" in second.output
    assert start().wait_up().ready()
    assert calm.ready()


def test_a_model_that_cannot_be_loaded_ends_the_start_with_its_reason(start: Start, tmp_path: Path) -> None:
    repository = tmp_path / "broken"
    (repository / "unet" / "1").mkdir(parents=True)
    (repository / "unet" / "config.pbtxt").write_text('name: "unet"\nbackend: "python"\n')
    (repository / "unet" / "1" / "model.py").write_text("raise RuntimeError('no weights today')\n")
    running = start(triton__model_repository=str(repository))
    assert running.process.wait(60) == 2
    assert "unet cannot be loaded" in running.output
    assert "no weights today" in running.output
    assert "Traceback" not in running.output.partition("the end of")[0]


def test_a_frontend_with_unusable_settings_is_not_started_again_and_again(start: Start) -> None:
    running = start(server__port="99999")
    assert running.process.wait(30) == 2
    assert "server.port" in running.output


def test_triton_listens_on_loopback_only_and_its_management_asks_for_the_key(calm: Running) -> None:
    assert listening_addresses(calm.triton_port) == ["0100007F"]
    for path in ("/v2/repository/models/llama/unload", "/v2/repository/index"):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(urllib.request.Request(calm.triton_url + path, b"{}"), timeout=10)
        with refusal.value as reply:
            assert reply.code == 403


def test_a_triton_that_runs_already_is_used_and_left_alone(start: Start, calm: Running) -> None:
    second = start("--triton-url", calm.triton_url).wait_up()
    assert second.ready()
    assert [command_of(pid) for pid in descendants(second.process.pid) if "tritonserver" in command_of(pid)] == []
    assert second.stop() == 0
    assert calm.ready()


def test_a_triton_url_that_does_not_answer_is_said_at_once(start: Start) -> None:
    running = start("--triton-url", "http://127.0.0.1:1")
    assert running.process.wait(30) == 2
    assert "http://127.0.0.1:1 does not answer" in running.output
