"""The worker's event loop: descriptors, timers, and calls from its threads. Small on purpose: asyncio would double the
worker's memory."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import time
from collections import deque
from collections.abc import Callable

Callback = Callable[[], None]

_LONGEST_SELECT = 3600.0  # seconds: the kernel's own time ends somewhere, a timer's need not


class Timer:
    """A callback to come. ``cancel()`` any number of times, before or after it ran."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()  # timers of one instant run in the order they were set
        self._from_threads: deque[Callback] = deque()
        self._ready: deque[Callback] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._running = True
        self.watch(self._bell, self._answer_bell)

    def watch(self, descriptor: int, readable: Callback) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, (readable, None))

    def watch_both(self, descriptor: int, readable: Callback, writable: Callback | None) -> None:
        """As ``watch``, for a descriptor that is watched already; ``writable`` None: not for writing any more."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writable else 0)
        self._selector.modify(descriptor, events, (readable, writable))

    def unwatch(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def later(self, seconds: float, callback: Callback) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def soon(self, callback: Callback) -> None:
        self._ready.append(callback)

    def from_thread(self, callback: Callback) -> None:
        """Runs ``callback`` in the loop soon. The one method that other threads may call."""
        self._from_threads.append(callback)
        os.eventfd_write(self._bell, 1)

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        while self._running:
            for key, events in self._selector.select(self._patience()):
                readable, writable = key.data
                if events & selectors.EVENT_WRITE and writable and self._current(key):
                    writable()
                if events & selectors.EVENT_READ and self._current(key):
                    readable()
            self._run_timers()
            for _ in range(len(self._ready)):
                self._ready.popleft()()

    def _current(self, key: selectors.SelectorKey) -> bool:
        """Whether the watch still stands: a callback of the same round may have ended it, and its descriptor's number
        may be another's by now."""
        now = self._selector.get_map().get(key.fd)
        return now is not None and now.data is key.data

    def _patience(self) -> float | None:
        if self._ready:
            return 0.0
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return min(max(0.0, self._timers[0][0] - time.monotonic()), _LONGEST_SELECT)

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()

    def _answer_bell(self) -> None:
        os.eventfd_read(self._bell)
        while self._from_threads:
            self._from_threads.popleft()()
