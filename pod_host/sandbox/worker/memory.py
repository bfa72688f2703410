"""Did the kernel's out-of-memory killer strike? Its counter tells, nothing else does."""

from __future__ import annotations

import contextlib
import time
from typing import Final

# Our own cgroup's (in a container it is mounted as the root), as v2 and as v1 name it, and the whole machine's.
_COUNTERS: Final = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")


class OutOfMemory:
    """To be asked now and then: a strike counts as of the time when it was first seen."""

    def __init__(self) -> None:
        self._last = self._count()
        self._seen_at = float("-inf")  # monotonic

    def look(self) -> None:
        last, self._last = self._last, self._count()
        if self._last > last:
            self._seen_at = time.monotonic()

    def struck_since(self, moment: float) -> bool:
        """Whether it killed after ``moment`` (monotonic)."""
        self.look()
        return self._seen_at >= moment

    @staticmethod
    def _count() -> int:
        total = 0
        for path in _COUNTERS:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith(b"oom_kill "))
        return total
