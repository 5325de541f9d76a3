import random
from itertools import accumulate

import pytest

from frontend.ends import CHUNK, Ends


@pytest.mark.parametrize("seed", range(5))
def test_ends_answer_as_a_sorted_list_would(seed: int) -> None:
    dice = random.Random(seed)
    ends, plain = Ends(), list[tuple[float, str, int]]()
    for step in range(6 * CHUNK):
        if plain and dice.random() < 0.4:
            ends.remove(plain.pop(dice.randrange(len(plain))))
        else:
            plain.append((float(dice.randint(0, 20)), f"{step:04}", dice.randint(0, 9)))
            ends.add(plain[-1])
        plain.sort()
        sums = list(accumulate(end[2] for end in plain))
        need, at_s = dice.randint(1, 1200), dice.uniform(-1, 21)
        assert list(ends) == plain
        assert ends.first() == (plain[0] if plain else None)
        assert ends.freeing(need) == next(
            (end[0] for end, total in zip(plain, sums, strict=True) if total >= need), None
        )
        assert ends.freed_by(at_s) == sum(end[2] for end in plain if end[0] <= at_s)
