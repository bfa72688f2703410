"""One way to try again: growing waits with full jitter, and one switch that takes the waits out of tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

_waiting = True


def wait_growing(first: float, most: float) -> wait_random_exponential:
    """Attempt n waits from 0 to min(``most``, ``first`` * 2^n) seconds: 200 hosts do not come back in step."""
    return wait_random_exponential(multiplier=first, max=most)


def without_end(
    *kinds: type[Exception], first: float, most: float, tell: Callable[[BaseException], None]
) -> AsyncRetrying:
    """Tries again after an exception of ``kinds``, for good; each goes to ``tell`` first. Cancel it to stop."""
    return AsyncRetrying(
        retry=retry_if_exception_type(kinds),
        wait=wait_growing(first, most),
        sleep=pause,
        before_sleep=lambda state: tell(state.outcome.exception()) if state.outcome else None,  # type: ignore[arg-type]
        reraise=True,
    )


async def pause(seconds: float) -> None:
    """A wait between attempts: the one that `no_waiting` takes away."""
    await asyncio.sleep(seconds if _waiting else 0)


@contextmanager
def no_waiting() -> Iterator[None]:
    """For tests: attempts follow one another at once."""
    global _waiting
    _waiting = False
    try:
        yield
    finally:
        _waiting = True
