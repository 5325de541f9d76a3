"""The choice of the next token from a row of logits.

Every sequence draws from its own generator and every row is decided on its own, so a seed gives the same tokens
whatever the neighbours: exactly on the CPU in float32, as far as the kernels' rounding goes on CUDA.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from backend.device import Fetch, upload
from backend.llama.request import Sampling
from estimator.llama import SAMPLED_ROWS

GREEDY_BELOW = 1e-4
"""Temperatures below this are greedy: dividing by them would only overflow."""
SHORTLIST = 512
"""Likeliest tokens that a cut looks at first; the whole vocabulary is sorted only where these do not suffice."""
_NO_NUMBERS = -1


@dataclass(eq=False)
class Draw:
    """What decides one row."""

    sampling: Sampling
    tokens: Sequence[int]
    """Prompt and output so far, for the repetition penalty."""
    generator: random.Random
    _drawn: tuple[int, float] = (-1, 0.0)
    """The newest point, and how many tokens there were."""

    def point(self) -> float:
        """Chance, 0 to 1, for the token that follows: the same one again where its step is done again."""
        if self._drawn[0] != len(self.tokens):
            self._drawn = len(self.tokens), self.generator.random()
        return self._drawn[1]

    @cached_property
    def is_greedy(self) -> bool:
        """Whether chance plays no part."""
        return self.sampling.temperature < GREEDY_BELOW

    @cached_property
    def is_plain(self) -> bool:
        """Whether the likeliest token is the answer as it stands."""
        return self.is_greedy and self.sampling.repetition_penalty == 1.0


@dataclass(frozen=True)
class Choice:
    """The token of one row; logprobs only where they are asked for."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest alternatives: id, logprob."""


def generator_of(sampling: Sampling, index: int) -> random.Random:
    """The source of chance of the sequence `index` of a request: its own, and the same for the same seed."""
    return random.Random(f"{sampling.seed}:{index}" if sampling.seed is not None else None)


class Chosen:
    """The tokens of a step: on the device at once, here as soon as they are read."""

    def __init__(self, token_ids: torch.Tensor, logprobs: Mapping[int, Fetch]) -> None:
        """`logprobs`: of the rows that asked; the choice's own, then ids and logprobs of the likeliest."""
        self.token_ids = token_ids
        """int64 [rows]; negative where a row is not made of numbers."""
        self._fetch = Fetch(token_ids)
        self._logprobs = logprobs

    def read(self) -> list[Choice | None]:
        """One choice per row; None where the row is not made of numbers. Waits for the device."""
        return [
            None if token_id == _NO_NUMBERS else self._choice(row, token_id)
            for row, token_id in enumerate(self._fetch.read())
        ]

    def _choice(self, row: int, token_id: int) -> Choice:
        if row not in self._logprobs:
            return Choice(token_id)
        own, *top = self._logprobs[row].read()
        ids, logprobs = top[: len(top) // 2], top[len(top) // 2 :]
        return Choice(token_id, own, tuple(zip(map(int, ids), logprobs, strict=True)))


def choose(logits: torch.Tensor, draws: Sequence[Draw]) -> Chosen:
    """One token per row of `logits` [rows, vocab].

    A request with a seed repeats itself as long as its tokens are chosen in order, each however often.
    """
    logits = logits.float()
    peaks, token_ids = logits.max(dim=-1)
    is_number = peaks.isfinite()
    worked = [row for row, draw in enumerate(draws) if not draw.is_plain]
    for start in range(0, len(worked), SAMPLED_ROWS):
        rows = worked[start : start + SAMPLED_ROWS]
        places = upload(rows, torch.int64, logits.device)
        # What is no number would lead beyond the vocabulary.
        sound = torch.where(is_number[places, None], logits[places], 0.0)
        token_ids[places] = _draw(sound, [draws[row] for row in rows])
    logprobs = {
        row: Fetch(_logprobs(logits[row], token_ids[row], draw.sampling.logprobs))
        for row, draw in enumerate(draws)
        if draw.sampling.logprobs is not None
    }
    return Chosen(torch.where(is_number, token_ids, _NO_NUMBERS), logprobs)


def _draw(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Penalty, temperature, cuts, chance: token ids [rows]; `logits` [rows, vocab] is overwritten."""
    for row, draw in zip(logits, draws, strict=True):
        _penalise(row, draw)
    token_ids = logits.argmax(dim=-1)
    chance = [row for row, draw in enumerate(draws) if not draw.is_greedy]
    whole = [row for row in chance if not _cuts(draws[row].sampling, logits.shape[1])]
    cut = [row for row in chance if row not in whole]
    temperatures = _column([1.0 if draw.is_greedy else draw.sampling.temperature for draw in draws], logits)
    probabilities = logits.div_(temperatures).softmax(dim=-1)
    points = _column([draw.point() for draw in draws], logits)
    if whole:
        places = upload(whole, torch.int64, logits.device)
        token_ids[places] = _land(probabilities[places], points[places]).squeeze(1)
    if cut:
        places = upload(cut, torch.int64, logits.device)
        samplings = [draws[row].sampling for row in cut]
        token_ids[places] = _draw_cut(probabilities[places], points[places], samplings)
    return token_ids


def _penalise(row: torch.Tensor, draw: Draw) -> None:
    """Divides positive and multiplies negative logits of every token seen, as in CTRL (Keskar et al. 2019)."""
    penalty = draw.sampling.repetition_penalty
    if penalty == 1.0:
        return
    seen = upload(sorted(set(draw.tokens)), torch.int64, row.device)
    scores = row[seen]
    row[seen] = torch.where(scores < 0, scores * penalty, scores / penalty)


def _cuts(sampling: Sampling, vocab: int) -> bool:
    return sampling.top_p < 1.0 or 0 < sampling.top_k < vocab


def _draw_cut(
    probabilities: torch.Tensor, points: torch.Tensor, samplings: Sequence[Sampling], shortlist: int = SHORTLIST
) -> torch.Tensor:
    """Draws among the `top_k` likeliest, and of these the fewest that hold `top_p` of their mass."""
    vocab = probabilities.shape[1]
    shortlist = min(shortlist, vocab)
    values, ids = probabilities.topk(shortlist, dim=-1)
    limits = [min(sampling.top_k or vocab, vocab) for sampling in samplings]
    values.masked_fill_(torch.arange(shortlist, device=values.device) >= _column(limits, values), 0.0)
    running = values.cumsum(dim=-1)
    limited = [limit <= shortlist for limit in limits]
    mass = torch.where(_column(limited, values).bool(), running[:, -1:], 1.0)
    wanted = mass * _column([sampling.top_p for sampling in samplings], values)
    enough = running[:, -1] >= wanted[:, 0]
    values[:, 1:].masked_fill_((running - values)[:, 1:] >= wanted, 0.0)
    token_ids = ids.gather(1, _land(values, points)).squeeze(1)
    wide = [row for row, limit in enumerate(limits) if limit > shortlist]
    if not wide:
        return token_ids
    reached = enough.tolist()
    short = [row for row in wide if limits[row] < vocab or not reached[row]]
    if short:
        places = upload(short, torch.int64, values.device)
        drawn = _draw_cut(probabilities[places], points[places], [samplings[row] for row in short], vocab)
        token_ids[places] = drawn
    return token_ids


def _land(weights: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Where points [rows, 1] in 0..1 fall on the weights [rows, n] laid end to end: [rows, 1], never on a zero."""
    running = weights.cumsum(dim=-1)
    total = running[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(running, torch.minimum(points * total, below), right=True)


def _logprobs(row: torch.Tensor, token_id: torch.Tensor, count: int) -> torch.Tensor:
    """The token's logprob, then ids and logprobs of the `count` likeliest: float32, which holds any id exactly."""
    logprobs = row - row.logsumexp(dim=-1)
    values, ids = logprobs.topk(min(count, len(row)))
    return torch.cat((logprobs[token_id][None], ids.float(), values))


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return upload(values, torch.float32, like.device)[:, None]
