"""Whether prices still hold: every finished piece of work says how much it used of what it was quoted.

A price that is exceeded is no accident but a constant that has changed (another version, another path): one excess is
believed at once and the bound widened by it; with every piece of work that stays within, the widening fades, halved in
`HALF_LIFE` of them. It never only rises, and never lets a price fall below what the law says.
"""

from dataclasses import dataclass, replace

HALF_LIFE = 64
"""Pieces of work within their price after which half of a widening is gone."""
WARN_RATIO = 1.01
"""Used over quoted from which on an operator is told."""
MOST = 2.0
"""The widest a bound gets; what needs more than that is no drift but a wrong law."""
_GONE = 1e-4


@dataclass(frozen=True)
class Drift:
    """The state of one law's check; every observation gives the next state."""

    widened: float = 1.0
    """What bounds are multiplied with; 1 while prices hold."""
    excesses: int = 0
    """Pieces of work that used more than they were quoted."""
    worst: float = 0.0
    """The largest ratio of used to quoted so far."""

    def observe(self, used_bytes: int, quoted_bytes: int) -> "Drift":
        """The state after a piece of work; one that was quoted nothing says nothing."""
        if quoted_bytes <= 0:
            return self
        ratio = used_bytes / quoted_bytes
        faded = 1 + (self.widened - 1) * 0.5 ** (1 / HALF_LIFE)
        widened = min(MOST, max(faded, ratio))
        return replace(
            self,
            widened=1.0 if widened - 1 < _GONE else widened,
            excesses=self.excesses + (ratio > 1),
            worst=max(self.worst, ratio),
        )

    def warns(self, before: "Drift") -> bool:
        """Whether the step from `before` to here is worth a line in the log: a new excess, beyond rounding."""
        return self.excesses > before.excesses and self.widened > before.widened and self.widened >= WARN_RATIO
