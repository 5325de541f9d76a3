import pytest

from backend.tombstones import MOST, Tombstones
from common.errors import Cancelled


def test_work_that_comes_after_its_cancel_is_refused_and_no_other() -> None:
    tombstones = Tombstones()
    tombstones.add("late")
    tombstones.refuse("another")
    for _ in range(2):
        with pytest.raises(Cancelled):
            tombstones.refuse("late")


def test_masses_of_cancels_are_not_remembered_for_ever() -> None:
    tombstones = Tombstones()
    for number in range(MOST + 1):
        tombstones.add(str(number))
    tombstones.refuse("0")
    with pytest.raises(Cancelled):
        tombstones.refuse("1")
