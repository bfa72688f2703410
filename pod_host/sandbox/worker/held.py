"""Shells that wait: a bash that has started, with its environment and in its directory, and gets its script later.

A fresh `bash -c SCRIPT` takes a millisecond to start; this one has done so before it is wanted, or is on its way. It is
started as `bash -c BLANKS` with BASH_ENV naming a pipe, the gate: bash comes as far as reading that file, and blocks.
Whoever has a script for it writes the script over the blanks, where bash will look for it next, and a line into the gate
that undoes what can be seen of all this. From there on bash does what it does with any argument of -c: the same parser,
line numbers, messages and exit codes. What still differs is listed in docs/shells.md.

A gate that ends with nothing in it lets bash run the blanks, and exit: a shell that nobody wants leaves by itself.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pod_host.sandbox.worker.capture import two_pipes
from pod_host.sandbox.worker.loop import Loop
from pod_host.sandbox.worker.shell import environment_bytes
from pod_host.sandbox.worker.spawn import Spawn
from pod_host.sandbox.worker.spawner import Spawner
from pod_host.sandbox.worker.zygote_protocol import GATE_DESCRIPTOR, Program

SCRIPT_BYTES: Final = 3583  # the longest script that a held shell takes
_LINE_BYTES: Final = select.PIPE_BUF  # of the line in the gate: so much goes whole or not at all, however full it is
_NAME: Final = b"bash"
_BLANKS: Final = b" " * SCRIPT_BYTES
_ARGUMENTS: Final = b"\0".join([_NAME, b"-c", _BLANKS[:64]])  # how its arguments begin in its memory
_SCRIPT_AT: Final = len(_NAME) + len(b"\0-c\0")
_ARGUMENTS_BYTES: Final = _SCRIPT_AT + SCRIPT_BYTES + len(b"\0")
_GATE: Final = b"/proc/self/fd/%d" % GATE_DESCRIPTOR
_OPEN: Final = b"exec %d<&-; unset -v BASH_ENV" % GATE_DESCRIPTOR
_LOOKS_AT_ONCE: Final = 5  # for its arguments: they lie there some microseconds after it is said to execute
_LOOKS: Final = 60  # … or later, where there is much else to do
_LOOK_SECONDS: Final = 0.001

# What bash reads of its environment before the gate, or what would change how the line in the gate is read.
_NOT_WITH: Final = frozenset(
    {
        "BASH_ENV", "BASHOPTS", "BASH_COMPAT", "BASH_EXECUTION_STRING", "ENV", "POSIXLY_CORRECT", "POSIX_PEDANTIC",
        "SECONDS", "SHELLOPTS", "SSH_CLIENT", "SSH2_CLIENT", "_",
    }
)  # fmt: skip
_FUNCTION: Final = "BASH_FUNC_"


@dataclass(frozen=True, slots=True)
class Kind:
    """What shells have in common that can do the same. ``environment``: but for ``TRACEPARENT``."""

    environment: Mapping[str, str]
    cwd: str
    program: Program

    @classmethod
    def of(cls, path: str, environment: Mapping[str, str], cwd: str) -> Kind | None:
        """None: a shell with this environment cannot be held."""
        if _NOT_WITH & environment.keys() or any(name.startswith(_FUNCTION) for name in environment):
            return None
        variables = environment_bytes(environment) | {b"BASH_ENV": _GATE}
        return cls(environment, cwd, Program(path, [_NAME, b"-c", _BLANKS], variables, cwd))


class HeldShell:
    """One shell, for one script. Making it raises ``OSError`` when there are no descriptors left.

    ``settled()`` comes once: it is ``ready`` for its script, or over. ``out`` and ``err`` are its streams' reading ends,
    which belong to whoever lets it run."""

    def __init__(self, loop: Loop, spawner: Spawner, kind: Kind) -> None:
        self._loop = loop
        self.kind = kind
        self.ready = False
        self.settled: Callable[[], None] = _nothing
        self.wanted = time.monotonic()  # when last somebody asked for such a one
        self._ended: Callable[[int], None] | None = None
        self.over = False  # it was discarded, or could not be started, or has ended
        self._looks = 0
        self._memory = self._gate = -1
        self._script_at = 0
        self._place: tuple[int, int] | None = None  # device and inode of its directory
        self.out, stdout, self.err, stderr = two_pipes()
        try:
            gate, self._gate = os.pipe2(os.O_CLOEXEC)
        except OSError:
            for descriptor in (self.out, stdout, self.err, stderr):
                os.close(descriptor)
            raise
        os.set_blocking(self._gate, False)
        self.number, tag = spawner.next_tag()
        self._spawn = Spawn(
            kind.program, tag, stdout, stderr, gate=gate,
            started=self._look, failed=self._has_failed, ended=self._has_ended,
        )  # fmt: skip
        spawner.spawn(self._spawn)

    @property
    def pid(self) -> int | None:
        return self._spawn.pid

    def run(self, script: bytes, traceparent: str | None, ended: Callable[[int], None]) -> bool:
        """Lets it go. False: it did not take the script, and never will. ``ended(wait status)`` comes once."""
        if not self._takes(script, traceparent):
            self.discard()
            return False
        assert self._spawn.pid is not None
        os.kill(self._spawn.pid, signal.SIGCONT)  # a command may be about to have stopped it
        self._ended = ended
        self._close_controls()
        return True

    def _takes(self, script: bytes, traceparent: str | None) -> bool:
        whole = script.ljust(SCRIPT_BYTES, b"\0")
        line = _last_words(script, traceparent)
        try:
            place = os.stat(self.kind.cwd)
            return (
                self.ready
                and not self.over
                and len(line) <= _LINE_BYTES
                and self._spawn.watched is not None
                and self._spawn.watched.waits_unharmed
                and (place.st_dev, place.st_ino) == self._place  # nobody put another directory there
                and os.pwrite(self._memory, whole, self._script_at) == len(whole)
                and os.write(self._gate, line) == len(line)
            )
        except OSError:  # it is dead, its directory gone, or its gate has no room: it has read nothing
            return False

    def discard(self) -> None:
        """It is not wanted any more, and has not run. Nothing more comes of it."""
        if self.over:
            return
        self.over = True
        self.settled = _nothing
        self._kill()  # before its gate ends: the script may be in its memory by now
        self._close_controls()
        os.close(self.out)
        os.close(self.err)

    def _kill(self) -> None:
        """It would go by itself, unless it was stopped."""
        if self._spawn.pid is not None:
            os.kill(self._spawn.pid, signal.SIGKILL)  # not collected: the number is still its own

    def _close_controls(self) -> None:
        os.close(self._gate)
        if self._memory >= 0:
            os.close(self._memory)

    # --- its start, and its end --------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self.over:
            self._kill()
            return
        self._looks += 1
        if self._find_script():
            self.ready = True
            self.settled()
        elif self._looks < _LOOKS_AT_ONCE:
            self._loop.soon(self._look)
        elif self._looks < _LOOKS:
            self._loop.later(_LOOK_SECONDS, self._look)
        else:
            self._give_up()

    def _give_up(self) -> None:
        settled = self.settled
        self.discard()
        settled()

    def _find_script(self) -> bool:
        pid, watched = self._spawn.pid, self._spawn.watched
        if pid is None or watched is None:
            return False
        memory = -1
        try:
            memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
            start, end = watched.arguments
            if end - start == _ARGUMENTS_BYTES and os.pread(memory, len(_ARGUMENTS), start) == _ARGUMENTS:
                place = os.stat(f"/proc/{pid}/cwd")
                self._memory, self._script_at, self._place = memory, start + _SCRIPT_AT, (place.st_dev, place.st_ino)
                return True
        except OSError:  # not ours to touch, or not there yet: the memory is the zygote's until the program is executed
            pass
        if memory >= 0:
            os.close(memory)
        return False

    def _has_failed(self, _: str) -> None:
        self._give_up()

    def _has_ended(self, status: int) -> None:
        self._spawn.pid = None
        if self._ended is not None:
            self._ended(status)
        else:
            self._give_up()


def _nothing() -> None:
    pass


def _last_words(script: bytes, traceparent: str | None) -> bytes:
    """What bash reads at its gate: it closes the gate, and sets what a fresh shell with this script would have."""
    trace = b"export TRACEPARENT=%s; " % _quoted(os.fsencode(traceparent)) if traceparent is not None else b""
    return b"%s; %sSECONDS=0 BASH_EXECUTION_STRING=%s; : %s" % (_OPEN, trace, _quoted(script), _NAME)


def _quoted(text: bytes) -> bytes:
    return b"'" + text.replace(b"'", b"'\\''") + b"'"
