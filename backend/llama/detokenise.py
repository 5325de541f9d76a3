"""Text of one answer as it grows, with stop strings taken out."""

from collections.abc import Sequence

from common.tokenizer import Tokenizer


class Detokeniser:
    """Fed token by token; gives out text that is certain: whole characters, and no beginning of a stop string."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], stop: Sequence[str]) -> None:
        self._stream = tokenizer.stream(prompt_ids)
        self._stop = stop
        self._held = ""
        self.stopped = False
        """Whether a stop string has come; the text before it is out, the rest never will be."""

    def step(self, token_id: int) -> str:
        """The text that became certain with this token."""
        return self._release(self._stream.step(token_id) or "", final=False)

    def finish(self) -> str:
        """What is left when no more tokens come."""
        return self._release(self._stream.finish(), final=True)

    def _release(self, text: str, *, final: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        places = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)]
        keep = 0 if final or not self._stop else _beginning(text, self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _beginning(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of `text` that might be the beginning of a stop string."""
    longest = max(map(len, stops), default=1) - 1
    return next(
        (count for count in range(min(longest, len(text)), 0, -1) if any(s.startswith(text[-count:]) for s in stops)),
        0,
    )
