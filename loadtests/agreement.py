"""The engine's logits beside those of transformers, over the same weights: prompts as chunks, then one decode each."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from backend.llama.load import fast_path
from backend.llama.pages import PagePool
from backend.llama.runner import Runner
from backend.llama.scheduler import Sequence as Tokens
from backend.llama.scheduler import Slice
from backend.llama.weights import build
from estimator.llama import pages_for

PROMPTS = 16
LONGEST = 600
PAGE_TOKENS = 256


class StateDict:
    """The weights of a transformers model; see :class:`backend.llama.weights.Source`."""

    def __init__(self, model: Any) -> None:
        self._tensors = model.state_dict()

    def fill(self, name: str, out: torch.Tensor) -> None:
        """Copies the tensor `name` into `out`."""
        out.copy_(self._tensors[name])


@torch.inference_mode()
def figures(model: Any) -> dict[str, float]:
    """How far our logits and those of `model` are from its own in float32: norm of the difference over the norm.

    And the share of rows whose likeliest token is the same in ours and in the model's. Leaves `model` in float32.
    """
    sequences = _sequences(model)
    ours = _ours(model, sequences)
    theirs = _theirs(model, sequences)
    exact = _theirs(model.float(), sequences)
    return {
        "logits_relative_error": _relative_error(ours, exact),
        "transformers_relative_error": _relative_error(theirs, exact),
        "argmax_agreement": float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()),
    }


def _relative_error(logits: torch.Tensor, exact: torch.Tensor) -> float:
    return float((logits - exact).norm() / exact.norm())


def _sequences(model: Any) -> list[Tokens]:
    """Prompts of random lengths, each with one token more that is decoded, in pages of their own."""
    choices, vocab = random.Random(3), model.config.vocab_size
    width = pages_for(LONGEST + 1, PAGE_TOKENS)
    return [
        Tokens(
            choices.choices(range(vocab), k=choices.randint(1, LONGEST) + 1),
            max_tokens=1,
            pages=list(range(number * width, (number + 1) * width)),
        )
        for number in range(PROMPTS)
    ]


def _ours(model: Any, sequences: Sequence[Tokens]) -> torch.Tensor:
    """Float32 [2 x sequences, vocab]: after each prompt, computed together as chunks, and after each decode."""
    runner = _runner(model, sum(len(sequence.pages) for sequence in sequences))
    prompts = [Slice(sequence, 0, len(sequence.tokens) - 1, samples=True) for sequence in sequences]
    decodes = [Slice(sequence, len(sequence.tokens) - 1, 1, samples=True) for sequence in sequences]
    return torch.cat([runner.forward(step).float() for step in (prompts, decodes)])


def _theirs(model: Any, sequences: Sequence[Tokens]) -> torch.Tensor:
    """The same rows."""
    ids = [torch.tensor([sequence.tokens], device=model.device) for sequence in sequences]
    rows = [model(one, logits_to_keep=2).logits[0].float() for one in ids]
    return torch.cat([torch.stack([row[place] for row in rows]) for place in (0, 1)])


def _runner(model: Any, pages: int) -> Runner:
    config = model.config.to_dict()
    ours = build(config, StateDict(model), model.dtype, model.device)
    ours = replace(ours, shape=replace(ours.shape, context_tokens=2 * LONGEST))
    pool = PagePool(ours.shape, pages, PAGE_TOKENS, model.dtype, model.device)
    fast = fast_path(ours, pool, PROMPTS)
    if fast is not None:
        fast.capture()
    return Runner(ours, pool, step_tokens=PROMPTS * LONGEST, max_batch=PROMPTS, fast=fast)
