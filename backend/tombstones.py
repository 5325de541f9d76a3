"""Ids of work that was cancelled before it came, in case it is still on its way."""

from collections import OrderedDict

from common.errors import Cancelled

MOST = 4096
"""Ids that are remembered; the oldest go first."""


class Tombstones:
    """A bounded set of work ids. Its owner holds a lock around every call."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, work_id: str) -> None:
        """Remembers the id, and forgets the oldest where there are too many."""
        self._ids[work_id] = None
        while len(self._ids) > MOST:
            self._ids.popitem(last=False)

    def refuse(self, work_id: str) -> None:
        """Raises Cancelled for work with a remembered id."""
        if work_id in self._ids:
            raise Cancelled("this lease was cancelled before its request came")
