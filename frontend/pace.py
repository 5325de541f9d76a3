"""How fast an engine has worked lately, so that the end of a lease can be expected."""

WEIGHT = 0.2
"""Of the newest observation."""


class Pace:
    """A running average of seconds per unit of work (a token, a pixel)."""

    def __init__(self, guess_per_s: float) -> None:
        """`guess_per_s`: units a second, believed until the first observation."""
        self._unit_s = 1.0 / guess_per_s
        self._guessed = True

    def expected_s(self, units: float) -> float:
        """Seconds that so much work is expected to take."""
        return units * self._unit_s

    def observe(self, units: float, seconds: float) -> None:
        """Learns from finished work; work of no units or no time says nothing."""
        if units <= 0 or seconds <= 0:
            return
        seen_s = seconds / units
        self._unit_s = seen_s if self._guessed else (1 - WEIGHT) * self._unit_s + WEIGHT * seen_s
        self._guessed = False
