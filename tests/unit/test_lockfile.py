import os
from pathlib import Path

import pytest

from common.errors import SettingsError
from frontend.lockfile import sole_user


def test_a_second_user_is_told_who_is_there(tmp_path: Path) -> None:
    with sole_user(tmp_path), pytest.raises(SettingsError, match=rf"process {os.getpid()}\).*VRAMGATE_STATE__DIR"):
        sole_user(tmp_path).__enter__()


def test_it_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with sole_user(tmp_path):
            assert (tmp_path / "launcher.lock").read_text() == str(os.getpid())


def test_the_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    with sole_user(tmp_path / "a" / "state"):
        assert (tmp_path / "a" / "state").stat().st_mode & 0o777 == 0o700
