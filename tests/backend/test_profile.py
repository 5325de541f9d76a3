from pathlib import Path

import pytest
import torch

from backend import profile
from common.errors import SettingsError
from common.settings import Settings
from tests.backend.llama_kit import save_model, settings_of, small_config


def test_each_part_of_the_language_model_has_its_share_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    save_model(tmp_path, small_config())
    told = profile.of_llama(settings_of(tmp_path), prompt_tokens=40)
    assert set(told.parts) == {"attention", "MLP", "logits", profile.REST}
    assert told.allocated_bytes == sum(told.parts.values()) == sum(one.allocated_bytes for one in told.operators)
    # 40 prompt tokens and one to decode, 3 layers: the product with gate and up, in float32
    assert told.parts["MLP"] > 41 * 3 * 2 * 52 * 4
    # two rows of the vocabulary: after the prompt and after the decode
    assert told.parts["logits"] >= 2 * 307 * 4
    assert told.peak_bytes is None


def test_the_segmentation_network_is_told_by_encoder_decoder_and_head() -> None:
    settings = Settings.model_validate({"unet": {"tile_pixels": 64, "dummy_weights": True}, "card": {"device": "cpu"}})
    told = profile.of_unet(settings, tiles=2)
    assert set(told.parts) == {"encoder", "decoder", "head"}
    # the last convolution's input and output, in float32: 4 channels and 1 of two tiles
    assert told.parts["head"] >= 2 * 64 * 64 * 4
    assert told.parts["encoder"] > told.parts["head"]


def test_what_cannot_be_run_is_refused_with_the_bounds(tmp_path: Path) -> None:
    save_model(tmp_path, small_config())
    with pytest.raises(SettingsError, match="1 to 127"):
        profile.of_llama(settings_of(tmp_path), prompt_tokens=128)
    with pytest.raises(SettingsError, match="1 to 4"):
        profile.of_unet(Settings(), tiles=5)


def test_work_outside_of_every_part_is_the_rest() -> None:
    parts, operators, _ = profile.measure(lambda: torch.ones(1000) * 2, torch.device("cpu"))
    assert set(parts) == {profile.REST}
    assert parts[profile.REST] >= 2 * 4000
    assert operators[0].allocated_bytes >= 4000
