"""The last rung of the language model: the same weights in float32 on the host's CPU, with a small pool of pages.

It is slow and complete. Its memory is an account of its own: weights, pages and a step's working memory within
``llama.host_rung``, taken when it is first needed.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

from backend.llama.pages import PagePool
from backend.llama.runner import Runner
from common.sections import Llama as LlamaSettings
from estimator.llama import pages_for, pages_in

STEP_TOKENS = 128
MAX_BATCH = 2
MAX_WAITING = 8
"""Requests it has in hand at the most."""

Part = TypeVar("Part")


def is_allowed(runner: Runner, llama: LlamaSettings) -> bool:
    """Whether the model fits ``llama.host_rung`` beside its longest context, and does not run on the host already."""
    return runner.device.type != "cpu" and _pages(runner, llama) > 0


def settings_of(runner: Runner, llama: LlamaSettings) -> LlamaSettings:
    """Those of an engine on the host in place of one around `runner`."""
    changes = {"max_batch": MAX_BATCH, "step_tokens": STEP_TOKENS, "max_waiting": MAX_WAITING, "oversubscribe": 1.0}
    return llama.model_copy(update=changes | {"dtype": "float32", "pages": _pages(runner, llama)})


def open_runner(runner: Runner, llama: LlamaSettings) -> Runner:
    """The model of `runner` on the host, not yet warm; what lies there in float32 already is shared."""
    with torch.inference_mode():
        model = on_host(runner.model, {})
        pages, page_tokens = _pages(runner, llama), runner.pool.page_tokens
        pool = PagePool(model.shape, pages, page_tokens, torch.float32, torch.device("cpu"))
    return Runner(model, pool, STEP_TOKENS, MAX_BATCH)


def on_host(part: Part, copied: dict[int, torch.Tensor]) -> Part:
    """A part of a model with its tensors in float32 on the host; `copied` has those that several parts share, by id."""
    changed: Any = part
    if isinstance(part, torch.Tensor):
        if id(part) not in copied:
            copied[id(part)] = part.cpu().float()
        changed = copied[id(part)]
    elif isinstance(part, tuple):
        changed = tuple(on_host(each, copied) for each in part)
    elif is_dataclass(part) and not isinstance(part, type):
        changed = replace(part, **{field.name: on_host(getattr(part, field.name), copied) for field in fields(part)})
    return changed  # type: ignore[no-any-return]


def _pages(runner: Runner, llama: LlamaSettings) -> int:
    """As many as a full batch of the longest requests needs, or as fit; 0 when not even one such request does."""
    shape, page_tokens = runner.model.shape, runner.pool.page_tokens
    longest = min(pages_for(shape.context_tokens, page_tokens), runner.pool.pages)
    fit = pages_in(int(llama.host_rung), shape, "float32", page_tokens, STEP_TOKENS, MAX_BATCH)
    return min(fit, MAX_BATCH * longest) if fit >= longest else 0
