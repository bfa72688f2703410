"""The few system calls that Python has no name for. Linux on x86-64 and aarch64; ctypes alone.

Every function raises ``OSError`` with the kernel's errno when the call fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_SECCOMP: Final = 22
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38

SECCOMP_MODE_FILTER: Final = 2

LANDLOCK_CREATE_RULESET: Final = 444  # these three have one number on every architecture
LANDLOCK_ADD_RULE: Final = 445
LANDLOCK_RESTRICT_SELF: Final = 446
LANDLOCK_CREATE_RULESET_VERSION: Final = 1
LANDLOCK_RULE_PATH_BENEATH: Final = 1

CLONE_PARENT: Final = 0x8000
_SIGCHLD: Final = 17

MACHINE: Final = os.uname().machine
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_SIGACTION: Final = {"x86_64": 13, "aarch64": 134}

_libc = ctypes.CDLL(None, use_errno=True)
# PyDLL keeps the interpreter's lock over the call: the child of a clone must come back holding it, as its parent does.
_libc_locked = ctypes.PyDLL(None, use_errno=True)


def _syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    result: int = _libc.syscall(
        ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    )
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def prctl(option: int, value: int = 0, pointer: ctypes.c_void_p | None = None) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), pointer or zero, zero, zero) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def become_undumpable() -> None:
    """No other process of our user may trace us, read our memory, environment or descriptors; no core is dumped."""
    prctl(PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Orphans below us become our children, not init's: we can find, end and reap them."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def clone_as_sibling() -> int:
    """Forks a child whose parent is our parent. Returns its pid, or 0 in the child.

    No Python-level after-fork work is done: for a single-threaded caller whose child soon calls exec.
    """
    arguments = (_CLONE[MACHINE], CLONE_PARENT | _SIGCHLD, 0, 0, 0, 0)
    pid: int = _libc_locked.syscall(*map(ctypes.c_long, arguments))
    if pid < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return pid


def default_reserved_signals() -> None:
    """The default for the two signals that the C library keeps for itself and lets nobody name: some programs start others
    (make does) with them ignored, and what is ignored stays so over exec."""
    nothing = ctypes.create_string_buffer(32)  # a kernel sigaction of zeros: SIG_DFL
    for number in (32, 33):
        _syscall(_SIGACTION[MACHINE], number, nothing, None, 8)


# --- Landlock --------------------------------------------------------------------------------------------------------


def landlock_abi() -> int:
    """The kernel's Landlock ABI, 0 when it has none or it is switched off."""
    try:
        return _syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION)
    except OSError:
        return 0


def landlock_create(handled: int, scope: int) -> int:
    """A new ruleset's descriptor. With ``scope`` 0 the attribute is cut to what every ABI knows."""
    attribute = struct.pack("=QQQ", handled, 0, scope) if scope else struct.pack("=Q", handled)
    buffer = ctypes.create_string_buffer(attribute, len(attribute))
    return _syscall(LANDLOCK_CREATE_RULESET, buffer, len(attribute), 0)


def landlock_allow(ruleset: int, path_descriptor: int, access: int) -> None:
    rule = ctypes.create_string_buffer(struct.pack("=Qi", access, path_descriptor), 12)
    _syscall(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0)


def landlock_restrict(ruleset: int) -> None:
    """Puts this thread, and what it starts from now on, into the domain. Wants no_new_privs."""
    _syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0)


# --- seccomp ---------------------------------------------------------------------------------------------------------


def seccomp_available() -> bool:
    """Whether the kernel takes filters: one that has them complains of the missing program, not of the request."""
    try:
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER)
    except OSError as error:
        return error.errno == errno.EFAULT
    return False


def seccomp_filter(program: bytes) -> None:
    """Installs a classic BPF program (8 bytes an instruction) for this thread and its children."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    block = ctypes.create_string_buffer(header, len(header))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.cast(block, ctypes.c_void_p))
