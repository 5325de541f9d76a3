import asyncio
import threading

import pytest

from frontend.offload import to_the_end
from tests.unit.web import run


def test_who_is_cancelled_goes_on_when_the_thread_has_ended() -> None:
    async def test() -> None:
        begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            may_end.wait(10)
            ended.set()

        task = asyncio.create_task(to_the_end(work))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    run(test)


def test_what_the_work_gives_or_raises_is_passed_on() -> None:
    async def test() -> None:
        assert await to_the_end(int, "7") == 7
        with pytest.raises(ValueError, match="invalid literal"):
            await to_the_end(int, "seven")

    run(test)
