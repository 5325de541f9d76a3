"""How fast an engine has worked lately, so that the end of a lease can be expected."""

MEMORY = 200.0
"""Finished requests after which an old one counts for a third."""


class Pace:
    """Seconds for a unit of work (a token, a pixel): of what was charged, and of what was done."""

    def __init__(self, guess_per_s: float) -> None:
        """`guess_per_s`: units a second, believed until the first observation."""
        self._charged = self._done = guess_per_s
        self._seconds = 1.0
        self._guessed = True

    @property
    def guessed(self) -> bool:
        """Whether nothing has been observed yet."""
        return self._guessed

    def expected_s(self, charged: float) -> float:
        """Seconds that a request charged for so many units is expected to take; most do less than they may."""
        return charged * self._seconds / self._charged

    def longest_s(self, charged: float) -> float:
        """Seconds that it takes if it does all it was charged for."""
        return charged * self._seconds / self._done

    def observe(self, charged: float, done: float, seconds: float) -> None:
        """Learns from work that has ended; work of no units or no time says nothing."""
        if min(charged, done, seconds) <= 0:
            return
        keep = 0.0 if self._guessed else 1 - 1 / MEMORY
        self._charged = keep * self._charged + charged
        self._done = keep * self._done + done
        self._seconds = keep * self._seconds + seconds
        self._guessed = False
