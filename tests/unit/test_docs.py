import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)?(#[^)\s]+)?\)")


def test_pages_that_follow_from_the_code_do(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, DOCS / "build.py", tmp_path],
        check=True,
        timeout=120,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    for page in tmp_path.glob("*.md"):
        assert page.read_text() == (DOCS / page.name).read_text(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for file, _ in LINK.findall(page.read_text(encoding="utf-8")):
        if file and not file.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / file).exists(), f"{page.name} links to {file}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    from frontend.cli import app

    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {str(group.name) for group in app.registered_groups}
    named = set(re.findall(r"`(?:\.venv/bin/)?vramgate ([a-z]+)", page.read_text(encoding="utf-8")))
    assert named <= known, f"{page.name}: {named - known}"
