"""Time that goes on while the pod is paused: what a credential's life is measured by.

The wall clock may jump, and the monotonic clock stands still while the machine sleeps; CLOCK_BOOTTIME does neither.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LOOK_SECONDS = 5.0  # a sleep is cut into pieces: asyncio's own clock stands still in a paused machine


def boottime() -> float:
    """Seconds since the machine started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def sleep_until(due: Callable[[], float], look: float = LOOK_SECONDS) -> None:
    """Until `boottime` has reached ``due()``, which may move meanwhile: it is looked at every ``look`` seconds."""
    while (left := due() - boottime()) > 0:  # noqa: ASYNC110 - no event tells that a clock has moved on
        await asyncio.sleep(min(left, look))
