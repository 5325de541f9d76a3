"""What the Python interpreter must bring before anything can be installed; the standard library only.

``python3 frontend/interpreter.py`` says what is missing and how to get it, and exits with 1.
"""

from __future__ import annotations  # this file is run by whatever python3 there is

import sys
import sysconfig
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path

VERSIONS = ((3, 11), (3, 12))


def is_supported() -> bool:
    """Whether the packages, and the model server's stub, exist for this version."""
    return sys.version_info[:2] in VERSIONS


def shared_library() -> str:
    """File name of the interpreter's shared library, ``libpython3.11.so.1.0``; the stub is linked against it."""
    return f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"


def library_dirs() -> tuple[Path, ...]:
    """Where this very interpreter keeps its shared library, if it has one.

    The loader alone would take a system's library of another patch level, which does not fit this standard library.
    """
    folders = (Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent"), Path(sys.base_prefix) / "lib")
    return tuple(folder for folder in dict.fromkeys(folders) if (folder / shared_library()).is_file())


def has_shared_library() -> bool:
    """Whether the stub would find the shared library."""
    name = shared_library().removeprefix("lib").partition(".so")[0]
    return bool(library_dirs()) or find_library(name) is not None


def missing_packages() -> list[str]:
    """Debian's and Ubuntu's packages that bring what this interpreter lacks."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    packages = []
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        packages.append(f"python{version}-venv")
    if not has_shared_library():
        packages.append(f"libpython{version}")
    return packages


def main() -> int:
    """0 when all is there."""
    if not is_supported():
        print(f"Python 3.11 or 3.12 is needed; {sys.executable} is {sys.version.split()[0]}", file=sys.stderr)
        print("name another one: make up PYTHON=/path/to/python3.12", file=sys.stderr)
        return 1
    packages = missing_packages()
    if packages:
        print(f"{sys.executable} lacks what these packages bring; type:", file=sys.stderr)
        print(f"  sudo apt-get install {' '.join(packages)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
