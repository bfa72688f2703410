"""File operations that are no tools: setup's files, its log, plain bytes. Run in a thread of the worker.

What may be reached at all is the kernel's business (the worker's domain); what is refused here is refused to tell the
caller of its mistake.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pod_host.sandbox.outcomes import Completed, Failed, Outcome
from pod_host.sandbox.tools.opening import open_regular
from pod_host.sandbox.tools.workspace import ToolFailure

_MODE: Final = 0o644
_LISTED: Final = 10  # entries that a listing looks at for each file that it may name: directories and links cost too


@dataclass(frozen=True, slots=True)
class FileOperations:
    workspace: str
    home: str

    def put(self, path: str, content: bytes | memoryview, mode: int | None) -> Outcome:
        """A whole file into the workspace, by rename."""
        place = self._inside(self.workspace, path)
        if isinstance(place, Failed):
            return place
        directory = os.path.dirname(place)
        beside = os.path.join(directory, f".{os.urandom(6).hex()}.tmp")
        try:
            if self._leads_out(directory):  # asked before directories are made in it, and of what they then are
                return _led_out(path)
            os.makedirs(directory, exist_ok=True)
            if self._leads_out(directory):
                return _led_out(path)
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            return _failed("sandbox.write_failed", "write", path, error)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                view = memoryview(content)
                while view:
                    view = view[file.write(view) :]
                os.fchmod(descriptor, _MODE if mode is None else mode & 0o777)
            os.rename(beside, place)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            return _failed("sandbox.write_failed", "write", path, error)
        return Completed({"path": place, "bytes": len(content)})

    def append(self, path: str, text: str) -> Outcome:
        """Text at the end of a file in the commands' home."""
        place = self._inside(self.home, path)
        if isinstance(place, Failed):
            return place
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(os.open(place, flags, _MODE), "ab", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return Failed("sandbox.special_file", f"{place} is not a regular file.")
                view = memoryview(text.encode("utf-8", "replace"))
                while view:
                    view = view[file.write(view) :]
        except OSError as error:
            return _failed("sandbox.write_failed", "write", path, error)
        return Completed({"path": place})

    def read(self, path: str, offset: int, length: int) -> Outcome:
        """Some bytes of a regular file, and its whole size."""
        place = os.path.join(self.workspace, path)
        try:
            descriptor = open_regular(place)
        except ToolFailure as failure:
            return Failed(failure.code, failure.message)
        except ValueError as error:  # a NUL, or half a surrogate pair
            return _failed("sandbox.error", "read", repr(path), error)
        try:
            status = os.fstat(descriptor)
            pieces = []
            while length > 0 and (piece := os.pread(descriptor, min(length, 1 << 20), offset)):
                pieces.append(piece)
                offset += len(piece)
                length -= len(piece)
            return Completed({"bytes": b"".join(pieces), "size": status.st_size})
        except OSError as error:
            return _failed("sandbox.error", "read", path, error)
        finally:
            os.close(descriptor)

    def list(self, path: str, most: int) -> Outcome:
        """The regular files below a directory of the workspace, by path: at most ``most``."""
        root = os.path.join(self.workspace, path)
        files: list[tuple[str, int | None]] = []
        more = False
        try:
            is_directory = stat.S_ISDIR(os.lstat(root).st_mode)
            for seen, (name, entry) in enumerate(_below(root) if is_directory else (), 1):
                with contextlib.suppress(FileNotFoundError):  # it went as we looked
                    if entry is None or entry.is_file(follow_symlinks=False):
                        files.append((name, _size(entry)))
                more = len(files) > most or seen > _LISTED * (most + 1)
                if more:
                    break
        except (FileNotFoundError, NotADirectoryError):
            pass  # no such directory: no files
        except (OSError, ValueError) as error:
            return _failed("sandbox.error", "list", path, error)
        return Completed({"bytes": json.dumps(sorted(files)[:most]).encode(), "more": more})

    def _leads_out(self, directory: str) -> bool:
        """Whether links take it out of the workspace."""
        return not _within(os.path.realpath(directory), os.path.realpath(self.workspace))

    @staticmethod
    def _inside(root: str, path: str) -> str | Failed:
        """The absolute path, when the text of it stays below ``root``."""
        try:
            path.encode()
        except UnicodeEncodeError:
            return Failed(
                "sandbox.write_failed", f"{path!a} is no text that can name a file: it holds half of a surrogate pair."
            )
        place = os.path.normpath(os.path.join(root, path))
        if "\0" in path or ".." in path.split("/") or place == root or not _within(place, root):
            return Failed("sandbox.outside_workspace", f"{path!r} does not name a file below {root}.")
        return place


def _below(root: str) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """All that lies below a directory, links not followed, with its path from there; None for a directory there that may
    not be read."""
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            entries = os.scandir(os.path.join(root, below))
        except FileNotFoundError:
            continue
        except PermissionError:
            if not below:
                raise
            yield below, None
            continue
        with entries:
            for entry in entries:
                name = below + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{name}/")
                yield name, entry


def _size(entry: os.DirEntry[str] | None) -> int | None:
    """None where it may not be looked at."""
    try:
        return entry.stat(follow_symlinks=False).st_size if entry else None
    except PermissionError:
        return None


def _led_out(path: str) -> Failed:
    return Failed("sandbox.outside_workspace", f"{path} leads out of the workspace by a link.")


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _failed(code: str, doing: str, path: str, error: OSError | ValueError) -> Failed:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Failed(code, f"Could not {doing} {path}: {reason}.")
