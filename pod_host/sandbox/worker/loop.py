"""The worker's event loop: descriptors, timers, and calls from its threads. Small on purpose: asyncio would double the
worker's memory."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

Callback: TypeAlias = Callable[[], None]

_LONGEST_POLL: Final = 3600.0  # seconds: the kernel's own time ends somewhere, a timer's need not
_MANY_TIMERS: Final = 1000
_READABLE: Final = ~select.EPOLLOUT  # an error or a hangup is for the reader: reading tells what it is


class Timer:
    """A callback to come. ``cancel()`` any number of times, before or after it ran."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watches: dict[int, tuple[Callback, Callback | None]] = {}  # by descriptor: when readable, when writable
        self._timers: list[tuple[float, int, Timer]] = []
        self._many_timers = _MANY_TIMERS  # so many are looked through for cancelled ones
        self._order = itertools.count()  # timers of one instant run in the order they were set
        self._from_threads: deque[Callback] = deque()
        self._ready: deque[Callback] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._running = True
        self.watch(self._bell, self._answer_bell)

    def watch(self, descriptor: int, readable: Callback) -> None:
        """Until ``unwatch``, which comes before the descriptor is closed."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self._watches[descriptor] = readable, None

    def watch_both(self, descriptor: int, readable: Callback, writable: Callback | None) -> None:
        """As ``watch``, for a descriptor that is watched already; ``writable`` None: not for writing any more."""
        self._epoll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if writable else 0))
        self._watches[descriptor] = readable, writable

    def unwatch(self, descriptor: int) -> None:
        self._epoll.unregister(descriptor)
        del self._watches[descriptor]

    def later(self, seconds: float, callback: Callback) -> Timer:
        if len(self._timers) >= self._many_timers:
            self._forget_cancelled()
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def _forget_cancelled(self) -> None:
        """Commands end long before their timeouts, which would else lie here until then."""
        self._timers = [entry for entry in self._timers if entry[2].callback is not None]
        heapq.heapify(self._timers)
        self._many_timers = max(_MANY_TIMERS, 2 * len(self._timers))

    def soon(self, callback: Callback) -> None:
        self._ready.append(callback)

    def from_thread(self, callback: Callback) -> None:
        """Runs ``callback`` in the loop soon. The one method that other threads may call."""
        self._from_threads.append(callback)
        os.eventfd_write(self._bell, 1)

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        watches = self._watches
        while self._running:
            came = self._epoll.poll(self._patience())
            at_the_time = [watches[descriptor] for descriptor, _ in came]
            for (descriptor, events), watch in zip(came, at_the_time, strict=True):
                # A callback of the same round may have ended the watch, and the number may be another's by now.
                readable, writable = watch
                if events & select.EPOLLOUT and writable and watches.get(descriptor) is watch:
                    writable()
                if events & _READABLE and watches.get(descriptor) is watch:
                    readable()
            self._run_timers()
            for _ in range(len(self._ready)):
                self._ready.popleft()()

    def _patience(self) -> float | None:
        if self._ready:
            return 0.0
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return min(max(0.0, self._timers[0][0] - time.monotonic()), _LONGEST_POLL)

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
