"""The choice of the next token from a row of logits.

Every sequence draws from its own generator and every row is decided on its own, so a seed gives the same tokens
whatever the neighbours: exactly on the CPU in float32, as far as the kernels' rounding goes on CUDA.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from backend.llama.request import Sampling
from estimator.llama import SAMPLED_ROWS

GREEDY_BELOW = 1e-4
"""Temperatures below this are greedy: dividing by them would only overflow."""
SHORTLIST = 512
"""Likeliest tokens that a cut looks at first; the whole vocabulary is sorted only where these do not suffice."""
_NO_NUMBERS = -1


@dataclass(frozen=True)
class Draw:
    """What decides one row."""

    sampling: Sampling
    tokens: Sequence[int]
    """Prompt and output so far, for the repetition penalty."""
    generator: random.Random

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


def choose(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Choice | None]:
    """One choice per row of `logits` [rows, vocab]; None where the row is not made of numbers.

    A request with a seed repeats itself as long as its draws are asked for in order.
    """
    logits = logits.float()
    peaks, likeliest = logits.max(dim=-1)
    # In one answer, so that the device is waited for once.
    token_ids: list[int] = torch.where(peaks.isfinite(), likeliest, _NO_NUMBERS).tolist()
    worked = [row for row, draw in enumerate(draws) if not draw.is_plain and token_ids[row] != _NO_NUMBERS]
    for start in range(0, len(worked), SAMPLED_ROWS):
        rows = worked[start : start + SAMPLED_ROWS]
        for row, token_id in zip(rows, _draw(logits[rows], [draws[row] for row in rows]), strict=True):
            token_ids[row] = token_id
    return [
        None
        if token_id == _NO_NUMBERS
        else Choice(token_id)
        if draw.sampling.logprobs is None
        else _with_logprobs(logits[row], token_id, draw.sampling.logprobs)
        for row, (draw, token_id) in enumerate(zip(draws, token_ids, strict=True))
    ]


def _draw(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Penalty, temperature, cuts, chance; `logits` [rows, vocab] is overwritten."""
    for row, draw in zip(logits, draws, strict=True):
        _penalise(row, draw)
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    chance = [row for row, draw in enumerate(draws) if not draw.is_greedy]
    whole = [row for row in chance if not _cuts(draws[row].sampling, logits.shape[1])]
    cut = [row for row in chance if row not in whole]
    temperatures = _column([1.0 if draw.is_greedy else draw.sampling.temperature for draw in draws], logits)
    probabilities = logits.div_(temperatures).softmax(dim=-1)
    points = _column([draw.generator.random() for draw in draws], logits)
    if whole:
        places = _land(probabilities[whole], points[whole])
        for row, place in zip(whole, places.tolist(), strict=True):
            token_ids[row] = place[0]
    if cut:
        samplings = [draws[row].sampling for row in cut]
        for row, token_id in zip(cut, _draw_cut(probabilities[cut], points[cut], samplings), strict=True):
            token_ids[row] = token_id
    return token_ids


def _penalise(row: torch.Tensor, draw: Draw) -> None:
    """Divides positive and multiplies negative logits of every token seen, as in CTRL (Keskar et al. 2019)."""
    penalty = draw.sampling.repetition_penalty
    if penalty == 1.0:
        return
    seen = torch.tensor(sorted(set(draw.tokens)), device=row.device)
    scores = row[seen]
    row[seen] = torch.where(scores < 0, scores * penalty, scores / penalty)


def _cuts(sampling: Sampling, vocab: int) -> bool:
    return sampling.top_p < 1.0 or 0 < sampling.top_k < vocab


def _draw_cut(
    probabilities: torch.Tensor, points: torch.Tensor, samplings: Sequence[Sampling], shortlist: int = SHORTLIST
) -> list[int]:
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
    reached = (running[:, -1] >= wanted[:, 0]).tolist()
    values[:, 1:].masked_fill_((running - values)[:, 1:] >= wanted, 0.0)
    token_ids: list[int] = ids.gather(1, _land(values, points)).squeeze(1).tolist()
    short = [row for row, limit in enumerate(limits) if limit > shortlist and (limit < vocab or not reached[row])]
    if short:
        drawn = _draw_cut(probabilities[short], points[short], [samplings[row] for row in short], vocab)
        for row, token_id in zip(short, drawn, strict=True):
            token_ids[row] = token_id
    return token_ids


def _land(weights: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Where points [rows, 1] in 0..1 fall on the weights [rows, n] laid end to end: [rows, 1], never on a zero."""
    running = weights.cumsum(dim=-1)
    total = running[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(running, torch.minimum(points * total, below), right=True)


def _with_logprobs(row: torch.Tensor, token_id: int, count: int) -> Choice:
    logprobs = row - row.logsumexp(dim=-1)
    values, ids = logprobs.topk(min(count, len(row)))
    return Choice(token_id, float(logprobs[token_id]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)[:, None]
