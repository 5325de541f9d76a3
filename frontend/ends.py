"""When the leases of one account are expected to give their bytes back."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

End = tuple[float, str, int]
"""When a lease is expected to end, its id, and the bytes that it frees."""

CHUNK = 64
"""Ends in one chunk at the most; a question walks over chunks, then within one: about 2 x sqrt(n) steps at 1,000."""


@dataclass
class _Chunk:
    """Neighbours in time, and what they free together."""

    ends: list[End] = field(default_factory=list)
    freed_bytes: int = 0

    def split(self) -> "_Chunk":
        """Keeps the earlier half and returns the later one."""
        later = self.ends[CHUNK // 2 :]
        del self.ends[CHUNK // 2 :]
        later_bytes = sum(end[2] for end in later)
        self.freed_bytes -= later_bytes
        return _Chunk(later, later_bytes)


class Ends:
    """Expected ends in order of time; adding, removing and asking cost microseconds with thousands of leases."""

    def __init__(self) -> None:
        self._chunks = [_Chunk()]

    def __iter__(self) -> Iterator[End]:
        return (end for chunk in self._chunks for end in chunk.ends)

    def add(self, end: End) -> None:
        """A lease that is expected to end then."""
        index = self._find(end)
        chunk = self._chunks[index]
        insort(chunk.ends, end)
        chunk.freed_bytes += end[2]
        if len(chunk.ends) > CHUNK:
            self._chunks.insert(index + 1, chunk.split())

    def remove(self, end: End) -> None:
        """It has ended, or is expected at another time."""
        index = self._find(end)
        chunk = self._chunks[index]
        del chunk.ends[bisect_left(chunk.ends, end)]
        chunk.freed_bytes -= end[2]
        if not chunk.ends and len(self._chunks) > 1:
            del self._chunks[index]

    def first(self) -> End | None:
        """The soonest."""
        ends = self._chunks[0].ends
        return ends[0] if ends else None

    def freeing(self, size_bytes: int) -> float | None:
        """When so many bytes are expected to have come back; None where all leases together hold less."""
        left_bytes = size_bytes
        for chunk in self._chunks:
            if chunk.freed_bytes < left_bytes:
                left_bytes -= chunk.freed_bytes
                continue
            for end_s, _, freed_bytes in chunk.ends:
                left_bytes -= freed_bytes
                if left_bytes <= 0:
                    return end_s
        return None

    def freed_by(self, at_s: float) -> int:
        """How many bytes are expected to have come back until then, that moment included."""
        freed_bytes = 0
        for chunk in self._chunks:
            if chunk.ends and chunk.ends[-1][0] <= at_s:
                freed_bytes += chunk.freed_bytes
                continue
            return freed_bytes + sum(end[2] for end in chunk.ends if end[0] <= at_s)
        return freed_bytes

    def _find(self, end: End) -> int:
        """Index of the chunk whose range holds this end."""
        return max(0, bisect_right(self._chunks, end, key=_first) - 1)


def _first(chunk: _Chunk) -> End:
    return chunk.ends[0] if chunk.ends else (float("-inf"), "", 0)
