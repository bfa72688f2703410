"""What the worker and the zygote say to each other, over a SEQPACKET socket that nobody else holds.

A request is one message: what is to be done, with descriptors.

=======  ============================================  ===============================================================
RUN      memfd, status, stdout, stderr, and by need    a program whose parent is the worker. The status pipe gets 4
         the executable and the script                 bytes of pid (0: there is no child), then, if nothing could be
                                                       executed, 4 bytes of errno and what was being done; execution
                                                       closes it
HOLD     stdout, stderr, gate, and a memfd unless it   a program whose parent is the zygote, at its gate from its start
         is the program of the HOLD before             on: answered with STARTED or REFUSED
COLLECT  none                                          nothing but what each message may tell: the pids of held programs
                                                       that have ended and that the worker is done with. Until then the
                                                       number is nobody else's
=======  ============================================  ===============================================================
"""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

SCRIPT_DESCRIPTOR: Final = 63  # where a shell finds a script that is too long for an argument
GATE_DESCRIPTOR: Final = 63  # … and where it waits for one
PID: Final = struct.Struct("=i")
MOST_COLLECTED: Final = 64  # pids in one message
ANSWER_BYTES: Final = 4096


class Do(IntEnum):
    RUN = 1
    HOLD = 2
    COLLECT = 3


class Said(IntEnum):
    STARTED = 1  # token, pid
    REFUSED = 2  # token, errno, and behind it what was being done


_REQUEST: Final = struct.Struct("=Bi")  # what to do, and the token of a HOLD; behind them pids
_REQUEST_BYTES: Final = _REQUEST.size + MOST_COLLECTED * PID.size
_ANSWER: Final = struct.Struct("=Bii")


@dataclass(frozen=True, slots=True)
class Program:
    """What to start. Bytes as execve takes them."""

    path: str
    arguments: list[bytes]
    environment: dict[bytes, bytes]
    cwd: str


def ask_to_run(
    zygote: socket.socket,
    program: Program,
    tag: tuple[int, int],
    *,
    status: int,
    stdout: int,
    stderr: int,
    executable: int | None,
    script: bytes,
) -> None:
    """``tag``: hard RLIMIT_RSS and RLIMIT_LOCKS. ``executable`` is a descriptor to execute in place of ``path``. Raises
    ``OSError``: the zygote is gone or does not read."""
    with contextlib.ExitStack() as stack:
        whole = _packed(program), tag, executable is not None, bool(script)
        descriptors = [_memory(stack, marshal.dumps(whole)), status, stdout, stderr]
        if executable is not None:
            descriptors.append(executable)
        if script:
            descriptors.append(_memory(stack, script))
        _send(zygote, _REQUEST.pack(Do.RUN, 0), descriptors)


def ask_to_hold(
    zygote: socket.socket,
    token: int,
    program: Program | None,
    collected: Sequence[int],
    *,
    stdout: int,
    stderr: int,
    gate: int,
) -> None:
    """``token`` comes back in the answer. ``program`` None: the same as before. ``collected``: pids. Raises as
    ``ask_to_run``."""
    with contextlib.ExitStack() as stack:
        plan = [] if program is None else [_memory(stack, marshal.dumps(_packed(program)))]
        _send(zygote, _REQUEST.pack(Do.HOLD, token) + _pids(collected), [stdout, stderr, gate, *plan])


def tell_collected(zygote: socket.socket, collected: Sequence[int]) -> None:
    """Raises as ``ask_to_run``."""
    _send(zygote, _REQUEST.pack(Do.COLLECT, 0) + _pids(collected), [])


def _pids(collected: Sequence[int]) -> bytes:
    return struct.pack(f"={len(collected)}i", *collected)


def _packed(program: Program) -> Any:
    return program.path, program.arguments, program.environment, program.cwd


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


def receive(channel: socket.socket) -> tuple[Do, int, list[int], list[int]] | None:
    """The next request: what to do, a token, pids to collect, and descriptors that no program inherits. None: the worker
    is gone."""
    data, ancillary, _, _ = channel.recvmsg(_REQUEST_BYTES, socket.CMSG_LEN(8 * 4), socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    descriptors = [
        number
        for level, kind, content in ancillary
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
        for (number,) in struct.iter_unpack("=i", content[: len(content) // 4 * 4])
    ]
    do, token = _REQUEST.unpack_from(data)
    collected = [pid for (pid,) in PID.iter_unpack(data[_REQUEST.size :])]
    return Do(do), token, collected, descriptors


def read_run(memory: int) -> tuple[Program, tuple[int, int], bool, bool]:
    """What to run and its tag; whether an executable, and a script, came with it."""
    packed, tag, has_executable, has_script = _read(memory)
    return Program(*packed), tag, has_executable, has_script


def read_hold(memory: int) -> Program:
    return Program(*_read(memory))


def _read(memory: int) -> Any:
    return marshal.loads(os.pread(memory, os.fstat(memory).st_size, 0))


def answer(channel: socket.socket, said: Said, token: int, value: int, doing: str = "") -> None:
    channel.send(_ANSWER.pack(said, token, value) + doing.encode("utf-8", "replace"), socket.MSG_NOSIGNAL)


def read_answer(data: bytes) -> tuple[Said, int, int, str]:
    """What it said, the token, the pid or errno, and what was being done."""
    said, token, value = _ANSWER.unpack_from(data)
    return Said(said), token, value, data[_ANSWER.size :].decode("utf-8", "replace")
