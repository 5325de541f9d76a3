"""Points in the work that a device was given, to find out how far it is."""

from typing import Protocol

import torch


class Mark(Protocol):
    """A point in a device's queue."""

    def synchronize(self) -> None:
        """Returns when the device has got there."""


def mark(device: torch.device) -> Mark | None:
    """Behind all that `device` was given so far; None on the host, where all of it is done."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
