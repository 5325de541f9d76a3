"""Bytes of a Llama-architecture model: weights, a KV page, a step's working memory, and how many pages fit.

A grant is divided so (every term in bytes, ``e`` = bytes of one element)::

    grant = weights + (pages + 1) x page + step + logits

On CUDA also what captured steps and libraries keep. One page holds keys and values of ``page_tokens`` tokens for all
layers. The extra page takes the writes of warm-up and of padding, and is never lent. Worked example, Llama-3-8B in
bfloat16 with 256-token pages: weights 14.96 GiB, one token 2 x 32 layers x 8 heads x 128 x 2 B = 131,072 B, one page
32 MiB.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import SettingsError
from common.wire import LLAMA_PAGES, LlamaLimits
from estimator.price import Line, Price

GRANT = "llama.grant"
ITEMSIZE: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one element by dtype name."""

SAMPLED_ROWS = 16
"""Rows of logits that are sampled at once."""
FUSED_HEAD_DIMS = (32, 64, 128, 256)
_MIN_KEYS = 16
_LIBRARY_BYTES = 32 * 2**20
"""cuBLAS's workspace: one handle on one stream, on Hopper; 8 MiB elsewhere."""
_ROUNDING_BYTES = 80 * 2**20
"""Holes in the segments of working memory, with the segments of the graphs' own pool: 30 to 69 MiB on an H200."""
_SAMPLING_BYTES = 48
"""Per logit of a sampled row: logits, probabilities, sorted values, sums, masks (4 B each), ids (8), the sort's own."""
_FAMILIES = ("llama", "mistral")
_UNSUPPORTED = ("num_local_experts", "num_experts", "quantization_config")


@dataclass(frozen=True)
class LlamaShape:
    """Everything that memory depends on, as a checkpoint's config.json gives it."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context_tokens: int
    tied_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "LlamaShape":
        """The shape in a Hugging Face config.json.

        Raises SettingsError, naming the key, for a missing size and for what is no plain Llama: another family, a
        sliding window in use, experts, quantised weights, another activation.
        """
        _refuse_foreign(config)
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        kv_heads = _size(config, "num_key_value_heads", heads)
        if heads % kv_heads:
            raise SettingsError(f"config.json: {heads} heads cannot share {kv_heads} key/value heads evenly")
        return cls(
            layers=_size(config, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=_size(config, "head_dim", hidden // heads),
            ffn=_size(config, "intermediate_size"),
            vocab=_size(config, "vocab_size"),
            context_tokens=_size(config, "max_position_embeddings"),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
        )

    @property
    def q_width(self) -> int:
        """Columns of all query heads."""
        return self.heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Columns of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


def weights_bytes(shape: LlamaShape, dtype: str) -> int:
    """Bytes of all parameters: embeddings, a head unless it is tied, and per layer four matrices and two norms."""
    matrices = shape.hidden * (shape.qkv_width + shape.q_width + 3 * shape.ffn)
    norms = 2 * shape.hidden
    attention_biases = (shape.qkv_width + shape.hidden) * shape.attention_bias
    mlp_biases = (2 * shape.ffn + shape.hidden) * shape.mlp_bias
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied_embeddings else 2)
    elements = shape.layers * (matrices + norms + attention_biases + mlp_biases) + embeddings + shape.hidden
    return elements * ITEMSIZE[dtype]


def page_bytes(shape: LlamaShape, dtype: str, page_tokens: int) -> int:
    """Bytes of one page: keys and values, all layers, `page_tokens` tokens."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * ITEMSIZE[dtype] * page_tokens


def pages_for(tokens: int, page_tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // page_tokens)


def gather_pages(context_tokens: int, page_tokens: int, pages: int, max_batch: int) -> int:
    """Pages whose keys and values of one layer are gathered side by side at the most.

    The longest sequence must fit, and a full batch of one-page sequences is worth doing at once.
    """
    return min(pages, max(pages_for(context_tokens, page_tokens), max_batch))


def price_request(limits: LlamaLimits, prompt_tokens: int, max_tokens: int, n: int = 1) -> Price:
    """What a request draws: each of its `n` sequences holds the pages of its prompt and of its longest answer."""
    pages = pages_for(prompt_tokens + max_tokens, limits.page_tokens)
    why = (
        f"{prompt_tokens:,} prompt + {max_tokens:,} output tokens = {pages:,} pages of {limits.page_tokens} tokens "
        f"({limits.page_bytes:,} B each)" + (f", {n} times" if n > 1 else "")
    )
    return Price.of([Line(LLAMA_PAGES, n * pages * limits.page_bytes, why)])


def fuses(shape: LlamaShape, dtype: str, page_tokens: int) -> bool:
    """Whether CUDA's fused kernels serve the model: half precision, no biases, heads and pages that tile evenly.

    They read keys and values where they lie, so nothing is gathered and no mask is made.
    """
    even = shape.head_dim in FUSED_HEAD_DIMS and page_tokens & -page_tokens >= _MIN_KEYS
    return dtype != "float32" and even and not (shape.attention_bias or shape.mlp_bias)


def standing(
    shape: LlamaShape,
    dtype: str,
    page_tokens: int,
    pages: int,
    step_tokens: int,
    max_batch: int,
    device_type: str = "cpu",
) -> Price:
    """What the engine holds on ``cpu`` or ``cuda`` whether or not anyone calls, on the account ``llama.grant``.

    Each line's reason starts with the line's name and a colon. On CUDA the context is not in it.
    """
    one_page_bytes = page_bytes(shape, dtype, page_tokens)
    gathered = gather_pages(shape.context_tokens, page_tokens, pages, max_batch)
    step_bytes = step_tokens * _token_bytes(shape, dtype)
    gather_bytes = gathered * one_page_bytes // shape.layers
    mask_bytes = _mask_bytes(shape, dtype, page_tokens, gathered, step_tokens)
    logits_bytes = max_batch * shape.vocab * (4 + ITEMSIZE[dtype])
    sampling_bytes = min(max_batch, SAMPLED_ROWS) * shape.vocab * _SAMPLING_BYTES
    on_cuda = device_type == "cuda"
    fused = on_cuda and fuses(shape, dtype, page_tokens)
    return Price.of(
        [
            Line(GRANT, weights_bytes(shape, dtype), f"weights: in {dtype}"),
            Line(GRANT, pages * one_page_bytes, f"pages: {pages:,} of {one_page_bytes:,} B"),
            Line(GRANT, one_page_bytes, "padding: one page that is never lent"),
            Line(GRANT, step_bytes, f"step: activations of {step_tokens:,} tokens"),
            Line(
                GRANT,
                0 if fused else gather_bytes,
                f"gather: keys and values of one layer, {gathered:,} pages side by side",
            ),
            Line(GRANT, 0 if fused else mask_bytes, "masks: of prefill chunks and decodes"),
            Line(GRANT, logits_bytes, f"logits: {max_batch:,} rows of {shape.vocab:,}"),
            Line(GRANT, sampling_bytes, f"sampling: {SAMPLED_ROWS} rows at once"),
            Line(GRANT, fused * graph_bytes(shape, max_batch), f"graphs: captured steps of up to {max_batch:,} tokens"),
            Line(GRANT, on_cuda * _LIBRARY_BYTES, "libraries: workspace of the matrix products"),
            Line(GRANT, on_cuda * _ROUNDING_BYTES, "rounding: holes between tensors, unfilled segments"),
        ]
    )


def graph_bytes(shape: LlamaShape, max_batch: int) -> int:
    """What captured decode steps keep on CUDA, in bytes.

    Of each size of batch, the powers of two, its logits; of the largest alone, since the others find room in it, the
    float32 sums of a product cut in up to four and the attention's partial sums (64 cuts in all).
    """
    rows = max_batch + (1 << (max_batch - 1).bit_length()) - 1
    token_bytes = 4 * (4 * shape.hidden + 2 * shape.qkv_width + shape.q_width + shape.ffn)
    return 4 * rows * shape.vocab + max_batch * token_bytes + 64 * shape.heads * (shape.head_dim + 2) * 4


def pages_in(
    grant_bytes: int,
    shape: LlamaShape,
    dtype: str,
    page_tokens: int,
    step_tokens: int,
    max_batch: int,
    device_type: str = "cpu",
) -> int:
    """The most pages with which :func:`standing` stays within `grant_bytes`; 0 when not even one does."""

    def cost_bytes(pages: int) -> int:
        return standing(shape, dtype, page_tokens, pages, step_tokens, max_batch, device_type).total_bytes

    ceiling = max(grant_bytes, 0) // page_bytes(shape, dtype, page_tokens)
    return bisect_right(range(1, ceiling + 1), grant_bytes, key=cost_bytes)


def _token_bytes(shape: LlamaShape, dtype: str) -> int:
    """Working memory of one token in one layer, its largest phase.

    The feed-forward phase holds residual, normed input, gate and up, the activated gate and the residual's successor;
    the attention phase the projection, its rotated copy, queries and output in kernel order, the projected output;
    normalising holds two float32 copies beside input and output. Counted on CPU with torch's memory profiler, and the
    measured 2 x hidden + 3 x ffn elements of `generate` for the middle one.
    """
    itemsize = ITEMSIZE[dtype]
    norm_bytes = shape.hidden * (3 * itemsize + 8)
    attention_bytes = itemsize * (2 * shape.hidden + 2 * shape.qkv_width + 3 * shape.q_width)
    ffn_bytes = itemsize * (3 * shape.hidden + 3 * shape.ffn)
    positions_bytes = 64 + 2 * shape.head_dim * (4 + itemsize)
    return max(norm_bytes, attention_bytes, ffn_bytes) + positions_bytes


def _mask_bytes(shape: LlamaShape, dtype: str, page_tokens: int, gathered: int, step_tokens: int) -> int:
    """Additive masks of the prefill chunks and of the decodes, with the booleans they are made from."""
    key_tokens = min(shape.context_tokens, gathered * page_tokens)
    return (step_tokens * key_tokens + gathered * page_tokens) * (1 + ITEMSIZE[dtype])


def _refuse_foreign(config: Mapping[str, Any]) -> None:
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise SettingsError(f"config.json: model_type {family!r} is not served; it must be one of {_FAMILIES}")
    for key in _UNSUPPORTED:
        if config.get(key):
            raise SettingsError(f"config.json: {key} is set; only plain dense Llama checkpoints are served")
    if config.get("hidden_act", "silu") != "silu":
        raise SettingsError(f"config.json: hidden_act {config['hidden_act']!r} is not served; it must be 'silu'")
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        raise SettingsError("config.json: layer_types other than 'full_attention' are not served")
    window = config.get("sliding_window", 4096 if family == "mistral" else None)
    if window is not None and window < _size(config, "max_position_embeddings"):
        raise SettingsError(f"config.json: a sliding window of {window} tokens is in use; it must be null")


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingsError(f"config.json: {key} must be a positive whole number, not {value!r}")
    return value
