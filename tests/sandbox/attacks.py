"""Run as a command inside the sandbox: what can it do to the process whose pid it is given?

Prints one JSON object: the name of each attempt, and the errno it met (0: it went through). Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_X86 = os.uname().machine == "x86_64"
_IOPRIO_SET = 251 if _X86 else 30
_GET_ROBUST_LIST = 274 if _X86 else 100
_RT_SIGQUEUEINFO = 129 if _X86 else 138
_TKILL = 200 if _X86 else 130
_TGKILL = 234 if _X86 else 131
_PROCESS_VM_READV = 310 if _X86 else 270
_KCMP = 312 if _X86 else 272
_PIDFD_GETFD = 438
_F_SETOWN_EX = 15
_PTRACE_SEIZE = 0x4206
_BUFFER = ctypes.create_string_buffer(16)
_VECTOR = ctypes.create_string_buffer(struct.pack("=QQ", ctypes.addressof(_BUFFER), 16), 16)


def _call(number: int, *arguments: object) -> None:
    if _libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *arguments))) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _checked(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _read(path: str) -> None:
    with open(path, "rb") as file:
        file.read(16)


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def _sigio(target: int, how: str) -> None:
    """Has the kernel send SIGIO, which ends a process by default, to the target."""
    ours, theirs = socket.socketpair()
    if how == "own":
        fcntl.fcntl(ours, fcntl.F_SETOWN, target)
    elif how == "own_ex":
        fcntl.fcntl(ours, _F_SETOWN_EX, struct.pack("=ii", 1, target))
    elif how == "group":
        fcntl.fcntl(ours, fcntl.F_SETOWN, -os.getpgid(target))
    else:
        fcntl.ioctl(ours, 0x8902 if how == "siocspgrp" else 0x8901, struct.pack("=i", target))
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    theirs.send(b"x")


def attempts(target: int) -> dict[str, Callable[[], object]]:
    proc = f"/proc/{target}"
    libc = _libc
    return {
        "kill": lambda: os.kill(target, signal.SIGKILL),
        "kill group": lambda: os.killpg(os.getpgid(target), signal.SIGKILL),
        "tkill": lambda: _call(_TKILL, target, 9),
        "tgkill": lambda: _call(_TGKILL, target, target, 9),
        "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(target), signal.SIGKILL),
        "proc descriptor": lambda: signal.pidfd_send_signal(os.open(proc, os.O_RDONLY), signal.SIGKILL),
        "sigqueue": lambda: _call(
            _RT_SIGQUEUEINFO, target, 9, ctypes.create_string_buffer(struct.pack("=iii", 9, 0, -1), 128)
        ),
        "sigio own": lambda: _sigio(target, "own"),
        "sigio own_ex": lambda: _sigio(target, "own_ex"),
        "sigio group": lambda: _sigio(target, "group"),
        "sigio siocspgrp": lambda: _sigio(target, "siocspgrp"),
        "sigio fiosetown": lambda: _sigio(target, "fiosetown"),
        "prlimit": lambda: resource.prlimit(target, resource.RLIMIT_CPU, (1, 1)),
        "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, target, 19),
        "setpriority group": lambda: os.setpriority(os.PRIO_PGRP, os.getpgid(target), 19),
        "setpriority user": lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
        "ioprio": lambda: _call(_IOPRIO_SET, 1, target, 3 << 13),
        "ioprio user": lambda: _call(_IOPRIO_SET, 3, os.getuid(), 3 << 13),
        "affinity": lambda: os.sched_setaffinity(target, {0}),
        "scheduler": lambda: os.sched_setscheduler(target, os.SCHED_IDLE, os.sched_param(0)),
        "ptrace": lambda: _checked(libc.ptrace(_PTRACE_SEIZE, target, 0, 0)),
        "process_vm_readv": lambda: _call(_PROCESS_VM_READV, target, _VECTOR, 1, _VECTOR, 1, 0),
        "pidfd_getfd": lambda: _call(_PIDFD_GETFD, os.pidfd_open(target), 0, 0),
        "kcmp": lambda: _call(_KCMP, target, os.getpid(), 0, 0, 0),
        "robust list": lambda: _call(
            _GET_ROBUST_LIST, target, ctypes.byref(ctypes.c_void_p()), ctypes.byref(ctypes.c_size_t())
        ),
        "environ": lambda: _read(f"{proc}/environ"),
        "mem": lambda: _read(f"{proc}/mem"),
        "maps": lambda: _read(f"{proc}/maps"),
        "root": lambda: os.listdir(f"{proc}/root/"),
        "cwd": lambda: os.listdir(f"{proc}/cwd/"),
        "descriptors": lambda: os.listdir(f"{proc}/fd"),
        "oom score": lambda: _write(f"{proc}/oom_score_adj", b"1000"),
    }


def main() -> None:
    target = int(sys.argv[1])
    result = {}
    for name, attempt in attempts(target).items():
        if os.fork() == 0:  # one that hits itself (its user's priority, say) is not to spoil the next
            os._exit(_met(attempt))
        result[name] = os.waitstatus_to_exitcode(os.wait()[1])
    print(json.dumps(result))


def _met(attempt: Callable[[], object]) -> int:
    try:
        attempt()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


if __name__ == "__main__":
    main()
