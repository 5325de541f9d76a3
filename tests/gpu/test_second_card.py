"""An engine on a card that is not the process's first one answers as on the first: its work is in that card's queue."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from backend.device import label
from backend.llama import engine as llama_engine
from backend.llama.request import Generation, Sampling
from backend.unet import engine as unet_engine
from common.settings import Settings
from tests.backend.llama_kit import run, save_tokenizer
from tests.backend.unet_kit import Recorder, noise, request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA cards"),
]
CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
}


def card_of(index: int) -> dict[str, str]:
    """The section of the settings that names a card as an operator does."""
    return {"device": label(torch.device("cuda", index)).removeprefix("cuda:")}


def test_text_is_the_same_from_either_card(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_tokenizer(tmp_path)
    llama = {"model": str(tmp_path), "dummy_weights": True, "grant": 2**31, "pages": 64, "max_batch": 4}
    prompt = tuple(random.Random(3).choices(range(256), k=200))
    told = []
    for index in range(2):
        engine = llama_engine.load(Settings.model_validate({"llama": llama, "card": card_of(index)}))
        try:
            assert engine.device == label(torch.device("cuda", index))
            requests = [Generation(prompt, 100), Generation(prompt, 100, sampling=Sampling(seed=7, logprobs=2))]
            told.append([run(engine, each).ids() for each in requests])
            assert engine.canary() == ""
        finally:
            engine.close()
    assert told[0] == told[1]


def test_a_mask_is_the_same_from_either_card() -> None:
    masks = []
    for index in range(2):
        engine = unet_engine.load(Settings.model_validate({"unet": {"canvas": "64MiB"}, "card": card_of(index)}))
        try:
            outlet = Recorder()
            engine.submit(request(noise(700, 900)), outlet)
            masks.append(outlet.mask)
            assert engine.canary() == ""
        finally:
            engine.close()
    np.testing.assert_array_equal(masks[0], masks[1])
