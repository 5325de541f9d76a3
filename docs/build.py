"""Writes the pages that follow from the code: ``python docs/build.py [FOLDER]``. A test says when it was forgotten.

configuration.md comes from the settings model and the comments of vramgate.toml.example; measured.md from
``sources/measured.md``, whose ``{file.figure:.1f}`` are figures of ``loadtests/results``.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

from pydantic import ByteSize

from common import sections
from common.settings import Settings

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "vramgate.toml.example"
RESULTS = HERE.parent / "loadtests" / "results"
HEAD = """# Configuration

Every setting, with its default. Later wins: the default, the file (`vramgate.toml` in the working directory, or where
`--config` or `VRAMGATE_CONFIG` says), the environment. `llama.max_batch` is `max_batch` under `[llama]` in the file and
`VRAMGATE_LLAMA__MAX_BATCH` in the environment. Bytes are numbers or `"512MiB"`; lists and tables in the environment are
written as in TOML. An unknown key is an error. `vramgate check` reads everything and starts nothing. Changes take
effect at the next start, but for `log.level` (SIGHUP to the frontend) and the key file (within a second).

This page is made by `docs/build.py`; [vramgate.toml.example](../vramgate.toml.example) is the same as a file to copy.
"""


def configuration() -> str:
    """The page about settings."""
    parts, comments = [HEAD], _comments()
    for name in Settings.model_fields:
        section = getattr(Settings(), name)
        parts.append(f"\n## [{name}]\n\n{_about(section)}\n\n| key | default | what |\n|---|---|---|\n")
        told = dict(_docstrings(type(section))) | comments.get(name, {})
        rows = type(section).model_fields
        parts.extend(f"| `{key}` | {_default(getattr(section, key))} | {told.get(key, '')} |\n" for key in rows)
    return "".join(parts)


def measured() -> str:
    """The page about claims, with its figures."""
    text = (HERE / "sources" / "measured.md").read_text(encoding="utf-8")
    figures: dict[str, Any] = {}
    for _, field, _, _ in Formatter().parse(text):
        if field is not None:
            file, _, figure = field.partition(".")
            figures[field] = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))["figures"][figure]
    return re.sub(r"\{([\w.]+)(?::([^}]*))?\}", lambda found: format(figures[found[1]], found[2] or ""), text)


def _about(section: object) -> str:
    return (inspect.getdoc(type(section)) or "").replace("``", "`")


def _comments() -> dict[str, dict[str, str]]:
    """Section -> key -> the comment behind it in the example file."""
    told: dict[str, dict[str, str]] = {}
    section = ""
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\[(\w+)\]", line):
            section = found[1]
        elif found := re.match(r"(?:## )?(\w+)\s*=.*?\s#\s*(.+)$", line):
            told.setdefault(section, {})[found[1]] = found[2].replace("|", "\\|")
    return told


def _docstrings(section: type) -> Iterator[tuple[str, str]]:
    """Key -> the text below it in the source."""
    (tree,) = ast.parse(inspect.getsource(sections)).body[_place(section) :][:1]
    assert isinstance(tree, ast.ClassDef)
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = " ".join(str(below.value.value).split()).replace("``", "`").replace("|", "\\|")
            yield field.target.id, text


def _place(section: type) -> int:
    body = ast.parse(inspect.getsource(sections)).body
    return next(i for i, node in enumerate(body) if isinstance(node, ast.ClassDef) and node.name == section.__name__)


def _default(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, ByteSize):
        return f"`{value.human_readable()}`" if value else "`0`"
    return f"`{json.dumps(value if isinstance(value, str | int | float | bool | tuple | list | dict) else str(value))}`"


def main(folder: Path) -> None:
    """Writes both pages."""
    for name, text in {"configuration": configuration(), "measured": measured()}.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
