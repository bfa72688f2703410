"""A process that is the zygote's child, as the worker sees it: where its script goes, whether it waits, how it ended.

Its parent does not collect it before we say so: until then its number is nobody else's, and its end can be read.
"""

from __future__ import annotations

import os
from typing import Final

_STAT_BYTES: Final = 4096
# Fields of /proc/PID/stat from the state on, which is the third.
_STATE, _PENDING_SIGNALS, _ARGUMENTS, _ARGUMENTS_END, _EXIT_CODE = 0, 28, 45, 46, 49


class Watched:
    """Making it raises ``OSError``: there is no such process, or there are no descriptors left. ``ends`` becomes readable
    when it ends."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ends = os.pidfd_open(pid)
        try:
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self.ends)
            raise

    def close(self) -> None:
        os.close(self.ends)
        os.close(self._stat)

    @property
    def arguments(self) -> tuple[int, int]:
        """Where its arguments lie in its memory, from and to. Zeros: not ours to know. While a program is being executed they
        end where they start, until the kernel has been through them: it takes the variables to be what lies behind them."""
        fields = self._fields()
        return int(fields[_ARGUMENTS]), int(fields[_ARGUMENTS_END])

    @property
    def waits_unharmed(self) -> bool:
        """Whether it is there, not stopped, and no signal is about to end it."""
        fields = self._fields()
        return fields[_STATE] in (b"S", b"R", b"D") and not int(fields[_PENDING_SIGNALS])

    @property
    def exit_status(self) -> int:
        """The wait status of what has ended. 0 where the kernel does not tell."""
        return int(self._fields()[_EXIT_CODE])

    def _fields(self) -> list[bytes]:
        """From the state on: the name before it may hold anything, so it is cut at the last bracket. Raises
        ``ProcessLookupError`` when it was collected."""
        return os.pread(self._stat, _STAT_BYTES, 0).rpartition(b")")[2].split()
