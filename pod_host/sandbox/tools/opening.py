"""Opening what a model names, for reading: regular files alone, and never a call that waits."""

from __future__ import annotations

import os
import re
import stat
from typing import Final

from pod_host.sandbox.tools.workspace import ToolFailure

_OWN_DESCRIPTORS: Final = re.compile(
    r"/dev/std(in|out|err)$|(/dev/fd|/proc/(self|thread-self|[0-9]+)(/task/[0-9]+)?/fd(info)?)(/|$)"
)
BINARY_SAMPLE: Final = 8192  # bytes from the start that are looked at for a NUL: as git and grep judge what is text


def open_regular(path: str) -> int:
    """A descriptor on the regular file at ``path`` (absolute), links followed.

    Raises ``ToolFailure``: ``sandbox.not_found`` when there is none, ``sandbox.error`` for anything that is not a
    regular file and for what may not be read.
    """
    if _OWN_DESCRIPTORS.match(path):
        raise ToolFailure("sandbox.error", f"{path} is an open descriptor of a process, not a file of its own.")
    try:
        # Looked at first, opened after: to open a FIFO disturbs its writer, to open a device may do anything.
        # Without waiting, and looked at again: what lies there may have been changed between the two.
        require_regular(path, os.stat(path))
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise ToolFailure("sandbox.not_found", f"No file at {path}") from None
    except OSError as error:
        raise ToolFailure("sandbox.error", f"Could not read {path}: {error.strerror}") from None
    try:
        require_regular(path, os.fstat(descriptor))
    except ToolFailure:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(path: str, status: os.stat_result, code: str = "sandbox.error") -> None:
    """Raises ``ToolFailure`` with ``code`` unless ``status`` is of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise ToolFailure(code, f"{path} is {kind_of(status.st_mode)}, not a regular file.")


def kind_of(mode: int) -> str:
    """What an entry of the file system is, in words."""
    kinds = {
        stat.S_IFREG: "a regular file",
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a character device",
        stat.S_IFBLK: "a block device",
        stat.S_IFLNK: "a symbolic link",
    }
    return kinds.get(stat.S_IFMT(mode), "a special file")


def refuse_binary(path: str, start: bytes) -> None:
    """Raises ``sandbox.binary`` when ``start``, the first bytes of the file at ``path``, holds a NUL."""
    if b"\0" in start[:BINARY_SAMPLE]:
        raise ToolFailure("sandbox.binary", f"{path} is a binary file (it holds NUL bytes). Look at it with bash.")


def utf8(text: str, member: str) -> bytes:
    """``text`` as UTF-8. JSON may hold half of a surrogate pair, a file of text may not: ``sandbox.not_text``."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolFailure(
            "sandbox.not_text",
            f"{member} holds half of a surrogate pair (\\u{ord(text[error.start]):04x}) at character {error.start},"
            " which UTF-8 cannot hold. Nothing was changed.",
        ) from None
