"""Work on bytes: at once where they are few, in a thread where it would hold up everybody else."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

LARGE_BYTES = 2**16
"""A change of threads costs as much as reading so many bytes of JSON does, and more when the cores are busy."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def offload(
    size_bytes: int, work: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result:
    """What `work` gives for these arguments, which have about `size_bytes` to read or to write."""
    if size_bytes < LARGE_BYTES:
        return work(*arguments, **named)
    return await asyncio.to_thread(work, *arguments, **named)


async def to_the_end(
    work: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result:
    """What `work` gives, in a thread. A cancelled caller goes on when that has ended: until then it uses memory."""
    thread = asyncio.create_task(asyncio.to_thread(work, *arguments, **named))
    try:
        return await asyncio.shield(thread)
    finally:
        await asyncio.wait([thread])
