"""Every kernel against the same sum written in plain torch, in float32."""

import pytest
import torch
import torch.nn.functional as F

from backend.llama.fused import forward
from backend.llama.kernels.attention import attend, store_qkv
from backend.llama.kernels.chunks import attend_chunks
from backend.llama.kernels.norms import add_norm
from backend.llama.kernels.products import Tiling, gate_up, gated_product, product, tiling_for
from backend.llama.mixed import MixedBatch
from backend.llama.model import rotate
from backend.llama.pages import PagePool
from backend.llama.runner import Runner
from backend.llama.scheduler import Sequence, Slice
from backend.llama.weights import RandomWeights, build

pytestmark = pytest.mark.gpu

SMALL = Tiling(columns=32, inner=64, splits=3, warps=4, stages=3)
PAGE, PAGES, SEQUENCES = 64, 24, 5
LENGTHS = (1, PAGE - 1, PAGE, PAGE + 1, 4 * PAGE - 3)


def config(heads: int, kv_heads: int, head_dim: int) -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": heads * head_dim,
        "intermediate_size": 300,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": 2000,
        "max_position_embeddings": 1024,
    }


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).abs().max() / expected.float().abs().max())


def tolerance(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 1e-2


@pytest.mark.parametrize("tokens", [1, 3, 17])
@pytest.mark.parametrize(("out", "inner"), [(100, 200), (64, 64), (33, 130)])
def test_partial_sums_add_up_to_the_product(
    tokens: int, out: int, inner: int, device: torch.device, dtype: torch.dtype
) -> None:
    x = torch.randn(tokens, inner, device=device, dtype=dtype)
    weight = torch.randn(out, inner, device=device, dtype=dtype)
    assert relative_error(product(x, weight, SMALL).sum(0), x.float() @ weight.float().T) < 1e-5


@pytest.mark.parametrize("tokens", [1, 3, 17])
def test_the_gated_product_is_swiglu(tokens: int, device: torch.device, dtype: torch.dtype) -> None:
    x = torch.randn(tokens, 200, device=device, dtype=dtype)
    weight = torch.randn(2 * 70, 200, device=device, dtype=dtype)
    gate, up = (x.float() @ weight.float().T).chunk(2, -1)
    assert relative_error(gated_product(x, weight, SMALL), F.silu(gate) * up) < tolerance(dtype)


@pytest.mark.parametrize("splits", [0, 1, 4])
def test_the_norm_adds_what_the_product_left(splits: int, device: torch.device, dtype: torch.dtype) -> None:
    residual = torch.randn(3, 100, device=device, dtype=dtype)
    weight = torch.randn(100, device=device, dtype=dtype)
    partial = torch.randn(splits, 3, 100, device=device) if splits else None
    added, normed = add_norm(residual, partial, weight, 1e-5)
    expected = (residual.float() + (partial.sum(0) if partial is not None else 0)).to(dtype)
    assert relative_error(added, expected) < tolerance(dtype)
    assert relative_error(normed, F.rms_norm(expected.float(), (100,), weight.float(), 1e-5)) < tolerance(dtype)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_a_token_is_stored_and_attends_over_its_pages(
    group: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> None:
    kv_heads = 2
    heads = kv_heads * group
    memory = torch.randn(PAGES, 2, 2, PAGE, kv_heads, head_dim, device=device, dtype=dtype)
    keys, values = memory[:, 1, 0], memory[:, 1, 1]
    table = torch.randperm(PAGES, device=device)[: SEQUENCES * 4].to(torch.int32).view(SEQUENCES, 4)
    positions = torch.tensor([length - 1 for length in LENGTHS], device=device, dtype=torch.int32)
    partial = torch.randn(2, SEQUENCES, (heads + 2 * kv_heads) * head_dim, device=device)
    inv_freq = 1 / 10_000 ** (torch.arange(0, head_dim, 2, device=device).float() / head_dim)

    rows = torch.arange(SEQUENCES, device=device, dtype=torch.int32)
    queries = store_qkv(partial, positions, rows, table, inv_freq, 1.0, keys, values, heads)

    qkv = partial.sum(0).view(SEQUENCES, -1, head_dim)
    angles = (positions.float()[:, None] * inv_freq)[:, None]
    rotated = rotate(qkv[:, : heads + kv_heads], angles.cos(), angles.sin())
    pages = table[torch.arange(SEQUENCES), positions // PAGE].long()
    assert relative_error(queries, rotated[:, :heads]) < tolerance(dtype)
    assert relative_error(keys[pages, positions % PAGE], rotated[:, heads:]) < tolerance(dtype)
    assert relative_error(values[pages, positions % PAGE], qkv[:, heads + kv_heads :]) < tolerance(dtype)

    expected = torch.stack([_attended(queries[i], keys, values, table[i], LENGTHS[i]) for i in range(SEQUENCES)])
    for splits in (1, 2, 16):
        got = attend(queries, keys, values, table, positions, splits).view(SEQUENCES, heads, head_dim)
        assert relative_error(got, expected) < tolerance(dtype)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 64), (6, 2, 64), (8, 1, 128)])
def test_chunks_go_through_the_fused_kernels_as_through_the_reference(
    heads: int, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> None:
    model = build(config(heads, kv_heads, head_dim), RandomWeights(device), dtype, device)
    starts_and_counts = [(9, 1), (PAGE + 3, 1), (0, 140), (50, 30), (0, 64)]
    pages = [[0], [1, 2], [3, 4, 5], [6, 7], [8]]
    slices = [
        Slice(
            Sequence([7 * start + place for place in range(start + count + (row == 3))], 1, pages=pages[row]),
            start,
            count,
            row != 3,
        )
        for row, (start, count) in enumerate(starts_and_counts)
    ]
    past = torch.randn(PAGES + 1, PAGE, kv_heads, head_dim, device=device, dtype=dtype)
    answers, written = [], []
    for path in ("fused", "reference"):
        pool = PagePool(model.shape, PAGES, PAGE, dtype, device)
        for layer in range(model.shape.layers):
            for cached in pool.layer(layer):
                cached.copy_(past)
        if path == "fused":
            mixed = MixedBatch(slices, pool)
            answers.append(forward(model, pool, mixed.batch, mixed.attend, mixed.logit_rows))
        else:
            answers.append(Runner(model, pool, step_tokens=512, max_batch=8).forward(slices).float())
        written.append(torch.cat([cached.flatten() for cached in pool.layer(1)]))
    assert len(answers[0]) == 4
    assert relative_error(answers[0], answers[1]) < 3 * tolerance(dtype)
    assert relative_error(written[0], written[1]) < 3 * tolerance(dtype)


def test_chunks_that_do_not_sample_give_no_logits(device: torch.device, dtype: torch.dtype) -> None:
    model = build(config(4, 2, 64), RandomWeights(device), dtype, device)
    pool = PagePool(model.shape, PAGES, PAGE, dtype, device)
    mixed = MixedBatch([Slice(Sequence(list(range(20)), 1, pages=[3]), 0, 5, samples=False)], pool)
    assert forward(model, pool, mixed.batch, mixed.attend, mixed.logit_rows).shape == (0, model.shape.vocab)
    assert pool.layer(1)[0][3, :5].abs().sum() > 0


@pytest.mark.parametrize("page_tokens", [16, 48, 96])
def test_pages_of_an_odd_size_are_not_read_beyond_their_end(
    page_tokens: int, device: torch.device, dtype: torch.dtype
) -> None:
    memory = torch.randn(8, 2, page_tokens, 1, 64, device=device, dtype=dtype)
    keys, values = memory[:, 0], memory[:, 1]
    pages, length = [5, 2, 7], 3 * page_tokens - 5
    queries = torch.randn(length, 2, 64, device=device, dtype=dtype)
    table = torch.tensor([pages], device=device, dtype=torch.int32)
    expected = _attended(queries[-1], keys, values, table[0], length)
    positions = torch.tensor([length - 1], device=device, dtype=torch.int32)
    got = attend(queries[-1:], keys, values, table, positions, splits=2).view(2, 64)
    assert relative_error(got, expected) < tolerance(dtype)
    blocks = torch.tensor([[length - 1, 1, length - 1, 0]], device=device, dtype=torch.int32)
    got = attend_chunks(queries, keys, values, table, blocks)[-1].view(2, 64)
    assert relative_error(got, expected) < tolerance(dtype)


def test_gate_and_up_are_multiplied(device: torch.device, dtype: torch.dtype) -> None:
    both = torch.randn(3, 2 * 1500, device=device, dtype=dtype)
    gate, up = both.float().chunk(2, -1)
    assert relative_error(gate_up(both), F.silu(gate) * up) < tolerance(dtype)


def test_every_size_has_a_tiling_that_covers_it() -> None:
    for out in (64, 576, 4096, 6144, 28672, 128256):
        for tokens in (1, 16, 17, 64):
            tiling = tiling_for(out, tokens)
            assert tiling.splits >= 1
            assert (tiling.columns + 64) * tiling.inner * 2 * tiling.stages < 227 * 1024


def _attended(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, pages: torch.Tensor, length: int
) -> torch.Tensor:
    """One sequence's attention [heads, head_dim], its pages gathered and its heads repeated."""
    group = len(query) // keys.shape[2]
    k, v = (
        cached[pages.long()].flatten(0, 1)[:length].transpose(0, 1).float().repeat_interleave(group, 0)
        for cached in (keys, values)
    )
    return F.scaled_dot_product_attention(query.float()[:, None], k, v)[:, 0]
