"""What a directory of ours looked like when we left it, so that what somebody did to it since is seen.

Commands cannot write there, where the kernel can forbid it; a chmod it cannot. The time of a file's last change of status is
the kernel's own: nobody sets it back.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

_Facts: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seal:
    """``link`` leads into ``directory``, and lies above it."""

    link: Path
    directory: Path
    facts: dict[str, _Facts]
    target: _Facts

    @classmethod
    def of(cls, link: Path, directory: Path) -> Seal:
        """Raises OSError."""
        return cls(link, directory, _facts(link, directory), _of_file(os.stat(link)))

    @property
    def target_whole(self) -> bool:
        """Of what the link names alone: microseconds."""
        try:
            return _of_file(os.stat(self.link)) == self.target
        except OSError:  # gone, or closed to us
            return False

    @property
    def whole(self) -> bool:
        try:
            return _facts(self.link, self.directory) == self.facts
        except OSError:  # gone, or closed to us
            return False

    def restore_modes(self) -> None:
        """Of the two directories: what is in them may be out of reach otherwise. Does what it can."""
        for place in (self.link.parent, self.directory):
            with contextlib.suppress(OSError):
                if os.stat(place).st_mode != (mode := self.facts[str(place)][1]):
                    os.chmod(place, stat.S_IMODE(mode))


def _facts(link: Path, directory: Path) -> dict[str, _Facts]:
    facts = {entry.path: _of_file(entry.stat(follow_symlinks=False)) for entry in os.scandir(directory)}
    facts[str(link)] = _of_file(os.lstat(link))
    for place in (link.parent, directory):  # what else lies in them is not looked at, so neither are their times
        status = os.stat(place)
        facts[str(place)] = (status.st_ino, status.st_mode, status.st_uid)
    return facts


def _of_file(status: os.stat_result) -> _Facts:
    return status.st_ino, status.st_mode, status.st_uid, status.st_size, status.st_ctime_ns
