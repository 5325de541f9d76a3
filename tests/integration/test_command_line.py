import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from tests.integration.running import Running

ROOT = Path(__file__).parents[2]


def examples(running: Running) -> list[str]:
    """The commands that the banner prints, each on one line or more."""
    banner = re.search(r"^vramgate is up.*?--max-tokens \d+$", running.output, re.MULTILINE | re.DOTALL)
    assert banner is not None
    return re.findall(r"^  (\S.*?)(?=\n\n|\Z)", banner[0], re.MULTILINE | re.DOTALL)


def typed(command: str) -> str:
    """What a shell in the repository prints for `command`."""
    return subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples use curl")
def test_the_banners_examples_work_as_they_are_printed(service: Running, tmp_path: Path) -> None:
    chat, segment, quote = examples(service)
    answer = json.loads(typed(chat))
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
    overlay = tmp_path / "overlay.png"
    typed(segment.replace("overlay.png", str(overlay)))
    with Image.open(overlay) as picture:
        assert picture.size == (256, 256)
    assert "4 prompt + 400 output tokens = 2 pages" in typed(quote)


def test_the_readmes_examples_are_the_banners(service: Running) -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for command in examples(service):
        words = " ".join(command.split()).replace(service.url, "http://127.0.0.1:8080")
        assert words.replace(f" --port {service.port}", "") in readme


def test_a_quote_is_the_price_that_the_run_then_has(service: Running) -> None:
    shown = service.run("quote", "--image", str(ROOT / "docs" / "nuclei.png"))
    assert shown.returncode == 0, shown.stderr
    assert "now: admit" in shown.stdout


def test_a_request_that_never_fits_is_quoted_with_the_services_own_words(service: Running) -> None:
    shown = service.run("quote", "--prompt-tokens", "9000")
    assert shown.returncode == 2
    assert "8,192" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_the_ledger_of_an_idle_service_holds_nothing(service: Running) -> None:
    shown = service.run("ledger")
    assert "0 leases, 0 waiting, admission open" in shown.stdout
    assert service.held_bytes() == 0


def test_the_doctor_sees_the_running_service(service: Running) -> None:
    shown = service.run("doctor")
    assert shown.returncode == 0
    assert f"service: runs at {service.url}" in shown.stdout
