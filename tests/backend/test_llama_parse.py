"""What clients may send straight to the model server, and how it is refused."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backend.llama.request import Chunk, Generation, Sampling, TokenLogprob, join, parse
from common.errors import InvalidRequest, NeverFits
from common.sections import Llama
from common.tokenizer import Tokenizer
from common.wire import LLAMA_PAGES, Lease, LlamaLimits
from tests.backend.llama_kit import save_tokenizer

LIMITS = LlamaLimits(
    context_tokens=64, vocab_tokens=300, page_tokens=16, page_bytes=1000, pages=8, tokenizer_dir="/nowhere"
)
SETTINGS = Llama(default_max_tokens=20, max_n=4, max_logprobs=5)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Tokenizer.load(folder)


def int32(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def int64(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def fp32(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def strings(*values: str | bytes | int) -> NDArray[np.object_]:
    return np.array([v.encode() if isinstance(v, str) else v for v in values], dtype=np.object_)


def lease(paid_bytes: int = 10**6, max_tokens: int | None = None) -> Lease:
    return Lease("a", {LLAMA_PAGES: paid_bytes}, 10.0, max_tokens)


def test_everything_a_client_says_arrives(tokenizer: Tokenizer) -> None:
    inputs: dict[str, NDArray[Any]] = {
        "input_ids": int32(1, 2, 299),
        "max_tokens": int32(9),
        "n": int32(2),
        "temperature": fp32(0.5),
        "top_p": fp32(0.25),
        "top_k": int32(7),
        "repetition_penalty": fp32(1.5),
        "logprobs": int32(0),
        "seed": int64(-(2**63)),
        "stop": strings("é", "end"),
        "stream": np.array([True]),
    }
    assert parse(inputs, lease(), LIMITS, SETTINGS, tokenizer) == Generation(
        prompt_ids=(1, 2, 299),
        max_tokens=9,
        n=2,
        sampling=Sampling(0.5, 0.25, 7, 1.5, -(2**63), 0),
        stop=("é", "end"),
        lease=lease(),
    )


def test_what_is_left_out_has_its_default(tokenizer: Tokenizer) -> None:
    request = parse({"text_input": strings("héllo")}, None, LIMITS, SETTINGS, tokenizer)
    assert request == Generation(tuple(tokenizer.encode("héllo")), 20, sampling=Sampling())
    near_the_end = parse({"input_ids": int32(*[1] * 60)}, None, LIMITS, SETTINGS, tokenizer)
    assert near_the_end.max_tokens == 4


def test_no_stop_strings_and_an_empty_list_of_them_are_the_same(tokenizer: Tokenizer) -> None:
    assert parse({"input_ids": int32(1), "stop": strings()}, None, LIMITS, SETTINGS, tokenizer).stop == ()


REFUSED: list[tuple[str, dict[str, NDArray[Any]]]] = [
    ("text_input", {}),
    ("text_input", {"text_input": strings("")}),
    ("text_input", {"text_input": strings("a"), "input_ids": int32(1)}),
    ("text_input", {"text_input": strings("a", "b")}),
    ("text_input", {"text_input": strings(b"\xff\xfe")}),
    ("text_input", {"text_input": strings(3)}),
    ("text_input", {"text_input": int32(3)}),
    ("text_input", {"text_input": strings("x" * 64)}),
    ("text_input", {"text_input": strings("x" * 10_000_000)}),
    ("input_ids", {"input_ids": int32()}),
    ("input_ids", {"input_ids": int32(300)}),
    ("input_ids", {"input_ids": int32(5, -1)}),
    ("input_ids", {"input_ids": int32(*[1] * 64)}),
    ("input_ids", {"input_ids": int64(1)}),
    ("input_ids", {"input_ids": int32(1).reshape(1, 1)}),
    ("input_ids", {"input_ids": fp32(1.0)}),
    ("max_tokens", {"max_tokens": int32(0)}),
    ("max_tokens", {"max_tokens": int32(-1)}),
    ("max_tokens", {"max_tokens": int32(2**31 - 1)}),
    ("max_tokens", {"max_tokens": int64(2**31)}),
    ("max_tokens", {"max_tokens": int64(10**18)}),
    ("max_tokens", {"max_tokens": int32(64)}),
    ("max_tokens", {"max_tokens": fp32(float("nan"))}),
    ("max_tokens", {"max_tokens": strings("10")}),
    ("max_tokens", {"max_tokens": np.array([True])}),
    ("max_tokens", {"max_tokens": int32()}),
    ("max_tokens", {"max_tokens": int32(1, 2)}),
    ("max_tokens", {"max_tokens": np.array(5, dtype=np.int32)}),
    ("n", {"n": int32(0)}),
    ("n", {"n": int32(5)}),
    ("temperature", {"temperature": fp32(float("nan"))}),
    ("temperature", {"temperature": fp32(float("inf"))}),
    ("temperature", {"temperature": fp32(-0.1)}),
    ("temperature", {"temperature": np.array([1.0])}),
    ("top_p", {"top_p": fp32(0.0)}),
    ("top_p", {"top_p": fp32(1.1)}),
    ("top_p", {"top_p": fp32(float("nan"))}),
    ("top_k", {"top_k": int32(-1)}),
    ("repetition_penalty", {"repetition_penalty": fp32(0.0)}),
    ("repetition_penalty", {"repetition_penalty": fp32(float("-inf"))}),
    ("logprobs", {"logprobs": int32(6)}),
    ("logprobs", {"logprobs": int32(-1)}),
    ("seed", {"seed": int32(1)}),
    ("stop", {"stop": strings("")}),
    ("stop", {"stop": strings("x" * 65)}),
    ("stop", {"stop": strings(*"abcde")}),
    ("stop", {"stop": strings(b"\xff")}),
    ("stop", {"stop": int32(1)}),
    ("stream", {"stream": int32(1)}),
]


@pytest.mark.parametrize(("param", "inputs"), REFUSED)
def test_a_bad_input_is_refused_by_its_name(tokenizer: Tokenizer, param: str, inputs: dict[str, NDArray[Any]]) -> None:
    about_prompt = param in ("text_input", "input_ids")
    with pytest.raises(InvalidRequest) as caught:
        parse(inputs if about_prompt else {"input_ids": int32(1)} | inputs, None, LIMITS, SETTINGS, tokenizer)
    assert caught.value.param == param
    assert param in caught.value.message


def test_a_prompt_is_not_told_back_in_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse({"text_input": strings("secret" * 20)}, None, LIMITS, SETTINGS, tokenizer)
    assert "secret" not in caught.value.to_text()


def test_too_many_output_tokens_are_refused_with_both_numbers(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match=r"50 output tokens after 20 prompt tokens .* 64; at most 44 fit"):
        parse({"input_ids": int32(*[1] * 20), "max_tokens": int32(50)}, None, LIMITS, SETTINGS, tokenizer)


def test_what_exceeds_the_whole_pool_never_fits(tokenizer: Tokenizer) -> None:
    inputs = {"input_ids": int32(*[1] * 20), "max_tokens": int32(20), "n": int32(3)}
    with pytest.raises(NeverFits) as caught:
        parse(inputs, None, LIMITS, SETTINGS, tokenizer)
    assert caught.value.numbers == {"price_bytes": 9000, "capacity_bytes": 8000}
    assert parse(inputs, None, LIMITS, SETTINGS.model_copy(update={"oversubscribe": 1.2}), tokenizer).n == 3


def test_no_oversubscription_lets_one_sequence_exceed_the_pool(tokenizer: Tokenizer) -> None:
    limits = LlamaLimits(64, 300, 16, 1000, 2, "/nowhere")
    inputs = {"input_ids": int32(*[1] * 20), "max_tokens": int32(20)}
    with pytest.raises(NeverFits):
        parse(inputs, None, limits, SETTINGS.model_copy(update={"oversubscribe": 4.0}), tokenizer)


@pytest.mark.parametrize(("asked", "paid", "granted"), [(30, 10, 10), (5, 10, 5), (None, 10, 10), (7, None, 7)])
def test_what_a_lease_paid_for_is_what_may_be_used(
    tokenizer: Tokenizer, asked: int | None, paid: int | None, granted: int
) -> None:
    inputs = {"input_ids": int32(1)} | ({} if asked is None else {"max_tokens": int32(asked)})
    assert parse(inputs, lease(max_tokens=paid), LIMITS, SETTINGS, tokenizer).max_tokens == granted


@pytest.mark.parametrize("bad", [lease(1999), Lease("a", {}, 10.0), lease(max_tokens=0)])
def test_a_lease_that_paid_too_little_buys_nothing(tokenizer: Tokenizer, bad: Lease) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse({"input_ids": int32(1), "max_tokens": int32(16)}, bad, LIMITS, SETTINGS, tokenizer)
    assert caught.value.param == "lease"


def test_chunks_of_a_sequence_join_into_one() -> None:
    first = Chunk(1, "a", (5,), (TokenLogprob(5, "a", -1.0, ()),))
    last = Chunk(1, "b", (6, 7), None, "stop")
    assert join(first, last) == Chunk(1, "ab", (5, 6, 7), first.logprobs, "stop")
    assert join(Chunk(0, "", (1,)), Chunk(0, "", (2,))) == Chunk(0, "", (1, 2))
