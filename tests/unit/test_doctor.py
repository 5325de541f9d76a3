import socket
from pathlib import Path

import pytest

from common.errors import SettingsError
from common.sections import Card, Llama, Server, State, Triton, Unet
from common.settings import Settings
from frontend import doctor, interpreter, tritonserver
from frontend.doctor import Level


def settings(tmp_path: Path, **sections: object) -> Settings:
    state = State(dir=tmp_path / "state", cache_dir=tmp_path / "cache")
    return Settings.model_validate({"state": state, "card": Card(device="cpu"), **sections})


def test_every_bad_finding_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locate() -> tritonserver.Installation:
        raise SettingsError("no Triton server is installed: pip install")

    monkeypatch.setattr(tritonserver, "locate", locate)
    monkeypatch.setattr(interpreter, "has_shared_library", lambda: False)
    monkeypatch.setattr(interpreter, "is_supported", lambda: False)
    monkeypatch.setattr(doctor, "version", lambda _: "2.1.0")
    tight = settings(tmp_path, card={"total": "1MiB", "device": "cpu"}, unet={"weights": "/nowhere.safetensors"})
    bad = [finding for finding in doctor.requirements(tight) if finding.level is Level.BAD]
    assert [finding.subject for finding in bad] == ["python", "triton", "numpy", "libpython", "weights", "card"]
    assert all(finding.advice for finding in bad)


def test_a_machine_that_has_everything_has_nothing_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tritonserver, "locate", lambda: tritonserver.Installation(Path("t"), Path("b"), Path("s"), ()))
    monkeypatch.setattr(interpreter, "has_shared_library", lambda: True)
    monkeypatch.setattr(doctor, "version", lambda _: "1.26.4")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").touch()
    findings = list(doctor.requirements(settings(tmp_path, llama=Llama(model=str(folder)))))
    assert {finding.subject: finding.advice for finding in findings if finding.level is not Level.OK} == {}


def test_the_missing_library_comes_with_the_command_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "has_shared_library", lambda: False)
    assert doctor.python_library().advice.startswith("sudo apt-get install libpython3.")


def test_a_demo_model_that_is_not_made_yet_stops_nothing(tmp_path: Path) -> None:
    finding = doctor.weights(settings(tmp_path))
    assert finding.level is Level.NOTE
    assert "93 MB" in finding.advice


def test_a_model_folder_of_the_operators_own_must_exist(tmp_path: Path) -> None:
    finding = doctor.weights(settings(tmp_path, llama=Llama(model=str(tmp_path / "typo"))))
    assert finding.level is Level.BAD
    assert "typo" in finding.says


def test_missing_unet_weights_are_named(tmp_path: Path) -> None:
    finding = doctor.weights(settings(tmp_path, unet=Unet(weights=tmp_path / "typo.safetensors")))
    assert finding.level is Level.BAD
    assert "typo.safetensors" in finding.says


def test_a_taken_port_comes_with_a_free_one_and_its_flag(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        findings = list(doctor.ports(settings(tmp_path, server=Server(port=port))))
    assert findings[0].level is Level.BAD
    flag, _, free = findings[0].advice.rpartition(" ")
    assert flag.endswith("--port")
    assert port < int(free) < port + 100


def test_two_taken_ports_are_not_advised_to_become_the_same(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        wanted = Triton(http_port=port, grpc_port=port, metrics_port=port)
        advice = [finding.advice for finding in doctor.ports(settings(tmp_path, triton=wanted))][1:]
    free = [int(words.rpartition(" ")[2]) for words in advice]
    assert len({port, *free}) == 4


def test_one_port_for_two_listeners_is_said_before_the_models_load(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    first, second, *_ = doctor.ports(settings(tmp_path, server=Server(port=port), triton=Triton(http_port=port)))
    assert first.level is Level.OK
    assert second.level is Level.BAD
    assert "--port" in second.says
    assert "--triton-http-port" in second.advice


def test_an_address_that_is_not_this_machines_is_no_taken_port(tmp_path: Path) -> None:
    finding = next(iter(doctor.ports(settings(tmp_path, server=Server(host="192.0.2.1", port=8080)))))
    assert finding.level is Level.BAD
    assert "server.host" in finding.advice


def test_with_a_triton_that_runs_elsewhere_nothing_is_asked_of_this_machine(tmp_path: Path) -> None:
    subjects = [
        finding.subject for finding in doctor.requirements(settings(tmp_path, triton=Triton(url="http://[::1]:9")))
    ]
    assert subjects == ["python", "state", "keys", "triton"]
    assert len(list(doctor.ports(settings(tmp_path, triton=Triton(url="http://[::1]:9"))))) == 1


def test_shared_memory_that_is_too_small_names_dockers_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SHM_BYTES", 2**60)
    finding = doctor.shared_memory(tmp_path)
    assert finding.level is Level.BAD
    assert "--shm-size" in finding.advice


def test_a_state_directory_below_a_file_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = doctor.state_dir(Settings(state=State(dir=tmp_path / "file" / "state")))
    assert finding.level is Level.BAD
    assert "state.dir" in finding.advice


def test_a_gpu_that_is_asked_for_and_not_there_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_gpu", lambda _: (None, "NVML: not found"))
    assert doctor.card(settings(tmp_path, card=Card(device="cuda"))).level is Level.BAD
    assert doctor.card(settings(tmp_path)).level is Level.OK


def test_a_card_too_small_shows_the_whole_equation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_gpu", lambda _: (None, "NVML: not found"))
    finding = doctor.card(settings(tmp_path, card={"total": "512MiB"}))
    assert finding.level is Level.BAD
    assert "total =" in finding.advice
