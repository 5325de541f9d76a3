"""A step whose tokens are chosen on the device and not known here yet, so that the next one can be launched meanwhile.

Until they are known, a number below zero stands in the place of each: it names its row among the tokens of that step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from backend.llama.sampling import Chosen
from backend.llama.scheduler import Slice


@dataclass(frozen=True)
class Flight:
    """Slices on their way through the model, and the tokens of those that sample, in order."""

    step: Sequence[Slice]
    chosen: Chosen


def stand_in(row: int) -> int:
    """What stands for the token of a row until it is known."""
    return -1 - row


def resolve(token_ids: torch.Tensor, flight: Flight | None) -> torch.Tensor:
    """`token_ids` (int64), with the flight's tokens where others stand for them.

    A row that is no numbers chose none; whatever comes of it is thrown away, and any token serves.
    """
    if flight is None or not len(flight.chosen.token_ids):
        return token_ids
    rows = (-1 - token_ids).clamp_(min=0)
    return torch.where(token_ids < 0, flight.chosen.token_ids[rows].clamp(min=0), token_ids)
