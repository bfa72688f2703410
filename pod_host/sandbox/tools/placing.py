"""Putting new content in a file's place, whole or not at all where the file system allows it.

The way is a new file beside the old one that is renamed over it: whoever reads sees the old content or the new, and a
full disk leaves the old one whole. The new file gets the old one's mode, owner, group, ACL and user attributes. A file
of mode 0444 is replaced too, as ``mv`` would: its directory is ours to write, and its mode is kept.

In place, and so perhaps seen half written, is written only where a rename would break something: a file with further
hard links, an owner, group or attribute that we may not give to a new file, a directory that we may not write, a mount
point. There the file's own permissions decide.

The directory is opened by its real path, step by step and following no link, and everything then happens relative to
it: a directory that a command swaps for a link meanwhile leads nowhere else.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pod_host.sandbox.tools.opening import require_regular
from pod_host.sandbox.tools.workspace import ToolFailure

_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMELESS: Final = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
_REFUSED: Final = (errno.EPERM, errno.EACCES, errno.EROFS, errno.EBUSY)  # a rename is not ours to do: write in place
_ATTRIBUTES: Final = ("user.", "system.posix_acl_")  # what an owner may set; the rest is the kernel's own


class _CannotReplace(Exception):
    """The file cannot be replaced by a new one that is like it."""


def put(path: str, real: str, content: bytes) -> None:
    """Makes ``content`` the content of ``real``, a path without links, with its missing parent directories.

    ``path`` is what messages call it. Raises ``ToolFailure`` with ``sandbox.write_failed``.
    """
    if real.startswith("/proc/"):  # /proc/self would be the worker itself
        raise ToolFailure("sandbox.write_failed", f"{path} is the kernel's own: write it with bash.")
    parent, name = os.path.split(real)
    name = name or "."  # the root
    with _directory(parent) as directory:
        try:
            old = os.lstat(name, dir_fd=directory)
        except FileNotFoundError:
            old = None
        except OSError as error:
            raise _failure(path, error, "") from None
        if old is not None:
            require_regular(path, old, "sandbox.write_failed")
        try:
            if old is not None and old.st_nlink > 1:
                raise _CannotReplace
            _replace(directory, name, old, content)
        except _CannotReplace:
            _overwrite(path, directory, name, content)
        except OSError as error:
            raise _failure(path, error, "" if old is None else " Its old content is unchanged.") from None


def _failure(path: str, error: OSError, consequence: str) -> ToolFailure:
    return ToolFailure("sandbox.write_failed", f"Could not write {path}: {error.strerror}.{consequence}")


@contextmanager
def _directory(path: str) -> Iterator[int]:
    """A descriptor on the directory at ``path``, absolute and without links; what is missing of it is made."""
    descriptor = _there(path)
    if descriptor is not None:
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        return
    descriptor = os.open("/", _DIRECTORY)
    try:
        for step in path.split("/"):
            if step:
                try:
                    below = _step(descriptor, step)
                except OSError as error:
                    raise ToolFailure("sandbox.write_failed", f"Could not create {path}: {error.strerror}") from None
                os.close(descriptor)
                descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _there(path: str) -> int | None:
    """The same in one step, where the kernel says of what was opened that it is what ``path`` says: no link led there."""
    try:
        descriptor = os.open(path, _DIRECTORY)
    except (OSError, ValueError):
        return None
    with suppress(OSError):
        if os.readlink(f"/proc/self/fd/{descriptor}") == path:
            return descriptor
    os.close(descriptor)
    return None


def _step(directory: int, name: str) -> int:
    """Goes one step down, making the directory when it is missing."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except FileNotFoundError:
        with suppress(FileExistsError):  # another call, or a command, was first
            os.mkdir(name, dir_fd=directory)
        return os.open(name, _DIRECTORY, dir_fd=directory)


def _replace(directory: int, name: str, old: os.stat_result | None, content: bytes) -> None:
    """A new file like ``old``, renamed over it. Leaves nothing behind when it fails."""
    temporary = f".pod-host-{secrets.token_hex(8)}"  # not made from the name: that may be as long as names can be

    def fill(descriptor: int) -> None:
        if old is not None:
            _liken(descriptor, old, f"/proc/self/fd/{directory}/{name}")
        _write_all(descriptor, content)

    try:
        if not _appear(directory, temporary, fill):
            _grow(directory, temporary, fill)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException as fault:  # whatever it was, a killed thread included: no litter in the user's directory
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        if old is not None and isinstance(fault, OSError) and fault.errno in _REFUSED:
            raise _CannotReplace from None
        raise


def _appear(directory: int, name: str, fill: Callable[[int], None]) -> bool:
    """Makes a file without a name, fills it and gives it its name: a worker that is killed meanwhile leaves nothing half
    written. False where the file system, or what is confined of us, does not let us."""
    try:
        descriptor = os.open(".", _NAMELESS, 0o666, dir_fd=directory)
    except OSError:
        return False
    try:
        fill(descriptor)
        try:
            os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)
        except OSError:
            return False
    finally:
        os.close(descriptor)
    return True


def _grow(directory: int, name: str, fill: Callable[[int], None]) -> None:
    """Makes a file that has its name from the beginning, and fills it."""
    descriptor = os.open(name, _NEW, 0o666, dir_fd=directory)
    try:
        fill(descriptor)
    finally:
        os.close(descriptor)


def _liken(descriptor: int, old: os.stat_result, old_path: str) -> None:
    """Gives the new file what the old one has. Raises ``_CannotReplace`` where that is not ours to give."""
    new = os.fstat(descriptor)
    try:
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            os.fchown(descriptor, old.st_uid, old.st_gid)
        # A write takes set-uid and set-gid away; so does a replacement.
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
        for attribute in os.listxattr(old_path, follow_symlinks=False):
            if attribute.startswith(_ATTRIBUTES):
                value = os.getxattr(old_path, attribute, follow_symlinks=False)
                os.setxattr(descriptor, attribute, value)
    except OSError as error:
        if error.errno == errno.ENOTSUP:  # a file system without attributes: nothing to lose
            return
        raise _CannotReplace from None


def _overwrite(path: str, directory: int, name: str, content: bytes) -> None:
    """Writes into the file itself. Room is taken first, so that a full disk is met before a byte is lost."""
    begun = False
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        try:
            status = os.fstat(descriptor)
            require_regular(path, status, "sandbox.write_failed")
            try:
                if content:
                    os.posix_fallocate(descriptor, 0, len(content))
            except OSError:
                os.ftruncate(descriptor, status.st_size)
                raise
            begun = True
            _write_all(descriptor, content)
            os.ftruncate(descriptor, len(content))
        finally:
            os.close(descriptor)
    except OSError as error:
        left = "It may be part old and part new" if begun else "Its old content is unchanged"
        raise _failure(path, error, f" {left}.") from None


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
