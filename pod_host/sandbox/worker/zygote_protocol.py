"""What the worker and the zygote say to each other, over a SEQPACKET socket that nobody else holds.

A request is one message: what is to be done, with descriptors.

=======  ============================================  ===============================================================
RUN      memfd, status, stdout, stderr, and by need    a program whose parent is the worker. The status pipe gets 4
         the executable and the script                 bytes of pid (0: there is no child), then, if nothing could be
                                                       executed, 4 bytes of errno and what was being done; execution
                                                       closes it
HOLD     memfd, stdout, stderr, gate                   a program whose parent is the zygote, at its gate from its start
                                                       on: answered with STARTED or REFUSED
COLLECT  none                                          the pid of a held program that has ended, and that the worker is
                                                       done with: until then the number is nobody else's
=======  ============================================  ===============================================================
"""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

SCRIPT_DESCRIPTOR: Final = 63  # where a shell finds a script that is too long for an argument
GATE_DESCRIPTOR: Final = 63  # … and where it waits for one
PID: Final = struct.Struct("=i")
REQUEST_BYTES: Final = 64
ANSWER_BYTES: Final = 4096


class Do(IntEnum):
    RUN = 1
    HOLD = 2
    COLLECT = 3


class Said(IntEnum):
    STARTED = 1  # token, pid
    REFUSED = 2  # token, errno, and behind it what was being done


_REQUEST: Final = struct.Struct("=Bi")  # what to do; a token (HOLD) or a pid (COLLECT)
_ANSWER: Final = struct.Struct("=Bii")


@dataclass(frozen=True, slots=True)
class Program:
    """What to start. Bytes as execve takes them. ``limits``: the tag, hard RLIMIT_RSS and RLIMIT_LOCKS."""

    path: str
    arguments: list[bytes]
    environment: dict[bytes, bytes]
    cwd: str
    limits: tuple[int, int]


def ask_to_run(
    zygote: socket.socket,
    program: Program,
    *,
    status: int,
    stdout: int,
    stderr: int,
    executable: int | None,
    script: bytes,
) -> None:
    """``executable`` is a descriptor to execute in place of ``path``. Raises ``OSError``: the zygote is gone or does not
    read."""
    with contextlib.ExitStack() as stack:
        plan = _memory(stack, _packed(program, executable is not None, bool(script)))
        descriptors = [plan, status, stdout, stderr]
        if executable is not None:
            descriptors.append(executable)
        if script:
            descriptors.append(_memory(stack, script))
        _send(zygote, _REQUEST.pack(Do.RUN, 0), descriptors)


def ask_to_hold(zygote: socket.socket, token: int, program: Program, *, stdout: int, stderr: int, gate: int) -> None:
    """``token`` comes back in the answer. Raises as ``ask_to_run``."""
    with contextlib.ExitStack() as stack:
        plan = _memory(stack, _packed(program, False, False))
        _send(zygote, _REQUEST.pack(Do.HOLD, token), [plan, stdout, stderr, gate])


def tell_collected(zygote: socket.socket, pid: int) -> None:
    """Raises as ``ask_to_run``."""
    _send(zygote, _REQUEST.pack(Do.COLLECT, pid), [])


def _packed(program: Program, has_executable: bool, has_script: bool) -> bytes:
    whole = program.path, program.arguments, program.environment, program.cwd, program.limits
    return marshal.dumps((whole, has_executable, has_script))


def _memory(stack: contextlib.ExitStack, content: bytes) -> int:
    descriptor = os.memfd_create("request")
    stack.callback(os.close, descriptor)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    return descriptor


def _send(zygote: socket.socket, data: bytes, descriptors: list[int]) -> None:
    # Not socket.send_fds: it drops the flags.
    rights = struct.pack(f"={len(descriptors)}i", *descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
    zygote.sendmsg([data], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(channel: socket.socket) -> tuple[Do, int, list[int]] | None:
    """The next request, with descriptors that no program inherits. None: the worker is gone."""
    data, ancillary, _, _ = channel.recvmsg(REQUEST_BYTES, socket.CMSG_LEN(8 * 4), socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    descriptors = [
        number
        for level, kind, content in ancillary
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
        for (number,) in struct.iter_unpack("=i", content[: len(content) // 4 * 4])
    ]
    do, value = _REQUEST.unpack(data)
    return Do(do), value, descriptors


def read_program(memory: int) -> tuple[Program, bool, bool]:
    """What to start; whether an executable, and a script, came with it."""
    whole, has_executable, has_script = marshal.loads(os.pread(memory, os.fstat(memory).st_size, 0))
    return Program(*whole), has_executable, has_script


def answer(channel: socket.socket, said: Said, subject: int, value: int, doing: str = "") -> None:
    channel.send(_ANSWER.pack(said, subject, value) + doing.encode("utf-8", "replace"), socket.MSG_NOSIGNAL)


def read_answer(data: bytes) -> tuple[Said, int, int, str]:
    said, subject, value = _ANSWER.unpack_from(data)
    return Said(said), subject, value, data[_ANSWER.size :].decode("utf-8", "replace")
