"""The two Landlock domains.

``files_ruleset`` is the worker's (D1): all of the file system but for the denied paths, and no signals or abstract
sockets out of it, where the kernel knows how. ``command_ruleset`` is the zygote's (D2), nested in D1, so that a command
is not the worker's equal: it can reach other commands, and not the worker, and can read the skills but not change them.

Landlock knows only an allow-list, and a rule holds for all that lies below. So a denied path is left out by a walk: on
the way to it each sibling gets a rule of its own, and the directories of the way none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from pod_host.sandbox import kernel

REFER = 0x2000  # from ABI 2
TRUNCATE = 0x4000  # from TRUNCATE_FROM_ABI
WRITES = 0x1FF2  # write to files, remove and make files and directories of every kind
READ_DIR = 0x8
_FILE_RIGHTS = 0xC007  # execute, write, read, truncate, ioctl: what can be granted on what is not a directory
_SCOPE_ABSTRACT = 1
_SCOPE_SIGNAL = 2
SIGNALS_FROM_ABI = 6
TRUNCATE_FROM_ABI = 3
_READS = 0xC  # files, directories


def handled_rights(abi: int) -> int:
    """Every file right the ABI knows: all are handled, so that the allow-list alone decides."""
    if abi >= 5:
        return 0xFFFF  # + IOCTL_DEV
    if abi >= 3:
        return 0x7FFF  # + TRUNCATE
    return 0x3FFF if abi == 2 else 0x1FFF  # REFER came with 2


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def allowed_paths(denied: Sequence[str], allowed: Sequence[str]) -> Iterator[str]:
    """The paths that get a rule: the largest set of subtrees with nothing denied in it, and the allowed ones, which may lie
    in what is denied, or where nobody may list.

    Directories on the way to a denied path get none, so what is made in them later is out of reach: deny whole
    directories whose parents nobody writes to. Paths that come and go during the walk are skipped.
    """
    refused = [os.path.realpath(path) for path in denied]
    excepted = [os.path.realpath(path) for path in allowed]
    waiting = ["/"]
    for path in excepted:
        if any(_inside(root, path) and root != path for root in refused):
            waiting.append(path)  # it holds a denied path in its turn
        else:
            yield path
    while waiting:
        directory = waiting.pop()
        try:
            entries = list(os.scandir(directory))
        except OSError:
            continue  # not ours to list: what is needed below it must be among ``allowed``
        for entry in entries:
            if entry.is_symlink() or entry.path in refused:
                continue
            if any(_inside(path, entry.path) for path in refused):
                waiting.append(entry.path)
            else:
                yield entry.path


def files_ruleset(
    abi: int, denied: Sequence[str], allowed: Sequence[str], readable: Sequence[str], programs: Sequence[int]
) -> int:
    """The ruleset of D1 (a descriptor), for ``abi`` from 1 up. ``readable``: what is denied but for reading. ``programs``
    are descriptors of files that may be executed wherever they lie. To be built once every mount and directory is there,
    and by a user who can see them."""
    handled = handled_rights(abi)
    scope = _SCOPE_ABSTRACT | _SCOPE_SIGNAL if abi >= SIGNALS_FROM_ABI else 0
    ruleset = kernel.landlock_create(handled, scope)
    refused = [os.path.realpath(path) for path in denied]
    if not refused:
        _allow(ruleset, "/", handled)
    else:
        _allow(ruleset, "/", READ_DIR)  # `ls /` and the names on the way: never what is in a file
        for path in allowed_paths(denied, allowed):
            _allow(ruleset, path, handled)
        for path in readable:
            _allow(ruleset, os.path.realpath(path), _READS)
    for descriptor in programs:
        kernel.landlock_allow(ruleset, descriptor, handled & 0x5)  # execute, read
    return ruleset


def command_ruleset(abi: int, read_only: Sequence[str], written: Sequence[str]) -> int:
    """The ruleset of D2: nothing is written below ``read_only``; ``written`` is what must be, wherever it lies.

    It must handle REFER and grant it everywhere: a layer that does not handle REFER forbids every rename and link across
    directories. (A link that leads out of ``read_only`` would gain rights by its new place, and is refused for that.)
    """
    refer = REFER if abi >= 2 else 0
    handled = WRITES | refer | (TRUNCATE if abi >= TRUNCATE_FROM_ABI else 0)
    ruleset = kernel.landlock_create(handled, _SCOPE_SIGNAL if abi >= SIGNALS_FROM_ABI else 0)
    if refer:
        _allow(ruleset, "/", refer)
    for path in allowed_paths(read_only, written):
        _allow(ruleset, path, handled)
    return ruleset


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # gone since it was listed, or not ours to reach: no rule means no access
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= _FILE_RIGHTS
        kernel.landlock_allow(ruleset, descriptor, access)
    finally:
        os.close(descriptor)
