import pytest
import torch

from backend.llama.attention import PagedAttention, Span
from backend.llama.pages import PagePool
from estimator.llama import LlamaShape

SHAPE = LlamaShape(1, 64, 6, 2, 16, 64, 100, 256)
PAGE = 8
SPANS = (
    Span((0, 1), 11, 1),
    Span((2,), 0, 5),
    Span((3,), 0, 8),
    Span((4, 5), 0, 13),
    Span((6, 7), 9, 3),
)


def attended(spans: tuple[Span, ...], *, joint: bool) -> torch.Tensor:
    torch.manual_seed(0)
    pool = PagePool(SHAPE, 10, PAGE, torch.float32, torch.device("cpu"))
    for cached in pool.layer(0):
        cached.normal_()
    tokens = sum(span.count for span in spans)
    queries, keys, values = (torch.randn(tokens, heads, SHAPE.head_dim) for heads in (6, 2, 2))
    return PagedAttention(pool, spans, gather_pages=4, joint=joint)(0, queries, keys, values)


@pytest.mark.parametrize("spans", [SPANS, SPANS[1:4], SPANS[3:4], SPANS[:1], SPANS[4:]])
def test_beginnings_attend_together_as_they_do_alone(spans: tuple[Span, ...]) -> None:
    torch.testing.assert_close(attended(spans, joint=True), attended(spans, joint=False))
