"""One way to try again: growing waits with full jitter, and one switch that takes the waits out of tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, stop_never
from tenacity.wait import wait_random_exponential

_waiting = True


def wait_growing(first: float, most: float) -> wait_random_exponential:
    """The wait after failure n: from 0 to min(``most``, ``first`` * 2^(n-1)) seconds, so that many hosts that fail
    together do not come back in step."""
    return wait_random_exponential(multiplier=first, max=most)


def retrying(
    again: Callable[[BaseException], bool],
    *,
    first: float,
    most: float,
    attempts: int | None = None,
    tell: Callable[[BaseException], None] | None = None,
) -> AsyncRetrying:
    """Calls again while ``again`` says so of the exception, ``attempts`` times in all (None: for good; cancel it to
    stop). ``tell`` hears of each failure that a wait follows. The last exception comes out as it is."""

    def before_sleep(state: RetryCallState) -> None:
        fault = state.outcome.exception() if state.outcome else None
        if tell and fault:
            tell(fault)

    return AsyncRetrying(
        retry=retry_if_exception(again),
        wait=wait_growing(first, most),
        stop=stop_never if attempts is None else stop_after_attempt(attempts),
        sleep=pause,
        before_sleep=before_sleep,
        reraise=True,
    )


def without_end(
    *kinds: type[BaseException], first: float, most: float, tell: Callable[[BaseException], None] | None = None
) -> AsyncRetrying:
    """Calls again after an exception of ``kinds``, for good."""
    return retrying(lambda fault: isinstance(fault, kinds), first=first, most=most, tell=tell)


async def pause(seconds: float) -> None:
    """A wait between attempts: what `no_waiting` takes away."""
    await asyncio.sleep(seconds if _waiting else 0)


@contextmanager
def no_waiting() -> Iterator[None]:
    """For tests: attempts follow one another at once."""
    global _waiting
    before, _waiting = _waiting, False
    try:
        yield
    finally:
        _waiting = before
