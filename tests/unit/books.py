"""Time and prices for the ledger's tests."""

from estimator.price import Line, Price


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def price(**lines: int) -> Price:
    return Price(tuple(Line(name.replace("_", "."), size, "because") for name, size in lines.items()))
