"""Whole outputs on disk, so that the model can read on where its text was cut. Bounded: the oldest file goes first."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict

from pod_host import limits


class SpoolFile:
    """One stream's bytes from the start, up to ``limits.SPOOL_STREAM_BYTES``."""

    def __init__(self, spool: Spool, path: str, descriptor: int | None) -> None:
        self._spool = spool
        self._path = path
        self._descriptor = descriptor
        self._size = 0

    def write(self, piece: bytes) -> None:
        if self._descriptor is None:
            return
        room = limits.SPOOL_STREAM_BYTES - self._size
        view = memoryview(piece)[:room]
        try:
            while view:
                written = os.write(self._descriptor, view)
                view = view[written:]
                self._size += written
        except OSError:
            self._drop()  # a full disk: half a file that passes for a whole one is worse than none
            return
        self._spool.grew(self._path, self._size)

    def close(self, *, keep: bool) -> str | None:
        """The path of the file, None when there is none (not wanted, or it could not be kept)."""
        if self._descriptor is None:
            return None
        if not keep:
            self._drop()
            return None
        os.close(self._descriptor)
        self._descriptor = None
        return self._path if os.path.exists(self._path) else None

    def _drop(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._spool.remove(self._path)


class Spool:
    """The spool directory. What an earlier worker left in it counts, and is the first to go."""

    def __init__(self, directory: str, most_bytes: int = limits.SPOOL_TOTAL_BYTES) -> None:
        self._directory = directory
        self._most = most_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()  # oldest first
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(directory):
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, entry.path, status.st_size))
        for _, path, size in sorted(found):
            self._sizes[path] = size
        self._total = sum(self._sizes.values())

    def open(self, name: str) -> SpoolFile:
        path = os.path.join(self._directory, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            directory = self._open_directory()
            try:
                descriptor: int | None = os.open(name, flags, 0o600, dir_fd=directory)
            finally:
                os.close(directory)
            self._sizes[path] = 0
        except OSError:
            descriptor = None  # a disk that a command filled, say: the output is shown all the same, cut
        return SpoolFile(self, path, descriptor)

    def _open_directory(self) -> int:
        """The spool directory, made anew when a command removed it or put something else in its place."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self._directory, flags)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                os.unlink(self._directory)
            elif error.errno != errno.ENOENT:
                raise
        os.mkdir(self._directory, 0o700)
        return os.open(self._directory, flags)

    def grew(self, path: str, size: int) -> None:
        if path in self._sizes:
            self._total += size - self._sizes[path]
            self._sizes[path] = size
        while self._total > self._most and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            if oldest == path:
                self._sizes.move_to_end(path)  # the one that is written goes last
                continue
            self.remove(oldest)

    def remove(self, path: str) -> None:
        self._total -= self._sizes.pop(path, 0)
        with contextlib.suppress(OSError):
            os.unlink(path)
