"""Executes a program on a kernel that refuses some calls: ``refuse.py {"landlock" | "seccomp"}[,…] program…``."""

from __future__ import annotations

import errno
import os
import struct
import sys

from pod_host.sandbox import kernel

_PRCTL = {"x86_64": 157, "aarch64": 167}[kernel.MACHINE]
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
LOAD_NUMBER, LOAD_FIRST = (0x20, 0, 0, 0), (0x20, 0, 0, 16)
LANDLOCK = [(0x15, 0, 1, kernel.LANDLOCK_CREATE_RULESET), (0x06, 0, 0, _ERRNO | errno.ENOSYS)]
SECCOMP = [
    (0x15, 0, 3, _PRCTL), LOAD_FIRST, (0x15, 0, 1, kernel.PR_SET_SECCOMP), (0x06, 0, 0, _ERRNO | errno.EINVAL), LOAD_NUMBER,
]  # fmt: skip


def main() -> None:
    program = [LOAD_NUMBER]
    for name in sys.argv[1].split(","):
        program += {"landlock": LANDLOCK, "seccomp": SECCOMP}[name]
    program.append((0x06, 0, 0, _ALLOW))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.seccomp_filter(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
