"""The seccomp filter of the zygote and so of every command: what Landlock leaves open towards host and worker.

A process may set the limits, priority and CPUs of any other of its user, and a CPU limit from outside kills. So limits
may be set only on oneself, and priorities and CPUs not on the protected threads: all that host and worker have, whose
number is fixed before the first command. To allow them on oneself alone would be simpler, and would take `renice` and
`taskset` of one's own shell away, and from every library that names its own thread instead of 0.

Where Landlock does not scope signals (ABI below 6) the filter refuses to signal the protected threads too, by every call
that names one; where it does not know truncate(2) (below 3), that call is refused.

Where commands have a cgroup of their own, clone3 fails with ENOSYS, as on an older kernel: it can place a process in
another cgroup by a descriptor that no right is needed to open, and its arguments cannot be looked at. Libraries take
clone instead.

Refused calls fail with EPERM. Calls in a foreign ABI (32-bit programs on a 64-bit kernel), whose numbers mean other
calls, end the program with SIGSYS; x32 calls fail with ENOSYS, as on a kernel without them.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_SKIP: Final = 0x05  # BPF_JMP | BPF_JA: any number of instructions, where the others skip 255
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
_REFUSE: Final = 0x00050000 | errno.EPERM
_UNKNOWN: Final = 0x00050000 | errno.ENOSYS
_NUMBER_AT: Final = 0  # struct seccomp_data
_ARCH_AT: Final = 4
_X32_BIT: Final = 0x40000000
MOST_PROTECTED: Final = 128  # two instructions for each in each of 13 lists, and the kernel takes 4096

_PRIO_PROCESS: Final = 0
_IOPRIO_WHO_PROCESS: Final = 1
_F_SETOWN: Final = 8
_F_SETOWN_EX: Final = 15
_FIOSETOWN: Final = 0x8901
_SIOCSPGRP: Final = 0x8902


@dataclass(frozen=True, slots=True)
class Architecture:
    """AUDIT_ARCH value and the numbers of the calls that are looked at."""

    audit: int
    x32: bool
    prlimit64: int
    setpriority: int
    ioprio_set: int
    scheduling: tuple[int, ...]  # sched_setaffinity, _setscheduler, _setparam, _setattr: the pid comes first
    signals: tuple[int, ...]  # kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_open: the pid comes first
    pidfd_send_signal: int
    fcntl: int
    ioctl: int
    truncate: int


_CLONE3: Final = 435  # one number on every architecture

ARCHITECTURES: Final = {
    "x86_64": Architecture(
        audit=0xC000003E, x32=True, prlimit64=302, setpriority=141, ioprio_set=251,
        scheduling=(203, 144, 142, 314), signals=(62, 200, 234, 129, 297, 434),
        pidfd_send_signal=424, fcntl=72, ioctl=16, truncate=76,
    ),
    "aarch64": Architecture(
        audit=0xC00000B7, x32=False, prlimit64=261, setpriority=140, ioprio_set=30,
        scheduling=(122, 119, 118, 274), signals=(129, 130, 131, 138, 240, 434),
        pidfd_send_signal=424, fcntl=25, ioctl=29, truncate=45,
    ),
}  # fmt: skip

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, k


def _argument(index: int, *, high: bool = False) -> Instruction:
    """Loads half of a call's argument (both architectures are little-endian). An int's upper half is not looked at,
    as the kernel does not look at it either."""
    return (_LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))


def _refuse_if_one_of(index: int, values: Iterable[int]) -> list[Instruction]:
    body: list[Instruction] = [_argument(index)]
    for value in values:
        body += [(_IF_EQUAL, 0, 1, value & 0xFFFFFFFF), (_RETURN, 0, 0, _REFUSE)]
    return body


def _on(number: int, body: list[Instruction]) -> list[Instruction]:
    """``body`` for one call, which is allowed where the body does not refuse it."""
    whole = [*body, (_RETURN, 0, 0, _ALLOW)]
    return [(_IF_EQUAL, 1, 0, number), (_SKIP, 0, 0, len(whole)), *whole]


def build_filter(
    machine: str,
    protected: Sequence[int],
    groups: Sequence[int],
    *,
    zygote: int,
    guard_signals: bool,
    guard_truncate: bool = False,
    guard_cgroup: bool = False,
) -> bytes:
    """The program. ``protected``: the thread ids of host and worker, the first ``MOST_PROTECTED`` count; ``groups``: their
    process groups. ``zygote`` may be signalled, and not slowed: commands inherit what it has. ``guard_signals`` and
    ``guard_truncate`` where Landlock does not scope signals, and does not know truncate(2); ``guard_cgroup`` where commands
    have a cgroup that they must not leave."""
    at = ARCHITECTURES[machine]
    guarded = tuple(protected)[:MOST_PROTECTED]
    scheduled = (*guarded, zygote)
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_IF_EQUAL, 1, 0, at.audit),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if at.x32:
        program += [(_IF_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _UNKNOWN)]
    # prlimit64(pid, resource, new, old): refused when pid is not 0 and new is not null.
    program += _on(
        at.prlimit64,
        [
            _argument(0),
            (_IF_EQUAL, 5, 0, 0),
            _argument(2),
            (_IF_EQUAL, 0, 2, 0),
            _argument(2, high=True),
            (_IF_EQUAL, 1, 0, 0),
            (_RETURN, 0, 0, _REFUSE),
        ],
    )
    for number, process in ((at.setpriority, _PRIO_PROCESS), (at.ioprio_set, _IOPRIO_WHO_PROCESS)):
        program += _on(
            number,
            [_argument(0), (_IF_EQUAL, 1, 0, process), (_RETURN, 0, 0, _REFUSE), *_refuse_if_one_of(1, scheduled)],
        )
    for number in at.scheduling:
        program += _on(number, _refuse_if_one_of(0, scheduled))
    if guard_truncate:
        program += _on(at.truncate, [(_RETURN, 0, 0, _REFUSE)])  # by path, and what it names cannot be read
    if guard_cgroup:
        program += _on(_CLONE3, [(_RETURN, 0, 0, _UNKNOWN)])
    if guard_signals:
        program += _signal_guard(at, guarded, groups)
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _signal_guard(at: Architecture, guarded: Sequence[int], groups: Sequence[int]) -> list[Instruction]:
    everyone = -1  # kill(-1): every process of our user, host and worker among them
    targets = [*guarded, everyone, *(-group for group in groups)]
    program: list[Instruction] = []
    for number in at.signals:
        program += _on(number, _refuse_if_one_of(0, targets))
    # A pidfd may also be a descriptor of /proc/PID, which no call names the pid of: signals by pidfd are refused whole.
    program += _on(at.pidfd_send_signal, [(_RETURN, 0, 0, _REFUSE)])
    # SIGIO: whoever owns a descriptor gets its signals. F_SETOWN_EX and the ioctls pass a pointer, which cannot be read.
    owner = _refuse_if_one_of(2, targets)
    program += _on(
        at.fcntl,
        [
            _argument(1),
            (_IF_EQUAL, 0, 1, _F_SETOWN_EX),
            (_RETURN, 0, 0, _REFUSE),
            (_IF_EQUAL, 1, 0, _F_SETOWN),
            (_RETURN, 0, 0, _ALLOW),
            *owner,
        ],
    )
    program += _on(at.ioctl, _refuse_if_one_of(1, (_FIOSETOWN, _SIOCSPGRP)))
    return program
