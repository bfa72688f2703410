"""What all commands of a worker share: whose every process is, what lives, what has too many and is ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pod_host import limits
from pod_host.sandbox.raw import Living
from pod_host.sandbox.tags import UNMARKED, Pass, Sweep, command_line, is_zombie, look, signal_all, signal_seen
from pod_host.sandbox.worker.ahead import ShellsAhead
from pod_host.sandbox.worker.census import Census
from pod_host.sandbox.worker.loop import Loop
from pod_host.sandbox.worker.memory import OutOfMemory
from pod_host.sandbox.worker.ports import listening_ports
from pod_host.sandbox.worker.shell import Shell
from pod_host.sandbox.worker.spawner import Spawner
from pod_host.sandbox.worker.spool import Spool

SWEEP_SECONDS: Final = 0.002  # between two passes over a tree while it dies
_CHILDREN_BYTES: Final = 4096
_CALM_SWEEP_SECONDS: Final = 1.0  # … when something in it does not die


class Running(Protocol):
    def kill(self, reason: str) -> None: ...


class Machinery:
    """What every command of a worker shares."""

    def __init__(self, loop: Loop, spawner: Spawner, spool: Spool, shell: Shell, shells_ahead: int) -> None:
        self.loop = loop
        self.spawner = spawner
        self.spool = spool
        self.shell = shell
        self.ahead = ShellsAhead(loop, spawner, shell, shells_ahead)
        self.out_of_memory = OutOfMemory()
        self.census = Census(loop, living=self._living, too_many=self._too_many, counted=self.out_of_memory.look)
        self.sessions: dict[int, str] = {}  # whose each number is, while a process of it may live
        self.running: dict[int, Running] = {}  # by number, those that were not answered for
        self._ending: set[int] = set()  # numbers that are being ended beside any command
        self._notices: dict[str, list[str]] = {}  # by session, for the next result of it
        self._ended: set[int] = set()  # numbers whose command was answered for, perhaps with survivors
        self._seen: Pass | None = None  # in this round of the loop
        self._root = os.getpid()

    def orphans(self) -> bool:
        """Whether we have children beside the zygote and the shells. Every survivor's line begins with one."""
        children = children_of_this_thread()
        if children is None:
            return True  # look at every process
        return bool(children - self.spawner.programs - {self.spawner.zygote_pid})

    def living(self) -> list[tuple[int, str]]:
        """(pid, session) of everything that lives. Forgets the sessions of commands that left nothing."""
        found = self._living()
        return [(pid, self.sessions.get(number, "")) for pid, number in found]

    def survivors(self, number: int) -> tuple[tuple[Living, ...], int]:
        """What a command that has ended left running, as far as it is named, and how many more there are."""
        self._ended.add(number)
        if not self.orphans():
            self._ended.discard(number)
            self.sessions.pop(number, None)
            return (), 0
        pids = [pid for pid, whose in self._living() if whose == number]
        named = pids[: limits.PROCESSES_NAMED]
        return describe(named), len(pids) - len(named)

    def _living(self) -> list[tuple[int, int]]:
        """(pid, number)."""
        # Every line of processes begins with a program of ours or an orphan.
        anything = not self.spawner.programs <= self.ahead.pids or self.orphans()
        found = self._look() if anything else []
        for number in self._ended - {number for _, number in found}:
            self._ended.discard(number)
            self.sessions.pop(number, None)
        return found

    def _look(self) -> list[tuple[int, int]]:
        waiting = self.ahead.numbers | {UNMARKED}
        return [
            (process.pid, process.number)
            for process in look(self.spawner.space, self._root).found
            if process.number not in waiting and not is_zombie(process.pid)
        ]

    def signal(self, whose: Callable[[int], bool], number: int) -> tuple[int, bool]:
        return signal_all(self.spawner.space, self._root, whose, number)

    def signal_together(self, whose: Callable[[int], bool], number: int) -> tuple[int, bool]:
        """The same, from the loop: all who ask in one round of it share one pass, as when many commands are ended at once."""
        if self._seen is None:
            self._seen = look(self.spawner.space, self._root)
            self.loop.soon(self._forget_seen)
        return signal_seen(self.spawner.space, self._seen, whose, number)

    def _forget_seen(self) -> None:
        self._seen = None

    def take_notices(self, session: str) -> tuple[str, ...]:
        return tuple(self._notices.pop(session, ()))

    def _too_many(self, number: int) -> None:
        if number in self.running:
            self.running[number].kill("tasks")
            return
        if number in self._ending:
            return
        self._ending.add(number)
        session = self.sessions.get(number)
        if session is not None:
            notices = self._notices.setdefault(session, [])
            notices.append(f"What an earlier command had left running was killed ({self.too_many_tasks}).")
        self._end_tree(number, Sweep(), time.monotonic() + limits.KILL_MOST_SECONDS)

    def _end_tree(self, number: int, tree: Sweep, calm: float) -> None:
        """``calm``: from when on (monotonic) something in it must hang in the kernel."""
        if tree.saw(*self.signal(lambda whose: whose == number, signal.SIGKILL)):
            self._ending.discard(number)
            return
        pause = SWEEP_SECONDS if time.monotonic() < calm else _CALM_SWEEP_SECONDS
        self.loop.later(pause, lambda: self._end_tree(number, tree, calm))

    @property
    def too_many_tasks(self) -> str:
        return f"it had more than {self.census.most} processes and threads"


def children_of_this_thread() -> set[int] | None:
    """Pids, zombies too. None: the kernel has no such file."""
    try:
        descriptor = os.open("/proc/thread-self/children", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    pids = b""
    while piece := os.read(descriptor, _CHILDREN_BYTES):  # one read gives a page at most, whatever is asked for
        pids += piece
    os.close(descriptor)
    return set(map(int, pids.split()))


def describe(pids: Sequence[int]) -> tuple[Living, ...]:
    ports = listening_ports(pids)
    return tuple(Living(pid, command_line(pid), ports.get(pid, ())) for pid in pids)
