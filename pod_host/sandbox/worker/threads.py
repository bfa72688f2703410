"""A fixed row of threads for work on files, which the kernel may let wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """``to_loop`` hands a callback to the loop's thread."""

    def __init__(self, count: int, to_loop: Callable[[Callable[[], None]], None]) -> None:
        self._to_loop = to_loop
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for _ in range(count):
            threading.Thread(target=self._run, daemon=True).start()

    def submit(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """``work`` in a thread, then ``done(its result)`` in the loop. ``work`` must not raise."""

        def whole() -> None:
            result = work()
            self._to_loop(lambda: done(result))

        self._work.put(whole)

    def _run(self) -> None:
        while True:
            self._work.get()()
