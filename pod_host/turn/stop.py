"""The one switch that stops a turn, and how every wait of the turn listens to it (Harness API v5, section 8).

cancel, deadline     stop, cancel what runs, report ``cancelled``; on ``deadline`` what is in hand is still reported
shutdown             stop, report what is in hand, give the run back; gate calls run on for the next owner
ownership.lost       write nothing more (so does ``connection.lost``: there is nobody to write to)
failure              another call of the step failed the turn: stop what runs beside it
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from pod_host import limits
from pod_host.turn.endings import Stopped, StopReason

T = TypeVar("T")

WRITES_NOTHING: Final[frozenset[StopReason]] = frozenset({"ownership.lost", "connection.lost"})
IN_HAND: Final[frozenset[StopReason]] = frozenset({"shutdown", "deadline"})  # what is in hand is still reported
CANCELS_CALLS: Final[frozenset[StopReason]] = frozenset({"cancel", "deadline", "failure"})
"""Calls at a gate are cancelled; else they run on, for the next owner to join."""
OUTPUT: Final[frozenset[StopReason]] = IN_HAND | {"cancel", "failure"}  # the segment's output may still go out


class Stop:
    """Set once, by the first reason from outside; only a loss overrides another, since it forbids to write."""

    def __init__(self) -> None:
        self._reason: StopReason | None = None
        self._stopped = asyncio.Event()
        self._lost = asyncio.Event()

    @property
    def reason(self) -> StopReason | None:
        return self._reason

    def stop(self, reason: StopReason) -> None:
        """Idempotent."""
        lost = reason in WRITES_NOTHING
        if self._reason in (None, "failure") or (lost and not self._lost.is_set()):
            self._reason = reason
        self._stopped.set()
        if lost:
            self._lost.set()

    def check(self) -> None:
        """Raises Stopped once the turn is to stop."""
        if self._reason is not None:
            raise Stopped(self._reason)

    async def race(self, work: Callable[[], Awaitable[T]], finishes: frozenset[StopReason] = frozenset()) -> T:
        """What ``work`` gives, or Stopped, whichever is first; given up work is cancelled.

        A stop for one of the reasons that it ``finishes`` under leaves it `limits.STOP_SECONDS` more.
        """

        async def begin() -> T:
            if self._reason is not None and self._reason not in finishes:
                raise Stopped(self._reason)
            return await work()

        task = asyncio.ensure_future(begin())
        try:
            if self._reason is None:
                await _either(task, self._stopped)
            if not task.done() and self._reason in finishes:
                await _either(task, self._lost, limits.STOP_SECONDS)
            if task.done():
                return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        assert self._reason is not None  # nothing else ends the waits above
        raise Stopped(self._reason)

    async def until(self, task: asyncio.Future[Any]) -> bool:
        """Wait for ``task`` or for the stop, leaving the task as it is. Whether it is done."""
        await _either(task, self._stopped)
        return task.done()


async def _either(task: asyncio.Future[Any], event: asyncio.Event, seconds: float | None = None) -> None:
    """Until ``task`` is done, ``event`` is set or the time is over."""
    listening = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, listening}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        listening.cancel()
