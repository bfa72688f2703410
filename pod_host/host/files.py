"""Small files of the host's own, in its directory: replaced whole or not at all, and on the disk when it says so."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def reclaim(path: Path) -> None:
    """Gives us back what a command may have taken: no domain stops a chmod, and in a pod a command's user is our own. Does
    what it can, for the path and its directory."""
    for place in (path.parent, path):
        with contextlib.suppress(OSError):
            mode = os.lstat(place).st_mode
            ours = 0o700 if stat.S_ISDIR(mode) else 0o600
            if not stat.S_ISLNK(mode) and mode & ours != ours:
                os.chmod(place, stat.S_IMODE(mode) | ours)


def read_small(path: Path, most: int, *, follow: bool = False) -> bytes:
    """The content of a regular file of at most ``most`` bytes. Raises OSError; never waits: the name could be a FIFO's.
    ``follow``: a link at its end too."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except PermissionError:
        reclaim(path)
        descriptor = os.open(path, flags)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"{path} holds more than {most} bytes")
    return content


def replace(path: Path, content: bytes, mode: int, *, durable: bool) -> None:
    """Write beside ``path`` and rename: whoever opens it reads the old content or the new, whole. ``durable``: both the
    content and the name have reached the disk on return. Raises OSError."""
    beside = path.with_name(f".{path.name}.new")
    reclaim(beside)
    remove(beside)  # left by a crash
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, mode)  # whatever the umask says
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]
            if durable:
                os.fsync(descriptor)
        os.replace(beside, path)
    except OSError:
        remove(beside)  # a full disk: half a file would fill it further
        raise
    if durable:
        sync_directory(path.parent)


def replace_link(path: Path, target: str) -> None:
    """Make ``path`` a symbolic link to ``target``, with no moment at which it is missing. Raises OSError."""
    beside = path.with_name(f".{path.name}.new")
    remove(beside)
    os.symlink(target, beside)
    os.replace(beside, path)


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
