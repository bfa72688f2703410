"""What a tool is given: the workspace's root, a way to run a search program, and a lock per path.

Nothing here knows of sockets, of asyncio or of the host. The standard library only: the worker is to stay small.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol


class ToolFailure(Exception):
    """An expected problem, for the model: becomes ``Failed(code, message)``. Never leaves ``run_file_tool``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class SearchEnd:
    """How a search program ended."""

    exit_code: int  # its own code; 128 + signal when a signal ended it
    stderr: str  # decoded as UTF-8 with replacement; the first 8 KiB are enough
    timed_out: bool  # it was killed because ``timeout_seconds`` were over


class SearchRun(Protocol):
    """A search program that runs: iterate its output, then ask how it ended.

    Used by one thread, once, in this order: ``for piece in run``, perhaps broken off early, then ``run.end()``.
    """

    def __iter__(self) -> Iterator[bytes]:
        """Stdout as it comes, in pieces of any size (64 KiB are good), nothing held back, nothing kept.

        Ends when the program closed its stdout, or when its time is over (then the program is killed, and ``end()``
        says ``timed_out``). Stderr is drained meanwhile, so that a full pipe never blocks the program.
        """

    def end(self) -> SearchEnd:
        """How it ended. Kills the program when it still runs (output broken off early), reaps it, never blocks long."""


class RunSearch(Protocol):
    """Starts a search program (ripgrep, or grep where there is no ripgrep). Supplied by the worker.

    ``with run_search(argv, cwd=…, timeout_seconds=…) as run:`` Leaving the block kills what still runs and closes the
    pipes, whatever happened in it; it never raises of itself.

    * ``argv[0]`` is an absolute path; there is no shell. Arguments are str and may hold surrogate escapes
      (``os.fsencode`` gives their bytes); none holds a NUL. An argument may be long: a pattern is the model's.
    * ``cwd`` is an absolute directory. Stdin is /dev/null, and the session is the program's own: no terminal.
    * The program runs with what the commands may do, no more, and with an environment of no consequence.
    * ``OSError`` when the program cannot be started or ``cwd`` cannot be entered.
    """

    def __call__(
        self, argv: Sequence[str], *, cwd: str, timeout_seconds: float
    ) -> AbstractContextManager[SearchRun]: ...


class PathLocks:
    """One lock per path, made when it is wanted and dropped when nobody holds or awaits it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[str, tuple[threading.Lock, int]] = {}  # path: its lock, and how many hold or await it

    @contextmanager
    def holding(self, path: str) -> Iterator[None]:
        """Holds ``path`` (a real path: two links to one file are one lock) for the block."""
        with self._guard:
            lock, users = self._held.get(path, (threading.Lock(), 0))
            self._held[path] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._held[path]
                if users == 1:
                    del self._held[path]
                else:
                    self._held[path] = (lock, users - 1)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where the tools work. One for the worker's life: its locks hold across sessions.

    ``root``: absolute directory that relative paths start from. ``ripgrep``: the absolute path of rg, or None when the
    image has none; the tools then fall back to grep and to a walk of their own. ``read_only``: directories, real paths, that
    the worker itself may write and no tool does.
    """

    root: str
    run_search: RunSearch
    ripgrep: str | None
    locks: PathLocks = field(default_factory=PathLocks)
    read_only: tuple[str, ...] = ()

    def require_writable(self, path: str, real: str) -> None:
        """Raises ``ToolFailure`` when ``real``, the real path of ``path``, is read-only."""
        if any(real == root or real.startswith(f"{root}/") for root in self.read_only):
            raise ToolFailure("sandbox.write_failed", f"Could not write {path}: skills are read-only.")

    def resolve(self, path: str) -> str:
        """The absolute, normalised form of ``path``. Links are not looked at, and nothing is forbidden here: the
        kernel's domain around the worker decides what it may touch.

        Raises ``ToolFailure`` for a text that cannot be a path: a NUL, or half a surrogate pair.
        """
        try:
            path.encode()  # not os.fsencode: it would take some halves for bytes, which no answer could then hold
        except UnicodeEncodeError:
            shown = path.encode("utf-8", "backslashreplace").decode()
            raise ToolFailure("sandbox.not_found", f"No file at {shown}: half of a surrogate pair names none") from None
        if "\0" in path:
            raise ToolFailure("sandbox.not_found", f"No file at {path!r}: a path holds no NUL")
        return os.path.normpath(os.path.join(self.root, path))
