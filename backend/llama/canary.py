"""The language model's canary: a few greedy tokens after a fixed prompt, in the page that is never lent."""

from backend.llama.request import Sampling
from backend.llama.runner import Runner
from backend.llama.sampling import Draw, choose, generator_of
from backend.llama.scheduler import Sequence, Slice

TOKENS = 8
"""Prompt and answer, half of each; fewer where a page has not so many."""


class Canary:
    """See :class:`backend.worker.Canary`: one prefill, then decodes, as any request goes but without its books."""

    def __init__(self, runner: Runner) -> None:
        """Learns the answer."""
        self._runner = runner
        self._tokens = min(TOKENS, runner.pool.page_tokens)
        self._known = self._ask()

    def check(self) -> str:
        """See :class:`backend.worker.Canary`."""
        told = self._ask()
        if None in told:
            return "the model's output is not made of numbers"
        return "" if told == self._known else f"the model answers {told} where it answered {self._known}"

    def _ask(self) -> list[int | None]:
        runner, sampling = self._runner, Sampling(temperature=0.0)
        runner.clear([runner.pool.trash])
        vocab = runner.model.shape.vocab
        prompt = [(7919 * (place + 1)) % vocab for place in range(max(1, self._tokens // 2))]
        sequence = Sequence(prompt, max_tokens=self._tokens, pages=[runner.pool.trash])
        told: list[int | None] = []
        while len(sequence.tokens) < self._tokens and None not in told:
            slice_ = Slice.next_of(sequence, sequence.pending)
            draw = Draw(sampling, sequence.tokens, generator_of(sampling, 0))
            (choice,) = choose(runner.forward([slice_]), [draw]).read()
            sequence.computed = slice_.end
            told.append(choice.token_id if choice else None)
            sequence.tokens += [choice.token_id] if choice else []
        return told
