"""Language models known by name: the sizes in their published config.json, and no weights."""

from collections.abc import Mapping

from common.errors import SettingsError
from estimator.llama import LlamaShape

_LLAMA_3_8B = LlamaShape(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256, context_tokens=8192
)

SHAPES: Mapping[str, LlamaShape] = {
    "llama-3-8b": _LLAMA_3_8B,
    "llama-3.1-8b": LlamaShape(32, 4096, 32, 8, 128, 14336, 128256, 131072),
    "llama-3.2-1b": LlamaShape(16, 2048, 32, 8, 64, 8192, 128256, 131072, tied_embeddings=True),
    "llama-3.2-3b": LlamaShape(28, 3072, 24, 8, 128, 8192, 128256, 131072, tied_embeddings=True),
    "llama-2-7b": LlamaShape(32, 4096, 32, 32, 128, 11008, 32000, 4096),
    "llama-2-13b": LlamaShape(40, 5120, 40, 40, 128, 13824, 32000, 4096),
    "mistral-7b-v0.3": LlamaShape(32, 4096, 32, 8, 128, 14336, 32768, 32768),
    "smollm2-135m": LlamaShape(30, 576, 9, 3, 64, 1536, 49152, 8192, tied_embeddings=True),
    "smollm2-360m": LlamaShape(32, 960, 15, 5, 64, 2560, 49152, 8192, tied_embeddings=True),
    "smollm2-1.7b": LlamaShape(24, 2048, 32, 32, 64, 8192, 49152, 8192, tied_embeddings=True),
    "tinyllama-1.1b": LlamaShape(22, 2048, 32, 4, 64, 5632, 32000, 2048),
}
"""Name -> shape. Mistral's first release slides a window over its context and is not served; the third does not."""


def named(name: str) -> LlamaShape:
    """The shape of that name, in any case; raises SettingsError that lists the names."""
    shape = SHAPES.get(name.lower())
    if shape is None:
        raise SettingsError(f"there is no shape {name!r}; known are {', '.join(SHAPES)}")
    return shape
