import os
from pathlib import Path

import pytest
import torch

from backend.device import announce, open_card, pick
from common.errors import SettingsError
from common.settings import Settings

CPU = torch.device("cpu")
GIB = 2**30


def settings_of(folder: Path, **card: object) -> Settings:
    return Settings.model_validate({"state": {"dir": str(folder)}, "card": card})


def test_pictures_that_were_paid_for_beside_the_card_do_not_eat_its_headroom(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, total=4 * GIB)
    announce(settings, "unet")
    alone, beside = (open_card(settings, CPU, lent_bytes).read() for lent_bytes in (0, GIB))
    assert alone is not None
    assert beside is not None
    assert alone.total_bytes == 4 * GIB
    assert beside.total_bytes == 5 * GIB
    assert beside.free_bytes - alone.free_bytes == pytest.approx(GIB, rel=0.01)


def test_both_engines_resident_sets_count(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, total=64 * GIB)
    assert (reading := open_card(settings, CPU).read()) is not None
    assert reading.used_bytes == 0
    for model in ("llama", "unet"):
        announce(settings, model)
    assert (tmp_path / "engines" / "unet.pid").read_text() == str(os.getpid())
    assert (reading := open_card(settings, CPU).read()) is not None
    assert reading.used_bytes > 2**20


def test_a_device_that_torch_cannot_see_is_named(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card here")
    with pytest.raises(SettingsError, match="cuda"):
        pick(settings_of(tmp_path, device="cuda"))
    assert pick(settings_of(tmp_path, device="cpu")) == CPU
