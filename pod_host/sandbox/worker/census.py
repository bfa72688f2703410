"""How many processes and threads each command has, counted now and then: one that has too many is ended.

The kernel's own limit (RLIMIT_NPROC) counts all processes of a user on the whole node, other pods' too, so it is not used.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from pod_host import limits
from pod_host.sandbox import cgroup
from pod_host.sandbox.tags import threads_of
from pod_host.sandbox.worker.loop import Loop

_PAUSE_SECONDS: Final = 0.25
_PAUSE_MOST_SECONDS: Final = 1.0
_COST_RATIO: Final = 50  # a count that costs much, on a machine full of processes, is made less often: 2 % of a core
_VERSION_1: Final = "/sys/fs/cgroup/pids/pids.max"  # a container's own cgroup is mounted there as the root


def most_tasks() -> int:
    """Of one command. Half of what our cgroup may have at all, where that is less: the others need some too."""
    most = [limits.COMMAND_TASKS]
    own = cgroup.own_cgroup()
    whole = own and cgroup.least_limit(own, "pids.max")
    if whole:
        most.append(whole // 2)
    with contextlib.suppress(OSError, ValueError), open(_VERSION_1, "rb") as file:  # "max" is no number
        most.append(int(file.read()) // 2)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY:
        most.append(processes // 2)
    return min(most)


class Census:
    """``living`` gives (pid, number of its command); ``too_many(number)`` is called for each number above ``most``.
    ``counted`` is called at every count."""

    def __init__(
        self,
        loop: Loop,
        *,
        living: Callable[[], Iterable[tuple[int, int]]],
        too_many: Callable[[int], None],
        counted: Callable[[], object],
    ) -> None:
        self.most = most_tasks()
        self._loop = loop
        self._living = living
        self._too_many = too_many
        self._counted = counted
        self._ticking = False

    def begin(self) -> None:
        """Something runs: count for as long as anything does."""
        if not self._ticking:
            self._ticking = True
            self._loop.later(_PAUSE_SECONDS, self._count)

    def _count(self) -> None:
        began = time.thread_time()  # not the clock: a bomb that leaves us little time is no reason to look away
        tasks: Counter[int] = Counter()
        for pid, number in self._living():
            tasks[number] += threads_of(pid)
        for number, count in tasks.items():
            if count > self.most:
                self._too_many(number)
        self._counted()
        self._ticking = bool(tasks)
        if self._ticking:
            cost = time.thread_time() - began
            self._loop.later(min(max(_PAUSE_SECONDS, _COST_RATIO * cost), _PAUSE_MOST_SECONDS), self._count)
