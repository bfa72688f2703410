"""One way to try again: waits that grow and are spread out, and one switch that takes the waits out of tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, stop_never

_waiting = True


def spread_out(failures: int, first: float, most: float, least: float = 0.0) -> float:
    """Seconds to wait after ``failures`` in a row before this one: anything from ``least`` up to ``first``, doubled each
    time; once up to the whole of ``most``; and then ``most`` itself for good.

    Who waits at random for good is likely to be near the end of its wait: when a Runtime comes back, a quarter of its hosts
    would come in one second. Spread over the whole of ``most`` once and keeping that order, a tenth does."""
    ceiling = first * 2.0 ** min(failures, 32)
    if ceiling >= 2 * most:
        return most
    return random.uniform(least, min(ceiling, most))


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
        wait=lambda state: spread_out(state.attempt_number - 1, first, most),
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
