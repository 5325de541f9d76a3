from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.report import Memory, Reason
from frontend.diagnosis import Kind, probable_cause
from tests.unit.report_kit import MIB, made, moment


def oom(memory: Memory, asked: int, limit: int, free: int, **changes: Any) -> Any:
    refusal = {"asked_bytes": asked * MIB, "limit_bytes": limit * MIB, "device_free_bytes": free * MIB}
    return probable_cause(made(reason=Reason.OOM, memory=memory, **refusal, **changes))


def trip(first: tuple[int, int, int], last: tuple[int, int, int], **changes: Any) -> Any:
    """`first` and `last` are headroom, used and own, in MiB."""
    looks = tuple(moment(at_s, *(size * MIB for size in sizes)) for at_s, sizes in ((0.0, first), (59.0, last)))
    return probable_cause(made(reason=Reason.BREAKER, looks=looks, headroom_bytes=last[0] * MIB, **changes))


def test_with_headroom_enough_nothing_is_short() -> None:
    cause = probable_cause(made())
    assert cause.kind is Kind.NONE
    assert "600.0 MiB" in cause.says


def test_free_bytes_in_small_pieces_are_fragmentation() -> None:
    memory = Memory(reserved_bytes=900 * MIB, cached_bytes=300 * MIB, largest_free_block_bytes=10 * MIB)
    cause = oom(memory, asked=50, limit=1000, free=0)
    assert cause.kind is Kind.FRAGMENTATION
    for number in ("50.0 MiB", "300.0 MiB", "10.0 MiB"):
        assert number in cause.says


def test_a_process_at_its_wall_with_a_half_empty_account_is_a_wrong_price() -> None:
    cause = oom(Memory(reserved_bytes=980 * MIB), asked=50, limit=1000, free=5000)
    assert cause.kind is Kind.PRICE
    for number in ("980.0 MiB", "1,000.0 MiB", "50.0 MiB", "20.0 MiB of 200.0 MiB"):
        assert number in cause.says


def test_an_empty_card_under_a_process_within_its_wall_is_foreign_use() -> None:
    cause = oom(Memory(reserved_bytes=300 * MIB), asked=50, limit=1000, free=10)
    assert cause.kind is Kind.FOREIGN
    assert "others hold 100.0 MiB" in cause.says


def test_a_neighbour_that_grew_is_foreign_use() -> None:
    cause = trip((600, 400, 300), (20, 980, 310))
    assert cause.kind is Kind.FOREIGN
    assert "grew by 570.0 MiB to 670.0 MiB" in cause.says


@pytest.mark.parametrize(("used", "kind"), [(20, Kind.PRICE), (195, Kind.BURST)])
def test_an_engine_that_grew_is_a_burst_only_where_its_account_is_full(used: int, kind: Kind) -> None:
    cause = trip((600, 400, 300), (20, 980, 880), used_bytes=used * MIB)
    assert cause.kind is kind
    assert "grew by 580.0 MiB" in cause.says


@pytest.mark.parametrize(("steps", "kind"), [([10] * 20, Kind.LEAK), ([0] * 10 + [200] + [0] * 9, Kind.PRICE)])
def test_what_creeps_is_a_leak_and_what_jumps_is_a_wrong_price(steps: list[int], kind: Kind) -> None:
    own = [300 * MIB]
    for step in steps:
        own.append(own[-1] + step * MIB)
    looks = tuple(moment(float(at_s), 600 * MIB - held, 400 * MIB + held, held) for at_s, held in enumerate(own))
    cause = probable_cause(made(reason=Reason.BREAKER, looks=looks, headroom_bytes=20 * MIB))
    assert cause.kind is kind
    assert "grew by 200.0 MiB" in cause.says


def test_where_nobody_grew_the_cause_is_unknown() -> None:
    assert trip((20, 980, 300), (20, 980, 300)).kind is Kind.UNKNOWN
    assert probable_cause(made(reason=Reason.OOM, looks=(), headroom_bytes=None)).kind is Kind.UNKNOWN


SIZES = st.none() | st.integers(0, 2**45)


@given(st.sampled_from(Reason), SIZES, SIZES, SIZES, SIZES, st.lists(st.tuples(SIZES, st.integers(0, 2**45))), SIZES)
def test_whatever_the_numbers_there_is_one_cause_in_words(
    reason: Reason,
    asked: int | None,
    limit: int | None,
    free: int | None,
    headroom: int | None,
    looks: list[tuple[int | None, int]],
    used: int | None,
) -> None:
    told = made(
        reason=reason,
        asked_bytes=asked,
        limit_bytes=limit,
        device_free_bytes=free,
        headroom_bytes=headroom,
        used_bytes=used or 0,
        looks=tuple(moment(float(at_s), left, taken, taken // 2) for at_s, (left, taken) in enumerate(looks)),
    )
    cause = probable_cause(told)
    assert cause.says
    assert (cause.kind is Kind.NONE) <= (reason is Reason.DEMAND)
