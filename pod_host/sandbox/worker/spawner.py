"""Starts programs through the zygote, keeps a zygote at hand, and reaps every child of the worker."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from pod_host import limits
from pod_host.sandbox.tags import RLIMIT_LOCKS, TagSpace
from pod_host.sandbox.worker.loop import Loop
from pod_host.sandbox.worker.spawn import Spawn
from pod_host.sandbox.worker.watched import Watched
from pod_host.sandbox.worker.zygote import Domain
from pod_host.sandbox.worker.zygote_link import ZygoteLink
from pod_host.sandbox.worker.zygote_protocol import PID, Said

_SPAWN_SECONDS: Final = 5.0  # without a pid for so long: somebody stopped the zygote
_GIVE_UP_SECONDS: Final = 15.0  # a command can kill the zygote, and would have to meet each new one for so long
_AGAIN_SECONDS: Final = 0.1
_AT_ONCE: Final = 8  # requests in the zygote's socket: the kernel bounds descriptors in flight
_STATUS_BYTES: Final = 4096
_LEAST_URGENT: Final = 19


class Spawner:
    """``domain``: what commands are held in. ``protected`` gives the threads and process groups that they must not touch,
    at the time of asking."""

    def __init__(
        self,
        loop: Loop,
        space: TagSpace,
        domain: Domain,
        protected: Callable[[], tuple[list[int], list[int]]],
    ) -> None:
        self.space = space
        self._loop = loop
        self._domain = domain
        self._protected = protected
        self._niceness = min(_LEAST_URGENT, os.getpriority(os.PRIO_PROCESS, 0) + limits.COMMAND_NICE)
        self._last_number = 0
        self._zygote: ZygoteLink | None = None
        self._waiting: deque[Spawn] = deque()
        self._pending: list[Spawn] = []  # asked for, and not yet known to run or to have failed
        self._running: dict[int, Spawn] = {}
        self._bell, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        loop.watch(self._bell, self._child_changed)
        self._ensure_zygote()

    @property
    def zygote_pid(self) -> int | None:
        return self._zygote.pid if self._zygote else None

    @property
    def programs(self) -> set[int]:
        """Pids of the programs that run: our children that are no orphans."""
        return set(self._running)

    @property
    def busy(self) -> bool:
        """Whether programs wait for the zygote to have started others."""
        return bool(self._waiting)

    def next_tag(self) -> tuple[int, tuple[int, int]]:
        """A command's number and the limits that mark its processes."""
        self._last_number = self._last_number % self.space.most_number + 1
        return self._last_number, self.space.limits(self._last_number)

    def spawn(self, request: Spawn) -> None:
        self._waiting.append(request)
        self._pump()

    def withdraw(self, request: Spawn) -> bool:
        """Takes back a request that was not sent yet. False: it was; ``ended`` or ``failed`` will come."""
        if request not in self._waiting:
            return False
        self._waiting.remove(request)
        self._close_descriptors(request)
        return True

    def _pump(self) -> None:
        while self._waiting and len(self._pending) < _AT_ONCE:
            request = self._waiting.popleft()
            self._pending.append(request)
            self._attempt(request)

    def _attempt(self, request: Spawn) -> None:
        now = time.monotonic()
        request.give_up = request.give_up or now + _GIVE_UP_SECONDS
        if now >= request.give_up:
            self._settle(request)
            request.failed("Could not start the command: the process that starts commands was killed again and again.")
            return
        try:
            zygote = self._ensure_zygote()
            request.zygote = zygote.pid
            if request.held:
                zygote.hold(request)
            else:
                self._ask_to_run(zygote, request)
        except OSError as error:  # no process or no descriptor to be had: a command of ours took them all
            self._refuse(request, "start a process", error.errno or 0)
            return
        request.timer = self._loop.later(_SPAWN_SECONDS, lambda: self._lost_attempt(request))

    def _ask_to_run(self, zygote: ZygoteLink, request: Spawn) -> None:
        request.told = b""
        request.status, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(request.status, False)
        # A failure leaves the pipe at its end at once, which is a lost attempt like any other.
        with contextlib.suppress(OSError):
            zygote.run(request, theirs)
        os.close(theirs)
        self._loop.watch(request.status, lambda: self._read_status(request))

    # --- programs that are our children ------------------------------------------------------------------------------

    def _read_status(self, request: Spawn, reaped: int = 0) -> None:
        """What the child said so far. ``reaped``: the pid of a child that has just been reaped, if one was."""
        at_end = False
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(request.status, _STATUS_BYTES):
                request.told += piece
            at_end = True
        if len(request.told) <= PID.size or not at_end:
            if request.pid is None and len(request.told) >= PID.size:
                self._has_pid(request, reaped)
            if at_end and request.pid is not None:
                self._settle(request)
                self._pump()
            elif at_end:
                self._lost_attempt(request)
        else:
            self._refused(request)
            self._pump()

    def _has_pid(self, request: Spawn, reaped: int) -> None:
        (pid,) = PID.unpack(request.told[: PID.size])
        if pid > 0 and (pid == reaped or self._is_our_child(pid)):
            request.pid = pid
            self._running[pid] = request
            request.started()

    @staticmethod
    def _is_our_child(pid: int) -> bool:
        """Whether nobody has reaped it: until then the number is its own. The number itself came from outside."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return True
        return False

    def _refused(self, request: Spawn) -> None:
        (code,) = PID.unpack(request.told[PID.size : 2 * PID.size].ljust(PID.size, b"\0"))
        doing = request.told[2 * PID.size :].decode("utf-8", "replace")
        self._refuse(request, doing, code)

    # --- programs that are held: the zygote's children ---------------------------------------------------------------

    def _answered(self, request: Spawn, said: Said, value: int, doing: str) -> None:
        if said is Said.STARTED:
            self._held_started(request, value)
        else:
            self._refuse(request, doing, value)
        self._pump()

    def _held_started(self, request: Spawn, pid: int) -> None:
        """Marks it, unless it is not what was said: the number came from outside."""
        try:
            watched = request.watched = Watched(pid)
            # That pair is the zygote's, and that of what it has started and nobody has marked.
            if pid == request.zygote or self.space.read(pid) != self.space.nursery:
                raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
            for which, limit in zip((resource.RLIMIT_RSS, RLIMIT_LOCKS), request.tag, strict=True):
                resource.prlimit(pid, which, (limit, limit))
            os.setpriority(os.PRIO_PROCESS, pid, self._niceness)
        except OSError as error:
            self._collect(request, pid)
            self._settle(request)
            request.failed(f"Could not mark the command: {error.strerror}.")
            return
        request.pid = pid
        self._running[pid] = request
        self._loop.watch(watched.ends, lambda: self._held_ended(request, watched))
        self._settle(request)
        request.started()

    def _held_ended(self, request: Spawn, watched: Watched) -> None:
        """Its status is there to be read until its parent collects it."""
        status = watched.exit_status
        self._loop.unwatch(watched.ends)
        del self._running[watched.pid]
        request.ended(status)
        self._collect(request, watched.pid)

    def _collect(self, request: Spawn, pid: int) -> None:
        """The zygote may forget it; after that the number may be another's."""
        if request.watched is not None:
            request.watched.close()
            request.watched = None
        if self._zygote is not None and self._zygote.pid == request.zygote:
            self._zygote.collect(pid)

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def _refuse(self, request: Spawn, doing: str, code: int) -> None:
        """It fails; but where there is no process to be had, it waits for a while: a command that took them all is soon
        ended for it."""
        if (
            code == errno.EAGAIN
            and not request.held
            and request.pid is None
            and time.monotonic() < (request.give_up or 0)
        ):
            self._close_status(request)
            request.timer = self._loop.later(_AGAIN_SECONDS, lambda: self._attempt_again(request))
            return
        self._settle(request)
        if request.pid is not None:
            self._running.pop(request.pid, None)  # how it ends is of no interest: it is reaped as an orphan is
        request.failed(f"Could not {doing}: {os.strerror(code)}.")

    def _lost_attempt(self, request: Spawn) -> None:
        """The zygote died or stands still. A child that it may yet have made dies at writing its pid to the closed
        pipe, or finds nothing at its gate: no program runs twice."""
        if request.pid is not None:
            self._settle(request)
            return
        self._close_status(request)
        if self.zygote_pid == request.zygote:
            self._drop_zygote()
        if not request.held:
            self._attempt_again(request)
        elif request in self._pending:  # dropping the zygote may have told it already
            self._settle(request)
            request.failed("The process that starts commands was killed.")

    def _attempt_again(self, request: Spawn) -> None:
        self._attempt(request)
        self._pump()  # had it failed for good, nothing else would start those that wait

    def _close_status(self, request: Spawn) -> None:
        if request.timer:
            request.timer.cancel()
        if request.status >= 0:
            self._loop.unwatch(request.status)
            os.close(request.status)
            request.status = -1

    def _settle(self, request: Spawn) -> None:
        self._close_status(request)
        self._pending.remove(request)
        self._close_descriptors(request)

    @staticmethod
    def _close_descriptors(request: Spawn) -> None:
        while request.descriptors:
            os.close(request.descriptors.pop())

    # --- the zygote, and every child ---------------------------------------------------------------------------------

    def _ensure_zygote(self) -> ZygoteLink:
        if self._zygote is None:
            self._zygote = ZygoteLink(self._loop, self._domain, self.space.nursery, self._protected(), self._answered)
        return self._zygote

    def _drop_zygote(self) -> None:
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote_gone()

    def _zygote_gone(self) -> None:
        """It is reaped. Requests to run see their pipes end, those to hold are lost."""
        assert self._zygote is not None
        lost = self._zygote.close()
        self._zygote = None  # what it had not collected is ours to reap
        for request in lost:
            self._lost_attempt(request)
        self._pump()

    def _child_changed(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, 4096)
        self.reap()

    def reap(self) -> None:
        """Every child that has ended: programs, zygote, orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.zygote_pid:
                self._zygote_gone()
                continue
            if pid not in self._running:
                for request in list(self._pending):  # one that ended before its pid was read
                    if request.pid is None and request.status >= 0:
                        self._read_status(request, pid)
            ended = self._running.pop(pid, None)
            if ended is not None:
                if ended.watched is not None:  # held by a zygote that has died: it had come to us
                    self._loop.unwatch(ended.watched.ends)
                    ended.watched.close()
                ended.ended(status)
