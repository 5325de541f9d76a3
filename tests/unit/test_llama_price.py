from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import SettingsError
from common.wire import LLAMA_PAGES, LlamaLimits
from estimator.llama import LlamaShape, fuses, page_bytes, pages_for, pages_in, price_request, standing, weights_bytes

LLAMA_3_8B = LlamaShape(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256, context_tokens=8192
)
LIMITS = LlamaLimits(
    context_tokens=1024, vocab_tokens=100, page_tokens=256, page_bytes=1000, pages=10, tokenizer_dir="/nowhere"
)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


@st.composite
def shapes(draw: st.DrawFn) -> LlamaShape:
    kv_heads = draw(st.integers(1, 8))
    return LlamaShape(
        layers=draw(st.integers(1, 40)),
        hidden=draw(st.integers(8, 4096)),
        heads=kv_heads * draw(st.integers(1, 8)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([8, 64, 128])),
        ffn=draw(st.integers(8, 14336)),
        vocab=draw(st.integers(2, 130_000)),
        context_tokens=draw(st.integers(2, 131_072)),
        tied_embeddings=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
    )


def test_llama_3_8b_has_its_published_size() -> None:
    assert weights_bytes(LLAMA_3_8B, "bfloat16") == 8_030_261_248 * 2
    assert page_bytes(LLAMA_3_8B, "bfloat16", 1) == 131_072


@given(
    shapes(),
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.integers(1, 512),
    st.integers(1, 100_000),
    st.integers(1, 8192),
    st.integers(1, 256),
    st.sampled_from(["cpu", "cuda"]),
)
def test_pages_in_is_the_inverse_of_standing(
    shape: LlamaShape, dtype: str, page_tokens: int, pages: int, step_tokens: int, max_batch: int, device_type: str
) -> None:
    sizes = (step_tokens, max_batch, device_type)
    grant_bytes = standing(shape, dtype, page_tokens, pages, *sizes).total_bytes
    assert pages_in(grant_bytes, shape, dtype, page_tokens, *sizes) == pages
    assert pages_in(grant_bytes - 1, shape, dtype, page_tokens, *sizes) == pages - 1


def test_a_grant_below_the_weights_holds_no_page() -> None:
    assert pages_in(2**30, LLAMA_3_8B, "bfloat16", 256, 512, 16) == 0
    assert pages_in(0, LLAMA_3_8B, "bfloat16", 256, 512, 16) == 0


def test_standing_is_charged_to_the_grant_and_names_its_parts() -> None:
    price = standing(LLAMA_3_8B, "bfloat16", 256, 100, 512, 16)
    assert price.by_account().keys() == {"llama.grant"}
    names = [line.why.partition(":")[0] for line in price.lines]
    assert names == ["weights", "pages", "padding", "step", "gather", "masks", "logits", "sampling"]


def test_on_cuda_nothing_is_gathered_where_the_kernels_serve_but_graphs_and_libraries_are_paid() -> None:
    fused = standing(LLAMA_3_8B, "bfloat16", 256, 100, 512, 16, "cuda")
    names = [line.why.partition(":")[0] for line in fused.lines]
    assert names == ["weights", "pages", "padding", "step", "logits", "sampling", "graphs", "libraries", "rounding"]
    plain = standing(LLAMA_3_8B, "float32", 256, 100, 512, 16, "cuda")
    assert {"gather", "masks", "libraries"} < {line.why.partition(":")[0] for line in plain.lines}


@pytest.mark.parametrize(
    ("change", "dtype", "page_tokens"),
    [
        ({}, "float32", 256),
        ({"attention_bias": True}, "bfloat16", 256),
        ({"head_dim": 96}, "float16", 256),
        ({}, "float16", 24),
    ],
)
def test_what_the_kernels_do_not_serve_is_known_before_it_is_loaded(
    change: dict[str, Any], dtype: str, page_tokens: int
) -> None:
    assert fuses(LLAMA_3_8B, "bfloat16", 256)
    assert not fuses(replace(LLAMA_3_8B, **change), dtype, page_tokens)


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 8))
def test_a_request_pays_whole_pages_for_prompt_and_output_of_each_sequence(
    prompt_tokens: int, max_tokens: int, n: int
) -> None:
    price = price_request(LIMITS, prompt_tokens, max_tokens, n)
    pages = price.by_account()[LLAMA_PAGES] // LIMITS.page_bytes // n
    assert (pages - 1) * LIMITS.page_tokens < prompt_tokens + max_tokens <= pages * LIMITS.page_tokens
    assert price.by_account().keys() == {LLAMA_PAGES}


def test_a_price_says_its_numbers() -> None:
    assert "200 prompt + 57 output tokens = 2 pages" in price_request(LIMITS, 200, 57, 3).explain()
    assert price_request(LIMITS, 200, 57, 3).total_bytes == 3 * 2 * 1000


@pytest.mark.parametrize(("tokens", "pages"), [(1, 1), (256, 1), (257, 2)])
def test_pages_are_rounded_up(tokens: int, pages: int) -> None:
    assert pages_for(tokens, 256) == pages


def test_a_config_is_read_with_the_defaults_of_old_checkpoints() -> None:
    expected = LlamaShape(30, 576, 9, 3, 64, 1536, 49152, 8192, tied_embeddings=True)
    assert LlamaShape.from_config(CONFIG) == expected
    without_groups = {key: value for key, value in CONFIG.items() if key != "num_key_value_heads"}
    assert LlamaShape.from_config(without_groups) == replace(expected, kv_heads=9)
    assert LlamaShape.from_config(CONFIG | {"head_dim": None}) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, "model_type 'mixtral'"),
        ({"model_type": None}, "model_type None"),
        ({"model_type": "mistral"}, "sliding window of 4096"),
        ({"model_type": "mistral", "sliding_window": 1024}, "sliding window of 1024"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"num_key_value_heads": 4}, "9 heads cannot share 4"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"intermediate_size": 0}, "intermediate_size"),
    ],
)
def test_what_is_no_plain_llama_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LlamaShape.from_config(CONFIG | change)


def test_a_mistral_without_a_window_is_a_llama() -> None:
    shape = LlamaShape.from_config(CONFIG)
    assert LlamaShape.from_config(CONFIG | {"model_type": "mistral", "sliding_window": None}) == shape
