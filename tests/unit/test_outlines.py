"""Outlines are the mask: filled again they give it back, component by component, and no ring touches itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from common.errors import InvalidRequest
from frontend import masks, outlines
from frontend.outlines import Outline, trace

Members = NDArray[np.bool_]

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)
MEMBERS = hnp.arrays(np.bool_, SHAPES)


def filled(rings: list[outlines.Points], shape: tuple[int, ...]) -> Members:
    """The pixels whose middle lies inside by the even-odd rule; rings of vertical and horizontal edges."""
    crossed = np.zeros((shape[0], shape[1] + 1), np.bool_)
    for ring in rings:
        for (x, y), (following_x, following_y) in zip(ring.tolist(), np.roll(ring, -1, axis=0).tolist(), strict=True):
            assert (x == following_x) != (y == following_y)
            if x == following_x:
                crossed[min(y, following_y) : max(y, following_y), x] ^= True
    inside: Members = np.logical_xor.accumulate(crossed, axis=1)[:, :-1]
    return inside


def components(members: Members) -> list[Members]:
    """By flooding from pixel to pixel across their edges."""
    found = []
    left = members.copy()
    while left.any():
        component = np.zeros_like(members)
        component[tuple(np.argwhere(left)[0])] = True
        while True:
            padded = np.pad(component, 1)
            near = padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:] | component
            if ((near & members) == component).all():
                break
            component = near & members
        found.append(component)
        left &= ~component
    return found


def area(ring: outlines.Points) -> float:
    x, y = ring.T
    return float(np.roll(x, 1) @ y - x @ np.roll(y, 1)) / 2


def rings_of(outline: Outline, owner: int) -> list[outlines.Points]:
    return [ring for ring, its_owner in zip(outline.rings, outline.owner.tolist(), strict=True) if its_owner == owner]


@given(MEMBERS)
def test_filled_again_they_are_the_mask(members: Members) -> None:
    outline = trace(members)
    np.testing.assert_array_equal(filled(outline.rings, members.shape), members)
    assert sum(area(ring) for ring in outline.rings) == members.sum()


@given(MEMBERS)
def test_each_outer_ring_with_its_holes_is_one_component(members: Members) -> None:
    outline = trace(members)
    expected = components(members)
    assert outline.components == len(expected)
    owners = np.unique(outline.owner).tolist()
    ours = {filled(rings_of(outline, owner), members.shape).tobytes() for owner in owners}
    assert ours == {component.tobytes() for component in expected}
    for index, (ring, owner) in enumerate(zip(outline.rings, outline.owner.tolist(), strict=True)):
        assert (area(ring) > 0) == (index == owner)


@given(MEMBERS)
def test_no_ring_touches_itself_and_no_corner_is_in_vain(members: Members) -> None:
    for ring in trace(members).rings:
        assert len({tuple(corner) for corner in ring.tolist()}) == len(ring)
        steps = np.diff(ring, axis=0, append=ring[:1])
        assert ((steps != 0).sum(axis=1) == 1).all()
        assert ((steps * np.roll(steps, 1, axis=0)).sum(axis=1) == 0).all(), "every corner turns"


@given(MEMBERS, st.floats(0.1, 5))
def test_what_simplifying_leaves_out_lies_within_the_tolerance(members: Members, tolerance: float) -> None:
    exact = trace(members)
    rough = exact.simplified(tolerance)
    np.testing.assert_array_equal(rough.owner, exact.owner)
    for ring, kept in zip(exact.rings, rough.rings, strict=True):
        assert 3 <= len(kept) <= len(ring)
        ends = np.roll(kept, -1, axis=0)
        for corner in ring:
            assert min(distance(corner, *edge) for edge in zip(kept, ends, strict=True)) <= tolerance + 1e-9


def distance(point: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> float:
    along = end - start
    share = np.clip((point - start) @ along / max(1, along @ along), 0, 1)
    return float(np.linalg.norm(point - start - share * along))


@given(MEMBERS)
def test_a_tolerance_of_zero_changes_nothing(members: Members) -> None:
    outline = trace(members)
    assert outline.simplified(0) is outline


def test_a_hole_in_an_island_in_a_hole() -> None:
    members = np.zeros((9, 9), np.bool_)
    for edge in range(4):
        members[edge : 9 - edge, edge : 9 - edge] = edge % 2 == 0
    polygons = trace(members).geometry()["coordinates"]
    assert [[len(ring) for ring in polygon] for polygon in polygons] == [[5, 5], [5, 5]]
    assert all(ring[0] == ring[-1] for polygon in polygons for ring in polygon)


def test_a_picture_higher_than_a_band_of_rows_is_one_outline() -> None:
    members = np.zeros((200, 5), np.bool_)
    members[1:199, 1:4] = True
    members[63:130, 2] = False
    (outer, hole) = trace(members).rings
    assert sorted(map(tuple, outer.tolist())) == [(1, 1), (1, 199), (4, 1), (4, 199)]
    assert sorted(map(tuple, hole.tolist())) == [(2, 63), (2, 130), (3, 63), (3, 130)]


def test_shapes_that_would_fill_the_memory_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    board = np.indices((40, 40)).sum(axis=0) % 2 == 0
    monkeypatch.setattr(outlines, "FREE_CORNERS", 1000)
    with pytest.raises(InvalidRequest, match="format=png"):
        trace(board)
    monkeypatch.setattr(outlines, "FREE_CORNERS", 2**20)
    monkeypatch.setattr(outlines, "MAX_CORNERS", 1000)
    with pytest.raises(InvalidRequest, match="raise tolerance"):
        trace(board).geometry()
    monkeypatch.setattr(masks, "MAX_RUNS", 1000)
    with pytest.raises(InvalidRequest, match="format=png"):
        masks.to_rle(board)
