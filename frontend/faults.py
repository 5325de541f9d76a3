"""Unexpected exceptions, told without their messages: those may quote a prompt. Our own never do."""

import traceback

from common.errors import VramgateError


def describe(error: BaseException, frames: int = 6) -> str:
    """Type and the innermost frames of `error` and of what caused it, in one line."""
    told: list[str] = []
    link: BaseException | None = error
    while link is not None and len(told) < 4:
        trace = traceback.extract_tb(link.__traceback__)[-frames:]
        places = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(trace))
        words = f" ({link})" if isinstance(link, VramgateError) else ""
        told.append(f"{type(link).__name__}{words} at {places or 'no frame'}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "; after ".join(told)
