"""The captured decode step against the reference path, on a card."""

import random

import pytest
import torch

from backend.llama.flight import Flight, stand_in
from backend.llama.model import Llama
from backend.llama.pages import PagePool
from backend.llama.request import Sampling
from backend.llama.runner import Runner
from backend.llama.sampling import Draw, choose
from backend.llama.scheduler import Sequence, Slice
from backend.llama.weights import RandomWeights, build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
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
PAGE = 64
LENGTHS = (2, 63, 64, 65, 200, 640, 7)


def runners(dtype: torch.dtype, max_batch: int = 8) -> tuple[Runner, Runner]:
    """One with graphs, one without, over the same weights and the same random past."""
    from backend.llama.fast_path import CudaPath

    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    with torch.inference_mode():
        model: Llama = build(CONFIG, RandomWeights(device), dtype, device)
        pools = [PagePool(model.shape, 128, PAGE, dtype, device) for _ in range(2)]
        for index in range(model.shape.layers):
            for mine, yours in zip(pools[0].layer(index), pools[1].layer(index), strict=True):
                yours.copy_(mine.normal_())
    graphs = CudaPath(model, pools[0], max_batch, max_pages=16)
    fast, plain = (
        Runner(model, pool, step_tokens=128, max_batch=max_batch, fast=fast)
        for pool, fast in zip(pools, (graphs, None), strict=True)
    )
    fast.warm_up()
    plain.warm_up()
    return fast, plain


def decodes(lengths: tuple[int, ...]) -> list[Slice]:
    step, page = [], 0
    for number, length in enumerate(lengths):
        count = -(-length // PAGE)
        pages = list(range(page, page + count))
        page += count
        tokens = [(number * 37 + place) % 1000 for place in range(length)]
        step.append(Slice.next_of(Sequence(tokens, max_tokens=1, pages=pages, computed=length - 1), 1))
    return step


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_a_captured_step_gives_the_logits_of_the_reference(count: int, dtype: torch.dtype) -> None:
    fast, plain = runners(dtype)
    step = decodes(LENGTHS[:count])
    got, expected = fast.forward(step).float(), plain.forward(step).float()
    assert float((got - expected).norm() / expected.norm()) < 2e-2
    assert bool((got.argmax(-1) == expected.argmax(-1)).all())


def test_chunks_and_decodes_in_one_step_keep_their_rows() -> None:
    fast, plain = runners(torch.bfloat16)
    chunk = Slice.next_of(Sequence(list(range(50)), max_tokens=1, pages=[100]), 50)
    step = [chunk, *decodes(LENGTHS[:3])]
    got, expected = fast.forward(step).float(), plain.forward(step).float()
    assert float((got - expected).norm() / expected.norm()) < 2e-2


def test_a_row_that_changes_hands_or_grows_reads_its_own_pages() -> None:
    fast, plain = runners(torch.bfloat16)
    step = decodes(LENGTHS[:4])
    fast.forward(step), plain.forward(step)
    left = step[2:]
    left[0].sequence.tokens.append(5)
    left[0].sequence.computed += 1
    left[0].sequence.pages.append(99)
    later = [Slice.next_of(left[0].sequence, 1), left[1], *decodes((30, 300))]
    got, expected = fast.forward(later).float(), plain.forward(later).float()
    assert float((got - expected).norm() / expected.norm()) < 2e-2


@pytest.mark.parametrize("with_chunk", [False, True])
def test_a_step_takes_the_tokens_of_the_one_in_front_before_they_are_known(with_chunk: bool) -> None:
    fast, _ = runners(torch.bfloat16)
    step = decodes(LENGTHS[:3])
    greedy = [Draw(Sampling(temperature=0.0), (), random.Random(0)) for _ in step]
    flight = Flight(step, choose(fast.forward(step), greedy))
    for row, slice_ in enumerate(step):
        slice_.sequence.computed += 1
        slice_.sequence.tokens.append(stand_in(row))
        slice_.sequence.pages.append(90 + row)
    chunks = [Slice.next_of(Sequence(list(range(50)), max_tokens=1, pages=[100]), 50)] if with_chunk else []
    later = [*[Slice.next_of(slice_.sequence, 1) for slice_ in step], *chunks]
    blind = fast.forward(later, flight).clone()
    for slice_, choice in zip(step, flight.chosen.read(), strict=True):
        assert choice is not None
        slice_.sequence.tokens[-1] = choice.token_id
    assert torch.equal(blind, fast.forward(later))


def test_pages_that_do_not_tile_are_left_to_the_reference() -> None:
    from backend.llama.fused import can_fuse

    fast, _ = runners(torch.bfloat16)
    assert can_fuse(fast.model, 96)
    assert not can_fuse(fast.model, 100)


def test_a_full_batch_that_is_no_power_of_two_is_captured() -> None:
    fast, plain = runners(torch.bfloat16, max_batch=12)
    step = decodes((*LENGTHS, 1, 2, 3, 4, 5))
    got, expected = fast.forward(step).float(), plain.forward(step).float()
    assert float((got - expected).norm() / expected.norm()) < 2e-2
