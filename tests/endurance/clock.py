"""A clock that can be moved, for one process: an offset in a shared file, which the process adds to what it reads.

The machine's own clock is never touched. Two numbers lie in the file: seconds that the wall clock is off, and seconds that
the machine seems to have slept (CLOCK_BOOTTIME goes on then, the monotonic clock does not).
"""

from __future__ import annotations

import importlib
import mmap
import struct
import time
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Final

_OFFSETS: Final = struct.Struct("dd")


class Offsets:
    """The driver's end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wall = 0.0
        self.slept = 0.0
        path.write_bytes(_OFFSETS.pack(0.0, 0.0))
        path.chmod(0o644)

    def move(self, *, wall: float = 0.0, slept: float = 0.0) -> None:
        self.wall += wall
        self.slept += slept
        with self.path.open("r+b") as file:  # in place: the other end has it mapped
            file.write(_OFFSETS.pack(self.wall, self.slept))


def follow(path: str, *modules: str) -> None:
    """From now on this process reads moved clocks; ``modules``, which took the class `datetime`, too."""
    with open(path, "rb") as file:
        shared = mmap.mmap(file.fileno(), _OFFSETS.size, access=mmap.ACCESS_READ)
    real_time, real_clock = time.time, time.clock_gettime

    def wall() -> float:
        return float(_OFFSETS.unpack(shared[:])[0])

    def clock_gettime(clock: int) -> float:
        offset, slept = _OFFSETS.unpack(shared[:])
        more: dict[int, float] = {time.CLOCK_REALTIME: offset, time.CLOCK_BOOTTIME: slept}
        return real_clock(clock) + more.get(clock, 0.0)

    class Moved(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]  # a plain one, not a Moved
            return datetime.fromtimestamp(real_time() + wall(), tz)

    time.time = lambda: real_time() + wall()
    time.clock_gettime = clock_gettime
    for name in modules:
        importlib.import_module(name).datetime = Moved  # type: ignore[attr-defined]  # whatever the module
