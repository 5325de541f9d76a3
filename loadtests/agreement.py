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
    """Norm of the difference over the norm, and the share of rows whose likeliest token is the same."""
    pairs = list(_logits(model))
    ours, theirs = (torch.stack(rows).float() for rows in zip(*pairs, strict=True))
    return {
        "logits_relative_error": float((ours - theirs).norm() / theirs.norm()),
        "argmax_agreement": float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()),
    }


def _logits(model: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(ours, theirs) [vocab] after each prompt, and after one token more."""
    choices = random.Random(3)
    sequences = []
    for number in range(PROMPTS):
        ids = choices.choices(range(model.config.vocab_size), k=choices.randint(1, LONGEST))
        width = pages_for(LONGEST + 1, PAGE_TOKENS)
        sequences.append(Tokens(ids, max_tokens=1, pages=list(range(number * width, (number + 1) * width))))
    runner = _runner(model, len(sequences) * pages_for(LONGEST + 1, PAGE_TOKENS))
    pairs = _compared(runner, model, sequences)
    for sequence in sequences:
        sequence.computed = len(sequence.tokens)
        sequence.tokens.append(choices.randrange(model.config.vocab_size))
    return pairs + _compared(runner, model, sequences)


def _compared(runner: Runner, model: Any, sequences: Sequence[Tokens]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    ours = runner.forward([Slice.next_of(sequence, LONGEST) for sequence in sequences])
    ids = [torch.tensor([sequence.tokens], device=model.device) for sequence in sequences]
    theirs = [model(one, logits_to_keep=1).logits[0, -1] for one in ids]
    return list(zip(ours.clone(), theirs, strict=True))


def _runner(model: Any, pages: int) -> Runner:
    config = model.config.to_dict()
    ours = build(config, StateDict(model), model.dtype, model.device)
    ours = replace(ours, shape=replace(ours.shape, context_tokens=2 * LONGEST))
    pool = PagePool(ours.shape, pages, PAGE_TOKENS, model.dtype, model.device)
    fast = fast_path(ours, pool, PROMPTS)
    if fast is not None:
        fast.capture()
    return Runner(ours, pool, step_tokens=PROMPTS * LONGEST, max_batch=PROMPTS, fast=fast)
