"""A folder in Hugging Face form without weights: a config of a known shape, and a tokenizer with as many words."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from estimator.llama import LlamaShape

LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": None,
}
"""The architecture of Llama-3-8B as its published config.json has it; no end token, so answers have full length."""


def config_of(shape: LlamaShape) -> dict[str, Any]:
    """A config.json of that shape."""
    return LLAMA_3_8B | {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context_tokens,
        "tie_word_embeddings": shape.tied_embeddings,
        "bos_token_id": None,
    }


def write(folder: Path, config: dict[str, Any]) -> Path:
    """Writes config.json and tokenizer.json into `folder` and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = Tokenizer(WordLevel({f"t{index}": index for index in range(config["vocab_size"])}, unk_token="t0"))
    words.pre_tokenizer = Whitespace()
    words.save(str(folder / "tokenizer.json"))
    return folder
