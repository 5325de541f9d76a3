"""The scheduler alone: who runs, with which pages, in what order."""

from collections.abc import Sequence as Many

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.llama.pages import PageMap
from backend.llama.scheduler import Scheduler, Sequence, Slice

PAGE = 4


def scheduler(pages: int = 8, step_tokens: int = 6, max_batch: int = 3, *, lazily: bool = False) -> Scheduler:
    return Scheduler(PageMap(pages), PAGE, step_tokens, max_batch, lazily=lazily)


def sequence(prompt_tokens: int, max_tokens: int = 4) -> Sequence:
    return Sequence(list(range(prompt_tokens)), max_tokens)


def step(line: Scheduler) -> list[Slice]:
    """Plans, pretends to compute, retires what is finished."""
    plan = line.plan()
    for slice_ in plan:
        line.advance(slice_, 99 if slice_.samples else None)
    for slice_ in plan:
        if len(slice_.sequence.tokens) >= slice_.sequence.most_tokens:
            line.remove(slice_.sequence)
    return plan


def counts(plan: Many[Slice]) -> list[int]:
    return [slice_.count for slice_ in plan]


def test_a_long_prompt_goes_in_chunks_and_samples_with_the_last() -> None:
    line = scheduler()
    line.add(sequence(14))
    plans = [step(line) for _ in range(4)]
    assert [counts(plan) for plan in plans] == [[6], [6], [2], [1]]
    assert [plan[0].samples for plan in plans] == [False, False, True, True]
    assert plans[1][0].token_ids == list(range(6, 12))


def test_decodes_go_on_while_a_prompt_is_computed_within_one_budget() -> None:
    line = scheduler()
    first, second = sequence(2, 10), sequence(9)
    line.add(first)
    step(line)
    line.add(second)
    plan = step(line)
    assert [(slice_.sequence, slice_.count) for slice_ in plan] == [(first, 1), (second, 5)]


def test_nobody_gives_way_for_a_token_that_is_the_last() -> None:
    line = scheduler(pages=2, step_tokens=16, lazily=True)
    first, second = sequence(PAGE - 1, max_tokens=2), sequence(1)
    line.add(first)
    line.add(second)
    for _ in range(2):  # the first has all its tokens now, though nobody may have looked at them yet
        for slice_ in line.plan():
            line.advance(slice_, 99)
    assert len(first.tokens) == first.most_tokens == PAGE + 1
    assert [slice_.sequence for slice_ in line.plan()] == [second]
    assert (first.preemptions, second.preemptions) == (0, 0)


def test_who_comes_first_starts_first_even_if_a_later_one_would_fit() -> None:
    line = scheduler(pages=4, max_batch=8, step_tokens=64)
    running, large, small = sequence(4, 4), sequence(8, 4), sequence(1, 1)
    for item in (running, large, small):
        line.add(item)
    assert [slice_.sequence for slice_ in step(line)] == [running]
    while running in line.running:
        step(line)
    assert [slice_.sequence for slice_ in step(line)] == [large, small]


def test_pages_of_prompt_and_longest_answer_are_held_from_the_start_to_the_end() -> None:
    line = scheduler()
    item = sequence(3, 6)
    line.add(item)
    seen = set()
    while not line.idle:
        step(line)
        seen.add(line.pages.used)
    assert seen == {3, 0}


def test_no_more_sequences_run_than_the_batch_allows() -> None:
    line = scheduler(pages=100, step_tokens=100)
    for _ in range(5):
        line.add(sequence(2))
    assert len(step(line)) == 3


def test_what_no_empty_pool_could_hold_is_not_taken() -> None:
    with pytest.raises(ValueError, match="33 tokens exceed 8 pages"):
        scheduler().add(sequence(29, 4))


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_sequence_is_taken_out_wherever_it_is(steps: int) -> None:
    line = scheduler()
    others = [sequence(3, 9), sequence(3, 9)]
    item = sequence(9, 9)
    for each in (*others, item):
        line.add(each)
    for _ in range(steps):
        step(line)
    line.remove(item)
    line.check()
    assert item not in line.running
    assert item not in line.waiting
    assert all(slice_.sequence is not item for slice_ in line.plan())


def test_when_pages_run_out_the_newest_pays_and_is_computed_anew() -> None:
    line = scheduler(pages=4, step_tokens=16, lazily=True)
    old, new, later = sequence(4, 8), sequence(4, 8), sequence(4, 8)
    for item in (old, new, later):
        line.add(item)
    while not new.preemptions:
        step(line)
    assert old in line.running
    assert list(line.waiting) == [new, later]
    assert (new.pages, new.computed) == ([], 0)
    generated = len(new.output_ids)
    assert generated > 0
    while new not in line.running:
        step(line)
    assert old not in line.running
    while not line.idle:
        step(line)
    assert len(new.output_ids) == 8
    assert old.preemptions == 0


@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=12),
    step_tokens=st.integers(1, 20),
    max_batch=st.integers(1, 5),
    pages=st.integers(8, 16),
    lazily=st.booleans(),
    leavers=st.sets(st.integers(0, 11)),
)
def test_everyone_is_computed_once_in_order_and_no_page_is_lost(
    sizes: list[tuple[int, int]], step_tokens: int, max_batch: int, pages: int, lazily: bool, leavers: set[int]
) -> None:
    line = scheduler(pages, step_tokens, max_batch, lazily=lazily)
    items = [sequence(prompt_tokens, max_tokens) for prompt_tokens, max_tokens in sizes]
    for item in items:
        line.add(item)
    steps = 0
    while not line.idle:
        plan = line.plan()
        assert 0 < sum(counts(plan)) <= step_tokens
        assert len(line.running) <= max_batch
        assert len({id(slice_.sequence) for slice_ in plan}) == len(plan)
        kinds = [slice_.count > 1 for slice_ in plan if slice_.start > 0]
        assert kinds == sorted(kinds)
        for slice_ in plan:
            assert slice_.start == slice_.sequence.computed
            assert slice_.end <= len(slice_.sequence.pages) * PAGE
            line.advance(slice_, 99 if slice_.samples else None)
            if len(slice_.sequence.tokens) >= slice_.sequence.most_tokens:
                line.remove(slice_.sequence)
        line.check()
        steps += 1
        if steps == 4:
            for index in leavers & set(range(len(items))):
                line.remove(items[index])
        assert steps < 3000
    assert line.pages.used == 0
    for index, item in enumerate(items):
        if index not in leavers:
            assert len(item.output_ids) == item.max_tokens
        if not lazily:
            assert item.preemptions == 0


def test_a_page_given_back_twice_is_a_fault() -> None:
    pages = PageMap(4)
    taken = pages.allocate(2)
    pages.release(taken)
    with pytest.raises(ValueError, match="nobody holds it"):
        pages.release(taken)


def test_more_pages_than_are_free_are_a_fault() -> None:
    pages = PageMap(4)
    assert pages.fits(4)
    assert not pages.fits(5)
    with pytest.raises(ValueError, match="5 pages asked for, 4 free"):
        pages.allocate(5)


@pytest.mark.parametrize("holders", [[], [[0], [0]], [[0, 1]], [[3]]])
def test_the_check_prints_the_equation_that_does_not_hold(holders: list[list[int]]) -> None:
    pages = PageMap(4)
    assert pages.allocate(1) == [0]
    pages.check([[0]])
    with pytest.raises(ValueError, match=r"free 3 \+ used 1 = 4 of 4 pages; holders have"):
        pages.check(holders)
