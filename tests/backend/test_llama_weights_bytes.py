"""The price of the weights against the models that transformers builds from the same config."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig

from estimator.llama import LlamaShape, weights_bytes

SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
CONFIGS = {
    "llama-3-8b": LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_key_value_heads=8
    ),
    "smollm2": LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    ),
    "biases": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "wide heads": LlamaConfig(**SMALL, head_dim=20, tie_word_embeddings=True),
    "one group": LlamaConfig(**SMALL | {"num_key_value_heads": 6}),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_bytes_equal_the_parameters_that_transformers_builds(name: str, dtype: str) -> None:
    config: PreTrainedConfig = CONFIGS[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    expected = sum(parameter.nbytes for parameter in model.parameters())
    assert weights_bytes(LlamaShape.from_config(config.to_dict()), dtype) == expected
