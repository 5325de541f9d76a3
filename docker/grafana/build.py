"""Writes the dashboards: ``python docker/grafana/build.py [FOLDER]``.

What is changed by hand in the JSON is lost, and a test says so.
"""

import json
import sys
from pathlib import Path

from operators import OPERATORS
from request import REQUEST

FOLDER = Path(__file__).with_name("dashboards")


def main(folder: Path) -> None:
    """Writes every page."""
    folder.mkdir(exist_ok=True)
    for name, told in {"operators": OPERATORS, "request": REQUEST}.items():
        (folder / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
