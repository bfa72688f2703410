"""One command, from its start to the end of its whole tree or to the answer that leaves part of it running."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from pod_host import limits
from pod_host.sandbox.raw import RawResult
from pod_host.sandbox.requests import TRACEPARENT
from pod_host.sandbox.tags import STRAY, Sweep
from pod_host.sandbox.worker.capture import NOTHING, Capture, Pipe, two_pipes
from pod_host.sandbox.worker.loop import Loop, Timer
from pod_host.sandbox.worker.machinery import SWEEP_SECONDS, Machinery
from pod_host.sandbox.worker.shell import environment_bytes
from pod_host.sandbox.worker.spawn import Spawn
from pod_host.sandbox.worker.zygote_protocol import Program

_EXIT_CODES: Final = {"timeout": 124, "abort": 130, "tasks": 128 + signal.SIGKILL}
_ordinals = itertools.count(1)  # in the names of spooled outputs
_JUST_LOOK: Final = 0  # the signal that is none
_GRACE_LOOK_SECONDS: Final = 0.02  # between two looks whether SIGTERM was enough
_FIRST_LOOK_SECONDS: Final = 0.003  # after which its streams are watched: short commands have ended by then
_DISCARD_BYTES: Final = 1024 * 1024  # of what a survivor writes later, at once …
_DISCARD_PAUSE: Final = 0.05  # … and then a pause: `yes &` must not keep the worker busy


class RunningCommand:
    """Calls ``done`` once, with the result or with a text that says why it could not be started. Making one raises
    ``OSError`` when there are no descriptors left."""

    def __init__(
        self,
        machinery: Machinery,
        *,
        session: str,
        script: str,
        cwd: str,
        environment: dict[str, str],
        traceparent: str | None,
        timeout_seconds: float,
        done: Callable[[RawResult | str], None],
    ) -> None:
        self._all = machinery
        self._loop = machinery.loop
        self._timeout_seconds = timeout_seconds
        self._done: Callable[[RawResult | str], None] | None = done
        self._script = script.encode("utf-8", "surrogatepass")
        self._cwd = cwd
        self._environment = environment
        self._traceparent = traceparent
        self._session = session
        self._number = 0  # known once it has a shell
        self._streams: list[tuple[Pipe, Capture]] = []  # likewise: stdout and stderr
        self._watching = False  # its streams
        self._status: int | None = None
        self._kill_reason: str | None = None  # "timeout", "abort" or "tasks" once the tree is to end
        self._tree_ended = False
        self._tree = Sweep()
        self._hard = False  # the grace is over: SIGKILL
        self._began = self._last_byte = time.monotonic()
        self._timers: list[Timer] = []
        self._timeout: Timer | None = None
        self._spawn: Spawn | None = None  # of a shell of its own
        self._held = machinery.ahead.take(self._script, environment, cwd, self._held_settled)
        if self._held is None:
            self._start_fresh()
        elif self._held.ready:
            self._held_settled()

    def _held_settled(self) -> None:
        """The shell that waits for a script has come to its gate, or never will."""
        shell, self._held = self._held, None
        assert shell is not None
        if shell.run(self._script, self._traceparent, self._ended):
            self._has_shell(shell.number, shell.out, shell.err)
            self._started()
            return
        try:
            self._start_fresh()
        except OSError as error:
            self._answer(f"Could not start the command: {error.strerror}.")

    def _start_fresh(self) -> None:
        out, stdout, err, stderr = two_pipes()
        number, tag = self._all.spawner.next_tag()
        self._has_shell(number, out, err)
        shell = self._all.shell
        environment = self._environment
        if self._traceparent is not None:
            environment = {**environment, TRACEPARENT: self._traceparent}
        arguments, long_script = shell.invocation(self._script)
        self._spawn = Spawn(
            Program(shell.path, arguments, environment_bytes(environment), self._cwd),
            tag,
            stdout,
            stderr,
            script=long_script,
            started=self._started,
            failed=self._failed,
            ended=self._ended,
        )
        self._all.spawner.spawn(self._spawn)

    def _has_shell(self, number: int, out: int, err: int) -> None:
        self._number = number
        self._all.sessions[number] = self._session
        self._all.running[number] = self
        name = f"{time.time_ns():x}-{next(_ordinals)}"
        spool = self._all.spool
        self._streams = [(Pipe(out), Capture(spool, f"{name}-stdout")), (Pipe(err), Capture(spool, f"{name}-stderr"))]
        self._later(_FIRST_LOOK_SECONDS, self._watch_streams)

    def _watch_streams(self) -> None:
        if self._watching:
            return
        self._watching = True
        for pipe, capture in self._open_streams():
            self._watch(pipe, capture)

    def _watch(self, pipe: Pipe, capture: Capture) -> None:
        self._loop.watch(pipe.descriptor, lambda: self._readable(pipe, capture))

    def _readable(self, pipe: Pipe, capture: Capture) -> None:
        self._read(pipe, capture)
        if pipe.closed:
            self._look()

    def _read(self, pipe: Pipe, capture: Capture) -> bool:
        """Whether there was something: bytes, or the end."""
        piece = pipe.read()
        if piece:
            self._last_byte = time.monotonic()
            capture.feed(piece)
        elif piece is not None:
            if self._watching:
                self._loop.unwatch(pipe.descriptor)
            pipe.close()
        return piece is not None

    def _read_at_once(self) -> None:
        """What a short command has said, and that it says no more: nobody needs to be told that it came."""
        for pipe, capture in self._streams:
            if self._read(pipe, capture) and not pipe.closed:
                self._read(pipe, capture)
        if self._open_streams():
            self._watch_streams()

    def _open_streams(self) -> list[tuple[Pipe, Capture]]:
        return [stream for stream in self._streams if not stream[0].closed]

    def _started(self) -> None:
        self._began = time.monotonic()
        self._all.census.begin()
        if self._kill_reason is None:
            self._timeout = self._later(self._timeout_seconds, lambda: self.kill("timeout"))

    def _failed(self, message: str) -> None:
        if self._kill_reason is not None:
            self._answer()
        else:
            self._answer(message)

    def _ended(self, status: int) -> None:
        self._status = status
        self._last_byte = time.monotonic()
        if self._timeout is not None:
            self._timeout.cancel()
        if not self._watching:
            self._read_at_once()
        self._look()
        if self._done is not None:
            self._later(limits.DRAIN_MOST_SECONDS, self._answer_unless_killing)

    def _look(self) -> None:
        """The shell has ended: answer when both pipes did, or have been quiet for a while."""
        if self._status is None or self._done is None or (self._kill_reason and not self._tree_ended):
            return
        quiet = time.monotonic() - self._last_byte
        if not self._open_streams():
            self._answer()
        elif quiet < limits.DRAIN_QUIET_SECONDS:
            self._later(limits.DRAIN_QUIET_SECONDS - quiet, self._look)
        elif sum([self._read(*stream) for stream in self._open_streams()]):  # of each, not of the first alone
            self._loop.soon(self._look)  # it was not the command that was quiet, but we who were busy
        else:
            self._answer()

    def _answer_unless_killing(self) -> None:
        if self._done is not None and self._kill_reason is None:
            self._answer()

    # --- the end of the tree ----------------------------------------------------------------------------------------

    def kill(self, reason: str) -> None:
        """SIGTERM to the whole tree, then SIGKILL until nothing of it is left. ``reason``: "timeout", "abort" or "tasks":
        what has too many processes gets no grace, in which it would make more."""
        if self._done is None or self._kill_reason is not None:
            return
        self._kill_reason = reason
        if self._held is not None:
            self._held.discard()
            self._held = None
            self._answer()
            return
        if self._spawn is not None and self._all.spawner.withdraw(self._spawn):
            self._answer()
            return
        if reason == "tasks":
            self._harden()
        else:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # the stopped ones too shall have their grace
            self._later(limits.KILL_GRACE_SECONDS, self._harden)
        self._later(limits.KILL_MOST_SECONDS, self._give_up)
        self._sweep()

    def _signal(self, number: int) -> tuple[int, bool]:
        return self._all.signal_together(lambda whose: whose in (self._number, STRAY), number)

    def _harden(self) -> None:
        self._hard = True

    def _sweep(self) -> None:
        if self._tree_ended:
            return
        living, vanished = self._signal(signal.SIGKILL if self._hard else _JUST_LOOK)
        starting = self._spawn is not None and self._spawn.pid is None and self._done is not None
        if not self._tree.saw(living + starting, vanished):
            pause = 1.0 if self._done is None else SWEEP_SECONDS if self._hard else _GRACE_LOOK_SECONDS
            self._loop.later(pause, self._sweep)
            return
        self._tree_ended = True
        self._look()

    def _give_up(self) -> None:
        """Something cannot be killed now (it hangs in the kernel): answer, and go on trying."""
        if self._done is not None:
            self._answer()

    # --- the answer -------------------------------------------------------------------------------------------------

    def _answer(self, failure: str | None = None) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        self._all.running.pop(self._number, None)
        for timer in self._timers:
            timer.cancel()
        self._let_go_of_pipes()
        survivors, more_survivors = self._all.survivors(self._number) if self._number else ((), 0)
        if failure is not None:
            done(failure)
            return
        exit_code, by_signal = self._exit()
        killed_by, notices = self._why(exit_code)
        stdout, stderr = [capture.finish() for _, capture in self._streams] or (NOTHING, NOTHING)
        done(
            RawResult(
                exit_code=exit_code,
                signal=by_signal,
                timed_out=self._kill_reason == "timeout",
                timeout_seconds=self._timeout_seconds,
                aborted=self._kill_reason == "abort",
                stdout=stdout,
                stderr=stderr,
                survivors=survivors,
                more_survivors=more_survivors,
                duration_ms=round((time.monotonic() - self._began) * 1000),
                killed_by=killed_by,
                notices=(*notices, *self._all.take_notices(self._session)),
            )
        )

    def _exit(self) -> tuple[int, int | None]:
        by_signal = os.WTERMSIG(self._status) if self._status is not None and os.WIFSIGNALED(self._status) else None
        if self._kill_reason is not None:
            return _EXIT_CODES[self._kill_reason], by_signal
        assert self._status is not None
        return (128 + by_signal if by_signal else os.WEXITSTATUS(self._status)), by_signal

    def _why(self, exit_code: int) -> tuple[str | None, tuple[str, ...]]:
        """What killed it, and a notice, where it was not its own doing."""
        if self._kill_reason == "tasks":
            return self._all.too_many_tasks, ()
        if self._kill_reason is None and exit_code and self._all.out_of_memory.struck_since(self._began):
            if exit_code == 128 + signal.SIGKILL:
                return "the kernel, out of memory", ()
            return None, ("While it ran, the kernel killed a process because memory had run out.",)
        return None, ()

    def _let_go_of_pipes(self) -> None:
        """What still holds them goes on: its later writes are read and thrown away, so that they neither block nor
        kill it."""
        for pipe, _ in self._open_streams():
            if self._watching:
                self._loop.unwatch(pipe.descriptor)
            _discard(self._loop, pipe)

    def _later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = self._loop.later(seconds, callback)
        self._timers.append(timer)
        return timer


def _discard(loop: Loop, pipe: Pipe) -> None:
    def readable() -> None:
        taken = 0
        while taken < _DISCARD_BYTES:
            piece = pipe.read()
            if piece is None:
                return
            if not piece:
                loop.unwatch(pipe.descriptor)
                pipe.close()
                return
            taken += len(piece)
        loop.unwatch(pipe.descriptor)
        loop.later(_DISCARD_PAUSE, lambda: loop.watch(pipe.descriptor, readable))

    loop.watch(pipe.descriptor, readable)
