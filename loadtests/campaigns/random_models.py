"""Language models of a known shape with random weights, as a folder that every contestant can read."""

import json
from pathlib import Path
from typing import Any

from common.errors import SettingsError
from loadtests import dummy_model

DEMO = "demo"
TINY: dict[str, Any] = dummy_model.LLAMA_3_8B | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "bos_token_id": 1,
}
CONFIGS = {"llama-3-8b": dummy_model.LLAMA_3_8B, "tiny": TINY}
"""Name in a campaign -> config.json."""
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def folder_of(model: str, folder: Path) -> Path | None:
    """Writes the model `model` of a campaign into `folder`; None for the demo model, which is found elsewhere."""
    if model == DEMO:
        return None
    if model not in CONFIGS:
        raise SettingsError(f"model: there is no {model!r}; there are: {', '.join((DEMO, *CONFIGS))}")
    dummy_model.write(folder, CONFIGS[model])
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "pad_token": "t0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    return folder
