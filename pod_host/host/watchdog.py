"""A thread that looks after the event loop: a pod has no probes, and a host whose loop stands still must not sit there.

It counts its own ticks, not the time that passes. While the process is stopped or the pod is paused its ticks stop with the
loop's, and nothing is counted; when the loop alone is stuck, they go on.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import queue
import sys
import threading
import time
from collections.abc import Callable

from pod_host import limits

EXIT_STUCK = 70
_TICK_SECONDS = 1.0


class Watchdog:
    """``stuck`` is called, in the watchdog's thread, when the loop let ``seconds`` of ticks go by without a sign."""

    def __init__(
        self,
        seconds: float = limits.WATCHDOG_SECONDS,
        tick: float = _TICK_SECONDS,
        stuck: Callable[[], None] | None = None,
    ) -> None:
        self._patience = max(1, round(seconds / tick))
        self._tick = tick
        self._stuck = stuck or leave_stuck
        self._missed = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._tick):
            self._missed += 1
            if self._missed > self._patience:
                self._stuck()
                return
            try:
                self._loop.call_soon_threadsafe(self._alive)
            except RuntimeError:  # the loop is closed: the process is about to end
                return

    def _alive(self) -> None:
        self._missed = 0


def leave_stuck() -> None:
    """All stacks to stderr, then exit 70. Not a clean end: there is no loop left to end anything in."""
    sys.stderr.write('{"level":"error","event":"watchdog.stuck"}\n')
    sys.stderr.flush()
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(EXIT_STUCK)


class Departure:
    """Leaves the process in time whatever happens: what SIGTERM has begun must be over before SIGKILL. Its thread is there
    from the start, as all of the host's are."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[tuple[float, int]] = queue.SimpleQueue()
        threading.Thread(target=self._leave, name="departure", daemon=True).start()

    def leave_after(self, seconds: float, exit_code: int) -> None:
        """May be called in a signal handler."""
        self._told.put((seconds, exit_code))

    def _leave(self) -> None:
        seconds, exit_code = self._told.get()
        time.sleep(seconds)
        sys.stderr.write('{"level":"warning","event":"shutdown.forced"}\n')
        sys.stderr.flush()
        os._exit(exit_code)
