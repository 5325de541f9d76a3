import os
import sys
from pathlib import Path

import pytest

from common.errors import SettingsError
from common.sections import State, Triton
from common.settings import Settings
from frontend import interpreter, tritonserver


def settings(tmp_path: Path, **triton: object) -> Settings:
    return Settings(state=State(dir=tmp_path / "state"), triton=Triton.model_validate(triton))


def executable(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o755)
    return file


def brought_along(tmp_path: Path) -> tritonserver.Installation:
    executable(tmp_path / "backends" / "python" / tritonserver.STUB)
    environ = {"TRITON_BIN": str(executable(tmp_path / "tritonserver")), "TRITON_BACKENDS": str(tmp_path / "backends")}
    return tritonserver.locate(environ)


def test_a_server_that_is_brought_along_is_used_with_its_own_backends(tmp_path: Path) -> None:
    installation = brought_along(tmp_path)
    assert installation.binary == tmp_path / "tritonserver"
    assert tritonserver.plain_backends(installation, tmp_path / "unused") == tmp_path / "backends"
    assert not (tmp_path / "unused").exists()


def test_a_server_without_backends_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="TRITON_BACKENDS"):
        tritonserver.locate({"TRITON_BIN": str(executable(tmp_path / "tritonserver"))})


def test_a_binary_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere is missing or not executable"):
        tritonserver.locate({"TRITON_BIN": str(tmp_path / "nowhere"), "TRITON_BACKENDS": str(tmp_path)})


def test_the_backend_directory_gets_the_stub_of_this_python_and_can_be_made_twice(tmp_path: Path) -> None:
    wheel = tmp_path / "wheel"
    for name in tritonserver.BACKEND_FILES:
        executable(wheel / "python" / name)
    stub = executable(tmp_path / "stubs" / "3.11" / tritonserver.STUB)
    installation = tritonserver.Installation(wheel / "bin", wheel, stub, ())
    for _ in range(2):
        folder = tritonserver.plain_backends(installation, tmp_path / "state")
    assert (folder / "python" / tritonserver.STUB).resolve() == stub
    assert {file.name for file in (folder / "python").iterdir()} == {*tritonserver.BACKEND_FILES, tritonserver.STUB}


@pytest.mark.parametrize("name", ["with space", "dollar$HOME", "quote'"])
def test_triton_never_sees_a_path_that_its_shell_would_break(tmp_path: Path, name: str) -> None:
    odd = tmp_path / name
    repository = odd / "models"
    repository.mkdir(parents=True)
    stub = executable(odd / "backends" / "python" / tritonserver.STUB)
    for file in tritonserver.BACKEND_FILES:
        executable(odd / "backends" / "python" / file)
    installation = tritonserver.Installation(odd / "bin", odd / "backends", stub, ())
    for _ in range(2):
        backends = tritonserver.plain_backends(installation, tmp_path / "links")
        models = tritonserver.plain_repository(repository, tmp_path / "links")
    assert tritonserver.is_plain(backends)
    assert (backends / "python" / tritonserver.STUB).resolve() == stub.resolve()
    assert tritonserver.is_plain(models)
    assert models.resolve() == repository.resolve()


def test_every_port_listens_on_loopback_only(tmp_path: Path) -> None:
    command = tritonserver.command(settings(tmp_path), Path("t"), Path("b"), Path("m"), "key")
    addresses = [part for part in command if "-address=" in part]
    assert sorted(addresses) == [
        "--grpc-address=127.0.0.1",
        "--http-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
    ]


def test_management_is_behind_the_key_on_both_protocols(tmp_path: Path) -> None:
    command = tritonserver.command(settings(tmp_path), Path("t"), Path("b"), Path("m"), "secret")
    restricted = [part for part in command if "-restricted-" in part]
    assert len(restricted) == 2
    assert all("model-repository" in part and part.endswith("x-vramgate-admin=secret") for part in restricted)


def test_the_stub_finds_this_interpreter_before_any_other(tmp_path: Path) -> None:
    environ = tritonserver.environment(brought_along(tmp_path), {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib"})
    assert environ["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"
    assert environ["LD_LIBRARY_PATH"].split(":")[-1] == "/opt/lib"


def test_no_empty_entry_lets_the_loader_search_the_working_directory(tmp_path: Path) -> None:
    environ = tritonserver.environment(brought_along(tmp_path), {"PATH": "/usr/bin"})
    assert "" not in environ["LD_LIBRARY_PATH"].split(":") or environ["LD_LIBRARY_PATH"] == ""


def test_only_our_own_shared_memory_is_removed(tmp_path: Path) -> None:
    mine = settings(tmp_path)
    shm = tmp_path / "shm"
    shm.mkdir()
    ours = shm / f"{tritonserver.shm_prefix(mine)}1234"
    theirs = [shm / "triton_python_backend_shm_region_1", shm / f"{tritonserver.shm_prefix(Settings())}1"]
    for file in (ours, *theirs):
        file.touch()
    assert tritonserver.remove_shared_memory(mine, shm) == 1
    assert sorted(shm.iterdir()) == sorted(theirs)


def test_process_ids_of_an_earlier_server_do_not_stay(tmp_path: Path) -> None:
    mine = settings(tmp_path)
    engines = mine.state.dir / "engines"
    tritonserver.remove_process_ids(mine)
    engines.mkdir(parents=True)
    (engines / "llama.pid").write_text("4711", encoding="ascii")
    (engines / "notes").touch()
    tritonserver.remove_process_ids(mine)
    assert [path.name for path in engines.iterdir()] == ["notes"]


def test_the_model_repository_beside_the_packages_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (tritonserver.model_repository(settings(tmp_path)) / "llama" / "config.pbtxt").is_file()


def test_a_repository_of_the_operators_own_is_used(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert tritonserver.model_repository(settings(tmp_path, model_repository=tmp_path / "mine")) == tmp_path / "mine"


def test_a_repository_that_is_not_there_is_no_reason_to_take_another(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"triton\.model_repository"):
        tritonserver.model_repository(settings(tmp_path, model_repository=tmp_path / "typo"))


def test_the_packages_that_an_interpreter_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "find_spec", lambda _: None)
    monkeypatch.setattr(interpreter, "has_shared_library", lambda: False)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert interpreter.missing_packages() == [f"python{version}-venv", f"libpython{version}"]
