"""Whose is a process? Each command carries a tag that no descendant can shed or forge, however it hides.

The tag is the pair of hard limits RLIMIT_RSS and RLIMIT_LOCKS. Linux uses neither; both go over fork, exec and setsid;
both can only be lowered. With an id n out of a width W they are set to base + n and base + W - n: lowering either
breaks the sum, and another command's pair would need one of them raised. Two ``prlimit`` calls read a tag.

An id has a realm (one worker's life, random) in its upper half and a number in its lower half, so that two hosts on
one machine never meet.
"""

from __future__ import annotations

import os
import re
import resource
import secrets
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RLIMIT_LOCKS: Final = 10  # not named by the module `resource`
_INFINITY: Final = 2**64 - 1
_LEAST_WIDTH: Final = 2**24
_HARD_LIMITS: Final = re.compile(rb"^Max (?:resident set|file locks) +\S+ +(\S+)", re.MULTILINE)


class NoRoomForTags(Exception):
    """The hard limits that we were started with are too low to tell commands apart."""


def _hard(pid: int, which: int) -> int:
    return resource.prlimit(pid, which)[1] & _INFINITY


@dataclass(frozen=True, slots=True)
class TagSpace:
    """Where the tags lie. ``realm`` and the numbers each take half of the width's bits."""

    base: int
    width: int
    realm: int
    untouched: tuple[int, int]  # the pair of a process that was not tagged yet: our own

    @classmethod
    def within_own_limits(cls) -> TagSpace:
        """The space under our own hard limits: unlimited as a rule; inside another sandbox's command they are its tag,
        and ours lie below it. Raises ``NoRoomForTags``."""
        untouched = _hard(0, resource.RLIMIT_RSS), _hard(0, RLIMIT_LOCKS)
        most = min(*untouched, 2**62)
        width = 2**56
        base = 2**60
        while base >= width and base + width > most:
            base //= 2
        if base < width:  # no room above the width: use all there is
            base, width = 0, 1 << (most.bit_length() - 1) if most else 0
            if width < _LEAST_WIDTH:
                raise NoRoomForTags(f"the hard limits RSS and LOCKS are {most}: too low to mark commands")
        half = (width.bit_length() - 1) // 2
        return cls(base, width, secrets.randbelow(1 << (width.bit_length() - 1 - half)), untouched)

    @property
    def most_number(self) -> int:
        return (1 << self._half) - 1

    @property
    def _half(self) -> int:
        return (self.width.bit_length() - 1) // 2

    def limits(self, number: int) -> tuple[int, int]:
        """Hard RLIMIT_RSS and RLIMIT_LOCKS of command ``number``, from 1 to ``most_number``."""
        identity = (self.realm << self._half) | number
        return self.base + identity, self.base + self.width - identity

    @property
    def nursery(self) -> tuple[int, int]:
        """The zygote's own pair, and that of what it has started until it is marked. No tag, but every tag of the realm lies
        below it, and nothing that has one comes back to it."""
        realm = self.realm << self._half
        return self.base + (realm | self.most_number), self.base + self.width - realm

    def number(self, rss: int, locks: int) -> int | None:
        """The command's number when the pair is a whole tag of this realm, else None."""
        identity = rss - self.base
        if not 0 <= identity <= self.width or locks != self.base + self.width - identity:
            return None
        return identity & self.most_number if identity >> self._half == self.realm else None

    def foreign(self, rss: int, locks: int) -> bool:
        """Whether the pair is nobody's business here: never tagged, or a whole tag of another realm."""
        return (rss, locks) == self.untouched or rss + locks == 2 * self.base + self.width

    def read(self, pid: int) -> tuple[int, int] | None:
        """A process's pair, or None when it is gone or another user's."""
        try:
            return _hard(pid, resource.RLIMIT_RSS), _hard(pid, RLIMIT_LOCKS)
        except ProcessLookupError:
            return None
        except PermissionError:
            # Root without CAP_SYS_RESOURCE, as in most containers, may not ask; it may read.
            return _read_limits(pid) if os.geteuid() == 0 else None


def _read_limits(pid: int) -> tuple[int, int] | None:
    try:
        with open(f"/proc/{pid}/limits", "rb", buffering=0) as file:
            text = file.read(8192)
    except OSError:
        return None
    pair = [_INFINITY if hard == b"unlimited" else int(hard) for hard in _HARD_LIMITS.findall(text)]
    return (pair[0], pair[1]) if len(pair) == 2 else None  # in the kernel's order: resident set, locks


STRAY: Final = 0  # the number of an orphan of ours that broke its tag: whose it was cannot be known
UNMARKED: Final = -1  # of the zygote, and of what it has started and nobody has marked yet


@dataclass(frozen=True, slots=True)
class Tagged:
    pid: int
    number: int
    pair: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pass:
    """One look at every process. ``vanished``: some were gone before they could be looked at, so that a tree which
    forks and ends all the time may have been missed."""

    found: list[Tagged]
    vanished: bool


def parent_of(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def threads_of(pid: int) -> int:
    """0 when it is gone."""
    fields = _stat(pid)
    return int(fields[17]) if fields else 0


def is_zombie(pid: int) -> bool:
    fields = _stat(pid)
    return fields is None or fields[0] in (b"Z", b"X")


def _stat(pid: int) -> list[bytes] | None:
    """/proc/PID/stat from the state on: the name before it may hold anything, so it is cut at the last bracket."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None


def processes_of_session(session: int) -> list[int]:
    """Pids, zombies too, of a session (the number is its leader's pid)."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    wanted = str(session).encode()
    return [pid for pid in pids if (fields := _stat(pid)) and fields[3] == wanted]


def command_line(pid: int) -> str:
    """For people: a process's arguments, blanks between, cut at 200 characters; its name when it has none."""
    for name, separator in (("cmdline", b"\0"), ("comm", b"\n")):
        try:
            with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
                text = file.read(1024).rstrip(separator).replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            return ""
        if text:
            return text if len(text) <= 200 else text[:199] + "…"
    return ""


def look(space: TagSpace, root: int) -> Pass:
    """Every process of the realm, zombies too.

    A process that lowered its limits (to get away, or by `ulimit -m`) counts as its nearest ancestor with a whole tag;
    when its line ends at ``root``, the subreaper, without one, it is a ``STRAY``.
    """
    found = []
    vanished = False
    nursery = space.nursery
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        pid = int(name)
        pair = space.read(pid)
        if pair is None:
            vanished = vanished or not os.path.exists(f"/proc/{pid}")
            continue
        number = UNMARKED if pair == nursery else space.number(*pair)
        if number is None and not space.foreign(*pair):
            number = _inherited_number(space, pid, root)
            vanished = vanished or (number is None and not os.path.exists(f"/proc/{pid}"))
        if number is not None:
            found.append(Tagged(pid, number, pair))
    return Pass(found, vanished)


def _inherited_number(space: TagSpace, pid: int, root: int) -> int | None:
    above = parent_of(pid)
    while above is not None and above > 1 and above != root:
        pair = space.read(above)
        number = space.number(*pair) if pair else None
        if number is not None:
            return number
        above = parent_of(above)
        if above is None:
            above = parent_of(pid)  # the one between has gone: the line is another now
    return STRAY if above == root else None


def send(space: TagSpace, process: Tagged, number: int) -> None:
    """Signals the process found under that tag, and never one that got its pid since: the descriptor is opened first,
    then the tag is read again."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return  # gone
    try:
        if space.read(process.pid) == process.pair:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return  # gone meanwhile
    finally:
        os.close(descriptor)


def signal_all(space: TagSpace, root: int, whose: Callable[[int], bool], number: int) -> tuple[int, bool]:
    """One pass: signals every living process whose command's number ``whose`` picks. How many there were, and whether
    others vanished before they could be looked at."""
    return signal_seen(space, look(space, root), whose, number)


def signal_seen(space: TagSpace, seen: Pass, whose: Callable[[int], bool], number: int) -> tuple[int, bool]:
    """The same, of those that a pass has just found."""
    picked = [process for process in seen.found if whose(process.number)]
    living = [process for process in picked if not is_zombie(process.pid)]
    for process in living:
        send(space, process, number)
    # One that has ended since it was found may have forked before: it has vanished like those that were not found.
    return len(living), seen.vanished or len(living) < len(picked)


class Sweep:
    """Decides when nothing is left: after two passes that found nothing, or after more where others vanished."""

    _CLEAN: Final = 2
    _CLEAN_ENOUGH: Final = 8  # on a machine where processes come and go all the time

    def __init__(self) -> None:
        self._clean = self._quiet = 0

    def saw(self, living: int, vanished: bool) -> bool:
        """Takes one pass into account; whether it is over."""
        self._quiet = 0 if living else self._quiet + 1
        self._clean = 0 if living or vanished else self._clean + 1
        return self._clean >= self._CLEAN or self._quiet >= self._CLEAN_ENOUGH
