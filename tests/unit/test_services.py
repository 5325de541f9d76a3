import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.requests import Request as StarletteRequest

from common.errors import InvalidRequest, NotReady, SettingsError
from common.settings import Settings
from common.tokenizer import Tokenizer
from frontend.engines import Engines
from frontend.services import Tokenizers, deadline_s
from tests.unit.fake_engine import PAGES
from tests.unit.web import run


def request_with(headers: dict[str, str]) -> StarletteRequest:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return StarletteRequest({"type": "http", "headers": raw})


@pytest.mark.parametrize(
    ("header", "asked_s", "expected_s"), [(None, None, 30.0), ("2.5", None, 2.5), ("7", 3.0, 3.0), ("600", None, 600.0)]
)
def test_a_deadline_is_the_bodys_or_the_headers_or_the_default(
    header: str | None, asked_s: float | None, expected_s: float
) -> None:
    request = request_with({} if header is None else {"X-Request-Timeout": header})
    assert deadline_s(request, Settings(), asked_s) == expected_s


@pytest.mark.parametrize("header", ["", "soon", "nan", "inf", "-1", "0", "601", "1e400"])
def test_a_deadline_that_is_none_is_refused(header: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        deadline_s(request_with({"X-Request-Timeout": header}), Settings())
    assert caught.value.param == "x-request-timeout"


def reading(
    monkeypatch: pytest.MonkeyPatch, folder: Path | str, fault: Exception | None = None
) -> tuple[Tokenizers, list[Path]]:
    """Tokenizers for an engine that names `folder`, and the folders that are read."""
    read: list[Path] = []

    def load(path: Path) -> Tokenizer:
        read.append(path)
        if not (path / "tokenizer.json").exists():
            raise fault or SettingsError("no tokenizer here")
        return cast(Tokenizer, SimpleNamespace(path=path))

    monkeypatch.setattr(Tokenizer, "load", load)
    engines = SimpleNamespace(llama_limits=lambda: replace(PAGES, tokenizer_dir=str(folder)))
    settings = Settings.model_validate({"llama": {"model": str(Path(folder).parent / "ours")}})
    return Tokenizers(settings, cast(Engines, engines)), read


def test_the_engines_tokenizer_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    tokenizers, read = reading(monkeypatch, tmp_path)

    async def test() -> None:
        first, second = await asyncio.gather(tokenizers.get(), tokenizers.get())
        assert first is second is await tokenizers.get()

    run(test)
    assert read == [tmp_path]


def test_a_folder_of_another_machine_is_replaced_by_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (ours / name).touch()
    tokenizers, read = reading(monkeypatch, tmp_path / "theirs")
    run(lambda: _discard(tokenizers))
    assert read == [ours]


@pytest.mark.parametrize("fault", [SettingsError("no tokenizer here"), PermissionError(13, "not yours")])
def test_a_tokenizer_that_cannot_be_read_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Exception
) -> None:
    tokenizers, read = reading(monkeypatch, tmp_path, fault)

    async def test() -> None:
        for _ in range(2):
            with pytest.raises(type(fault)):
                await tokenizers.get()
        (tmp_path / "tokenizer.json").touch()
        await tokenizers.get()

    run(test)
    assert len(read) == 3


def test_without_an_engine_there_is_no_tokenizer() -> None:
    def absent() -> None:
        raise NotReady("not yet")

    tokenizers = Tokenizers(Settings(), cast(Engines, SimpleNamespace(llama_limits=absent)))

    async def test() -> None:
        with pytest.raises(NotReady):
            await tokenizers.get()

    run(test)


async def _discard(tokenizers: Tokenizers) -> None:
    await tokenizers.get()
