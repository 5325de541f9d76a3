"""Prompts of a wished length, out of MT-bench's questions."""

import json
from functools import cache
from itertools import cycle, islice
from pathlib import Path

FILE = Path(__file__).with_name("mt_bench_questions.jsonl")


def prompt(words: int, seed: int) -> str:
    """A text of so many words: a question, and more of them where one is too short. The same for the same seed."""
    starts = _starts()
    first = starts[seed % len(starts)]
    return " ".join(islice(cycle(_words()), first, first + max(1, words)))


@cache
def _questions() -> tuple[str, ...]:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return tuple(" ".join(json.loads(line)["turns"]) for line in lines)


@cache
def _words() -> tuple[str, ...]:
    return tuple(word for question in _questions() for word in question.split())


@cache
def _starts() -> tuple[int, ...]:
    """Where each question begins among the words."""
    starts = [0]
    for question in _questions():
        starts.append(starts[-1] + len(question.split()))
    return tuple(starts[:-1])
