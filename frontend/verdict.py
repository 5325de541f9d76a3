"""What becomes of a request at the gate."""

from dataclasses import dataclass
from enum import StrEnum

from common.errors import RequestError
from frontend.account import Demand


class Verdict(StrEnum):
    """What becomes of a request."""

    NEVER = "never"
    """Its price is above the whole capacity (413)."""
    NOT_NOW = "not_now"
    """It fits, but not soon enough (429)."""
    WAIT = "wait"
    """It fits soon: it joins the line."""
    ADMIT = "admit"
    """It fits now."""


@dataclass(frozen=True)
class Decision:
    """A verdict with the numbers that decided."""

    verdict: Verdict
    demand: Demand
    """Of the account that decided, or the one that the price weighs heaviest on."""
    retry_after_s: float | None = None
    """Seconds until the price is expected to fit, at a guess if need be; None where it fits now or never."""
    forecast_s: float | None = None
    """The same before any correction; None where nobody can tell."""
    advice: str = ""
    """Why it is not admitted, in words."""

    @property
    def account(self) -> str:
        """The account that decided; empty for a price of nothing."""
        return self.demand.account

    def refusal(self) -> RequestError:
        """The error for a request that is not admitted."""
        return self.demand.refusal(self.advice, self.retry_after_s)
