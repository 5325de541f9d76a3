"""The choice of a token: greedy, chance and its cuts, penalty, logprobs, and rows that are no numbers."""

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from backend.llama.request import Sampling
from backend.llama.sampling import Choice, Draw, choose, generator_of

VOCAB = 1200
"""Larger than the shortlist, so that both ways are taken."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def logits_of(rows: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def draw(sampling: Sampling, index: int = 0, tokens: Sequence[int] = (1,)) -> Draw:
    return Draw(sampling, tokens, generator_of(sampling, index))


def token_of(logits: torch.Tensor, sampling: Sampling, index: int = 0, tokens: Sequence[int] = (1,)) -> int:
    (choice,) = choose(logits, [draw(sampling, index, tokens)]).read()
    assert choice is not None
    return choice.token_id


@pytest.mark.parametrize("temperature", [0.0, 1e-5])
def test_greedy_takes_the_likeliest(temperature: float) -> None:
    logits = logits_of(5)
    choices = choose(logits, [draw(Sampling(temperature)) for _ in range(5)]).read()
    assert [choice and choice.token_id for choice in choices] == logits.argmax(-1).tolist()


def test_a_seed_gives_the_same_tokens_alone_and_among_neighbours() -> None:
    logits = logits_of(40)
    samplings = [
        Sampling(0.7 + number / 20, (0.3, 0.9, 0.999, 1.0)[number % 4], (0, 5, 700)[number % 3], seed=number)
        for number in range(40)
    ]
    together = choose(logits, [draw(sampling) for sampling in samplings]).read()
    alone = [token_of(logits[row : row + 1], sampling) for row, sampling in enumerate(samplings)]
    assert [choice and choice.token_id for choice in together] == alone


def test_sequences_of_one_request_and_requests_without_a_seed_differ() -> None:
    flat = torch.zeros(1, VOCAB)
    assert len({token_of(flat, Sampling(seed=3), index) for index in range(20)}) > 10
    assert len({token_of(flat, Sampling()) for _ in range(20)}) > 10
    assert token_of(flat, Sampling(seed=1)) != token_of(flat, Sampling(seed=-1))


@given(
    st.floats(0.1, 1.0, exclude_max=True),
    st.one_of(st.just(0), st.integers(1, VOCAB)),
    st.floats(0.2, 3.0),
    st.integers(0, 10**6),
)
def test_the_cuts_keep_what_transformers_keeps(top_p: float, top_k: int, temperature: float, seed: int) -> None:
    logits = logits_of(1, seed % 7)
    kept = logits / temperature
    if top_k:
        kept = TopKLogitsWarper(top_k)(torch.zeros(1, 1, dtype=torch.long), kept)
    kept = TopPLogitsWarper(top_p)(torch.zeros(1, 1, dtype=torch.long), kept)
    token_id = token_of(logits.clone(), Sampling(temperature, top_p, top_k, seed=seed))
    # A token at the border may fall on either side of it by rounding.
    border = logits[0][kept[0].isfinite()].min()
    assert kept[0, token_id].isfinite() or torch.isclose(logits[0, token_id], border, rtol=1e-2)


def test_the_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    logits = probabilities.log()
    generator = random.Random(0)
    for sampling, expected in (
        (Sampling(), (0.5, 0.3, 0.15, 0.05)),
        (Sampling(top_k=2), (0.625, 0.375, 0.0, 0.0)),
        (Sampling(top_p=0.81), (0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0)),
        (Sampling(0.5), tuple(p * p / 0.365 for p in (0.5, 0.3, 0.15, 0.05))),
    ):
        draws = [Draw(sampling, (), generator) for _ in range(2000)]
        counts = Counter(choice.token_id for choice in choose(logits.repeat(2000, 1), draws).read() if choice)
        for token_id, probability in enumerate(expected):
            assert counts[token_id] / 2000 == pytest.approx(probability, abs=0.04)
            assert probability > 0 or counts[token_id] == 0


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(top_k=1000), Sampling(top_p=0.95, top_k=1000)])
def test_a_wide_cut_reaches_beyond_the_shortlist(sampling: Sampling) -> None:
    falling = torch.linspace(0.1, 0.0, VOCAB).repeat(300, 1)
    choices = choose(falling, [Draw(sampling, (), random.Random(row)) for row in range(300)]).read()
    token_ids = [choice.token_id for choice in choices if choice]
    assert 512 < max(token_ids) < 1120
    assert sum(token_id > 512 for token_id in token_ids) > 100


class Fixed(random.Random):
    """Chance that is none."""

    def __init__(self, point: float) -> None:
        super().__init__()
        self._point = point

    def random(self) -> float:
        return self._point


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=3)])
@pytest.mark.parametrize(("point", "token_id"), [(0.0, 1), (0.5, 3), (1 - 2**-53, 3)])
def test_no_point_falls_on_an_impossible_token(sampling: Sampling, point: float, token_id: int) -> None:
    logits = torch.tensor([[-math.inf, 1.0, -math.inf, 1.0, -math.inf]])
    (choice,) = choose(logits, [Draw(sampling, (), Fixed(point))]).read()
    assert choice == Choice(token_id)


def test_the_smallest_top_p_still_leaves_the_likeliest() -> None:
    logits = logits_of(1)
    for seed in range(10):
        assert token_of(logits, Sampling(5.0, top_p=1e-45, seed=seed)) == int(logits.argmax())


@pytest.mark.parametrize("penalty", [0.5, 1.3])
def test_repetition_is_penalised_as_transformers_does_it(penalty: float) -> None:
    logits = logits_of(1)
    seen = logits[0].topk(5).indices.tolist() + logits[0].topk(5, largest=False).indices.tolist()
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([seen]), logits.clone()).argmax()
    sampling = Sampling(0.0, repetition_penalty=penalty)
    assert token_of(logits, sampling, tokens=[*seen, seen[0]]) == int(expected)


def test_a_penalty_touches_no_neighbour() -> None:
    logits = logits_of(1).repeat(2, 1)
    best = int(logits[0].argmax())
    penalised = draw(Sampling(0.0, repetition_penalty=100.0), tokens=[best])
    choices = choose(logits, [penalised, draw(Sampling(0.0), tokens=[best])]).read()
    assert [choice and choice.token_id == best for choice in choices] == [False, True]


def test_logprobs_are_of_the_models_own_distribution() -> None:
    logits = logits_of(2)
    expected = logits[0].log_softmax(-1)
    asked = draw(Sampling(1.7, top_k=3, repetition_penalty=1.2, seed=4, logprobs=3))
    choice, silent = choose(logits.clone(), [asked, draw(Sampling())]).read()
    assert choice is not None
    assert choice.logprob == pytest.approx(float(expected[choice.token_id]), abs=1e-5)
    assert [token_id for token_id, _ in choice.top] == expected.topk(3).indices.tolist()
    assert [logprob for _, logprob in choice.top] == pytest.approx(expected.topk(3).values.tolist(), abs=1e-5)
    assert silent is not None
    assert (silent.logprob, silent.top) == (None, ())


def test_logprobs_of_zero_alternatives_are_the_tokens_own() -> None:
    (choice,) = choose(logits_of(1), [draw(Sampling(0.0, logprobs=0))]).read()
    assert choice is not None
    assert choice.logprob is not None
    assert choice.top == ()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_no_number_has_no_token_and_harms_no_neighbour(poison: float, temperature: float) -> None:
    logits = logits_of(3)
    logits[1] = poison
    choices = choose(logits, [draw(Sampling(temperature, seed=1)) for _ in range(3)]).read()
    assert choices[1] is None
    assert choices[0] == Choice(token_of(logits[:1], Sampling(temperature, seed=1)))
    assert choices[2] is not None


@pytest.mark.parametrize("sampling", [Sampling(1e-3), Sampling(1e4, 0.5), Sampling(1.0, repetition_penalty=0.01)])
def test_extreme_but_legal_settings_choose_a_token(sampling: Sampling) -> None:
    assert 0 <= token_of(logits_of(1, scale=30.0), sampling, tokens=range(VOCAB)) < VOCAB


def test_no_rows_are_no_choices() -> None:
    assert choose(torch.empty(0, VOCAB), []).read() == []
