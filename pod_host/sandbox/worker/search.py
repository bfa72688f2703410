"""Search programs (ripgrep, grep) for the tools that run in threads: started through the zygote as commands are."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pod_host import limits
from pod_host.sandbox.tools.workspace import SearchEnd
from pod_host.sandbox.worker.capture import Pipe, two_pipes
from pod_host.sandbox.worker.machinery import Machinery
from pod_host.sandbox.worker.spawn import Spawn
from pod_host.sandbox.worker.zygote_protocol import Program

_PAUSE_SECONDS: Final = 0.002  # between two looks at its output: at each piece, it would be interrupted for each
_STDERR_BYTES: Final = 8 * 1024
_LAST_WORDS_SECONDS: Final = 1.0  # between the end of its output and its own
_END_SECONDS: Final = limits.KILL_MOST_SECONDS
_ENVIRONMENT: Final = {b"PATH": b"/usr/local/bin:/usr/bin:/bin", b"LANG": b"C.UTF-8"}


class Cancellation:
    """An abort that reaches into a thread: what runs for the call is killed, and starts no more."""

    def __init__(self) -> None:
        self.aborted = False
        self._searches: set[Search] = set()

    def abort(self) -> None:
        """To be called from the loop."""
        self.aborted = True
        for search in set(self._searches):
            search.kill()

    def add(self, search: Search) -> None:
        self._searches.add(search)
        if self.aborted:
            search.kill()

    def remove(self, search: Search) -> None:
        self._searches.discard(search)


class Search:
    """One program that runs. Iterated and ended by the thread that started it."""

    def __init__(
        self, machinery: Machinery, argv: Sequence[str], executable: int | None, cwd: str, timeout_seconds: float
    ) -> None:
        self._all = machinery
        self._deadline = time.monotonic() + timeout_seconds
        self._known = threading.Event()  # it runs, or could not be started
        self._over = threading.Event()
        self._failure: str | None = None
        self._status = 0
        self._number = 0
        self._timed_out = False
        self._at_end = False
        self._errors = b""
        out, stdout, err, stderr = two_pipes()
        self._out, self._err = Pipe(out), Pipe(err)

        def begin() -> None:
            self._number, tag = machinery.spawner.next_tag()
            machinery.spawner.spawn(
                Spawn(
                    Program(argv[0], [os.fsencode(argument) for argument in argv], _ENVIRONMENT, cwd),
                    tag,
                    stdout,
                    stderr,
                    executable=executable,
                    started=self._known.set,
                    failed=self._failed,
                    ended=self._ended,
                )
            )

        machinery.loop.from_thread(begin)

    def wait_started(self) -> None:
        self._known.wait()
        if self._failure is not None:
            raise OSError(self._failure)

    def _failed(self, message: str) -> None:
        self._failure = message
        self._over.set()
        self._known.set()

    def _ended(self, status: int) -> None:
        self._status = status
        self._known.set()
        self._over.set()

    def kill(self) -> None:
        """To be called from the loop."""
        if not self._over.is_set():
            self._all.signal(lambda number: number == self._number, signal.SIGKILL)

    def __iter__(self) -> Iterator[bytes]:
        while True:
            if time.monotonic() >= self._deadline:
                self._timed_out = True
                self._all.loop.from_thread(self.kill)
                return
            piece = self._out.read()
            if piece:
                yield piece
            elif piece is None:
                self._read_errors()  # a full pipe must not hold it up
                if self._over.wait(_PAUSE_SECONDS):  # it has ended, and somebody holds its pipe open
                    time.sleep(_PAUSE_SECONDS)
            else:
                self._at_end = True
                return

    def end(self) -> SearchEnd:
        self._read_errors()
        if self._at_end:
            self._over.wait(_LAST_WORDS_SECONDS)
        if not self._over.is_set():
            self._all.loop.from_thread(self.kill)
            self._over.wait(_END_SECONDS)
        self._read_errors()
        by_signal = os.WTERMSIG(self._status) if os.WIFSIGNALED(self._status) else 0
        code = 128 + by_signal if by_signal else os.WEXITSTATUS(self._status)
        return SearchEnd(code, self._errors.decode("utf-8", "replace"), self._timed_out)

    def _read_errors(self) -> None:
        while piece := self._err.read():
            self._errors = (self._errors + piece)[:_STDERR_BYTES]

    def close(self) -> None:
        if not self._over.is_set():
            self._all.loop.from_thread(self.kill)
            self._over.wait(_END_SECONDS)
        self._out.close()
        self._err.close()


class SearchRunner:
    """The tools' ``run_search``. ``ripgrep`` is executed by ``descriptor``: its path may lie where commands cannot go.

    ``current`` holds, per thread, the cancellation of the call that the thread works on.
    """

    def __init__(self, machinery: Machinery, ripgrep: str | None, descriptor: int | None) -> None:
        self._machinery = machinery
        self._ripgrep = ripgrep
        self._descriptor = descriptor
        self.current = threading.local()

    @contextmanager
    def __call__(self, argv: Sequence[str], *, cwd: str, timeout_seconds: float) -> Iterator[Search]:
        executable = self._descriptor if argv[0] == self._ripgrep else None
        search = Search(self._machinery, argv, executable, cwd, timeout_seconds)
        cancellation: Cancellation = self.current.cancellation
        try:
            search.wait_started()
            self._machinery.loop.from_thread(lambda: cancellation.add(search))
            yield search
        finally:
            self._machinery.loop.from_thread(lambda: cancellation.remove(search))
            search.close()
