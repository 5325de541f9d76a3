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
