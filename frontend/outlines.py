"""Outlines of a class's pixels: the polygons of its connected components with their holes, exact, then simplified.

An outline runs along the edges of pixels: pixel (row, column) is the square from (column, row) to (column + 1,
row + 1), x to the right and y down. Pixels are connected by their edges, not by their corners. So every component is
one ring, the holes in it are others, no ring touches itself, and the signed areas of all rings add up to the number of
pixels. All of it blocks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import InvalidRequest

FREE_CORNERS = 2**20
"""Corners of outlines that are always followed."""
PIXELS_PER_CORNER = 16
"""A larger image is followed up to one corner in so many pixels: what following takes is then paid for by its price."""
MAX_CORNERS = 2**20
"""Most corners in an answer."""
_BAND_ROWS = 64

Members = NDArray[np.bool_]
"""[H, W]: which pixels belong to the class."""
Ints = NDArray[np.int64]
Points = Ints
"""[n, 2], x and y."""


@dataclass(frozen=True)
class Outline:
    """The rings of one class; a ring is not closed, its last corner is joined to its first."""

    rings: list[Points]
    """Outer rings have the class on their right on a picture with y down, so their area by the shoelace is positive."""
    owner: Ints
    """For every ring the index of the outer ring that it belongs to; an outer ring's is its own."""

    @property
    def components(self) -> int:
        """Connected components."""
        return int((self.owner == np.arange(len(self.rings))).sum())

    @property
    def corners(self) -> int:
        """Corners of all rings."""
        return sum(len(ring) for ring in self.rings)

    def simplified(self, tolerance: float) -> "Outline":
        """With fewer corners: none that is left out lies further than `tolerance` pixels from the edge without it.

        Rings are simplified one by one and keep at least three corners each; neighbours may come to cross. A tolerance
        of 0 changes nothing.
        """
        return Outline(_simplify(self.rings, tolerance), self.owner) if tolerance > 0 and self.rings else self

    def geometry(self) -> dict[str, Any]:
        """A GeoJSON ``MultiPolygon`` in pixels: of every component its outer ring, then its holes, all closed.

        Raises InvalidRequest for more than MAX_CORNERS.
        """
        if self.corners > MAX_CORNERS:
            raise InvalidRequest(
                f"the polygons have {self.corners} corners, at most {MAX_CORNERS} are told: raise tolerance, or ask for"
                " format=json",
                param="tolerance",
            )
        polygons: dict[int, list[Any]] = {}
        for index in np.argsort(self.owner != np.arange(len(self.rings)), kind="stable").tolist():
            ring = self.rings[index]
            polygons.setdefault(int(self.owner[index]), []).append([*ring.tolist(), ring[0].tolist()])
        return {"type": "MultiPolygon", "coordinates": list(polygons.values())}


def trace(members: Members) -> Outline:
    """The exact outline of the pixels; raises InvalidRequest where it has too many corners to be followed."""
    if not members.any():
        return Outline([], np.empty(0, np.int64))
    corners, crossings = _corners(members)
    walk = _Walk(corners, _upward_first(members, corners, crossings), members)
    pinched = crossings[walk.ring_of[crossings] == walk.ring_of[crossings + 1]]
    if len(pinched):
        walk = _Walk(corners, _swapped(walk.vertical, pinched), members)
    return Outline(walk.rings(), walk.owners(members))


def _corners(members: Members) -> tuple[Ints, Ints]:
    """Where outlines turn, (x, y) by y and then x, and the indices of the first of two corners at one point.

    Two pixels that touch only by their corners make two corners there.
    """
    found: list[Ints] = []
    limit = max(FREE_CORNERS, members.size // PIXELS_PER_CORNER)
    total = 0
    for top in range(0, len(members) + 1, _BAND_ROWS):
        near = _padded(members, top - 1, min(top + _BAND_ROWS, len(members) + 1))
        above, below = near[:-1], near[1:]
        left, right = above[:, :-1] ^ below[:, :-1], above[:, 1:] ^ below[:, 1:]
        up = above[:, :-1] ^ above[:, 1:]
        crossing = left & right & up & (above[:, :-1] == below[:, 1:])
        points = np.argwhere((left ^ right) | crossing)
        points = np.repeat(points, 1 + crossing[points[:, 0], points[:, 1]], axis=0)
        found.append(points[:, ::-1] + (0, top))
        total += len(points)
        if total > limit:
            raise InvalidRequest(
                f"the outlines of the mask have more than the {limit} corners that are followed: ask for format=png",
                param="format",
            )
    corners = np.concatenate(found)
    return corners, np.flatnonzero((corners[1:] == corners[:-1]).all(axis=1))


def _padded(members: Members, top: int, bottom: int) -> Members:
    """Rows `top` to `bottom`, with a column of background on both sides and such rows where there are none."""
    inside = members[max(top, 0) : bottom]
    missing = (max(-top, 0), bottom - max(top, 0) - len(inside))
    return np.pad(inside, (missing, (1, 1)))


def _upward_first(members: Members, corners: Ints, crossings: Ints) -> Ints:
    """Corners by x and then y. Of two at one point that comes first which belongs to the pixel above them.

    The first of the two, by index, is the end of the edge to the left. It belongs with the edge that goes up where the
    pixel to the upper left is a member.
    """
    order = np.lexsort((corners[:, 1], corners[:, 0]))
    x, y = corners[crossings].T
    return _swapped(order, crossings[~members[y - 1, x - 1]])


def _swapped(order: Ints, firsts: Ints) -> Ints:
    """`order` with the two corners at one point exchanged, for each of the `firsts`."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    result = order.copy()
    result[place[firsts]], result[place[firsts + 1]] = firsts + 1, firsts
    return result


class _Walk:
    """Follows the horizontal edges, each between corners 2k and 2k + 1, from one to the next along the outline."""

    def __init__(self, corners: Ints, vertical: Ints, members: Members) -> None:
        """`vertical` orders the corners so that its entries 2k and 2k + 1 are the ends of a vertical edge."""
        self.corners = corners
        self.vertical = vertical
        left = np.arange(0, len(corners), 2)
        x, y = corners[left].T
        eastward = (y < len(members)) & members[np.minimum(y, len(members) - 1), x]
        start, end = left + ~eastward, left + eastward
        across = np.empty(len(corners), np.int64)
        across[vertical[0::2]], across[vertical[1::2]] = vertical[1::2], vertical[0::2]
        self._edges, self._offsets = _cycles((across[end] // 2).tolist())
        ring_of_edge = np.empty(len(left), np.int64)
        ring_of_edge[self._edges] = np.repeat(
            np.arange(len(self._offsets)), np.diff(self._offsets, append=len(self._edges))
        )
        self.ring_of = np.repeat(ring_of_edge, 2)
        """[corners]: the ring that each is part of."""
        self._path = np.stack([start[self._edges], end[self._edges]], axis=1).ravel()

    def rings(self) -> list[Points]:
        """The corners of each ring in order."""
        return list(np.split(self.corners[self._path], 2 * self._offsets[1:]))

    def owners(self, members: Members) -> Ints:
        """See :class:`Outline`. What lies left of a hole's top leads to a ring of the same component, further up."""
        x, y = self.corners[self._path].T
        following = np.arange(len(self._path)) + 1
        following[2 * np.append(self._offsets[1:], len(self._edges)) - 1] = 2 * self._offsets
        area = np.add.reduceat(x * y[following] - x[following] * y, 2 * self._offsets)
        holes = np.flatnonzero(area < 0)
        tops = np.minimum.reduceat(self._path, 2 * self._offsets)[holes]
        owner = np.arange(len(self._offsets))
        owner[holes] = self.ring_of[self._left_of(members, self.corners[tops])]
        while (owner[owner] != owner).any():
            owner = owner[owner]
        return owner

    def _left_of(self, members: Members, tops: Ints) -> Ints:
        """Of the run of members that lies above each point, the left edge: its upper corner."""
        starts = [x - int(np.argmin(np.append(members[y - 1, x::-1], False))) + 1 for x, y in tops.tolist()]
        upper = self.vertical[0::2]
        height = len(members) + 1
        keys = self.corners[upper, 0] * height + self.corners[upper, 1]
        wanted = np.array(starts, np.int64) * height + tops[:, 1] - 1
        result: Ints = upper[np.searchsorted(keys, wanted, side="right") - 1]
        return result


def _cycles(following: list[int]) -> tuple[Ints, Ints]:
    """The cycles of a permutation, one after the other, and where each begins."""
    order: list[int] = []
    offsets: list[int] = []
    seen = bytearray(len(following))
    for start in range(len(following)):
        if seen[start]:
            continue
        offsets.append(len(order))
        item = start
        while not seen[item]:
            seen[item] = 1
            order.append(item)
            item = following[item]
    return np.array(order, np.int64), np.array(offsets, np.int64)


def _simplify(rings: list[Points], tolerance: float) -> list[Points]:
    """Douglas and Peucker's rule for all rings at once: of each edge the corner furthest from it comes back.

    Each ring starts from its first corner, the one furthest from that, and those furthest from the line between them.
    """
    ends = np.cumsum([len(ring) + 1 for ring in rings])
    starts = np.append(0, ends[:-1])
    corners = np.concatenate([part for ring in rings for part in (ring, ring[:1])])
    kept = np.zeros(len(corners), np.bool_)
    kept[starts] = kept[ends - 1] = True
    for _ in range(2):
        kept[_furthest(corners, kept, 0)] = True
    while len(found := _furthest(corners, kept, tolerance)):
        kept[found] = True
    kept[ends - 1] = False
    return [part[of_it] for part, of_it in zip(np.split(corners, starts[1:]), np.split(kept, starts[1:]), strict=True)]


def _furthest(corners: Points, kept: NDArray[np.bool_], tolerance: float) -> Ints:
    """Of every edge between kept corners the one corner furthest from it, where that is further than `tolerance`."""
    anchors = np.flatnonzero(kept)
    edge = np.cumsum(kept) - 1
    first, last = corners[anchors], corners[np.append(anchors[1:], anchors[-1])]
    distance = _distance(corners, first[edge], last[edge])
    distance[kept] = -1
    highest = np.maximum.reduceat(distance, anchors)[edge]
    found = np.flatnonzero((distance == highest) & (distance > tolerance))
    return found[np.unique(edge[found], return_index=True)[1]]


def _distance(points: Points, first: Points, last: Points) -> NDArray[np.float64]:
    """From each point to the line from `first` to `last`, no further than its ends."""
    along, away = last - first, points - first
    length = np.maximum((along**2).sum(axis=1), 1)
    share = np.clip((away * along).sum(axis=1) / length, 0, 1)
    offset = away - along * share[:, None]
    result: NDArray[np.float64] = np.hypot(offset[:, 0], offset[:, 1])
    return result
