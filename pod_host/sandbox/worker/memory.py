"""Did the kernel's out-of-memory killer strike? Its counter tells, nothing else does."""

from __future__ import annotations

import contextlib
from typing import Final

# Our own cgroup's (in a container it is mounted as the root), as v2 and as v1 name it, and the whole machine's.
_COUNTERS: Final = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")


class OutOfMemory:
    def __init__(self) -> None:
        self._last = self._count()

    def struck(self) -> bool:
        """Whether it killed since it was last asked for."""
        last, self._last = self._last, self._count()
        return self._last > last

    @staticmethod
    def _count() -> int:
        total = 0
        for path in _COUNTERS:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith(b"oom_kill "))
        return total
