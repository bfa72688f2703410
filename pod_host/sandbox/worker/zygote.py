"""The zygote: a small single-threaded process in the commands' domain that starts every program the worker asks for.

It is one-way. The worker sends a request with descriptors; the zygote clones a child whose parent is the *worker*; the
child marks itself, tells its pid through a pipe that only the worker reads, and executes the program. So the zygote
holds nothing that outlives a request, says nothing that must be believed, and its death costs no running command.

A request is one SEQPACKET message: descriptors memfd (the request), status (the pipe), stdout, stderr, and by need the
program and the script. The status pipe gets 4 bytes of pid (0: there is no child), then, if nothing could be executed, 4
bytes of errno and what was being done; execution closes it.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import resource
import signal
import socket
import struct
from dataclasses import dataclass
from typing import Final

from pod_host import limits
from pod_host.sandbox import kernel
from pod_host.sandbox.landlock import SIGNALS_FROM_ABI, TRUNCATE_FROM_ABI, command_ruleset
from pod_host.sandbox.seccomp import build_filter
from pod_host.sandbox.tags import RLIMIT_LOCKS

SCRIPT_DESCRIPTOR: Final = 63  # where a shell finds a script that is too long for an argument
_RAISED: Final = 500  # of 1000: the kernel takes commands before us when memory runs out
PID: Final = struct.Struct("=i")


@dataclass(frozen=True, slots=True)
class Program:
    """What to start. Bytes as execve takes them. ``limits``: the tag, hard RLIMIT_RSS and RLIMIT_LOCKS."""

    path: str
    arguments: list[bytes]
    environment: dict[bytes, bytes]
    cwd: str
    limits: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Domain:
    """What commands are held in: the Landlock ABI (0: none), whether there are seccomp filters, what is only read, and
    what must be written wherever it lies."""

    abi: int
    seccomp: bool
    read_only: list[str]
    written: list[str]
    descriptors: tuple[int, int]  # soft and hard RLIMIT_NOFILE
    cgroup: int | None = None  # the descriptor of its cgroup.procs, where commands have one of their own


def send_program(
    zygote: socket.socket,
    program: Program,
    *,
    status: int,
    stdout: int,
    stderr: int,
    executable: int | None,
    script: bytes,
) -> None:
    """Asks for a program; ``executable`` is a descriptor to execute in place of ``path``. Raises ``OSError``: the
    zygote is gone or does not read."""
    with contextlib.ExitStack() as stack:

        def memory(name: str, content: bytes) -> int:
            descriptor = os.memfd_create(name)
            stack.callback(os.close, descriptor)
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.lseek(descriptor, 0, os.SEEK_SET)
            return descriptor

        plan = (
            program.path, program.arguments, program.environment, program.cwd, program.limits,
            executable is not None, bool(script),
        )  # fmt: skip
        descriptors = [memory("request", marshal.dumps(plan)), status, stdout, stderr]
        if executable is not None:
            descriptors.append(executable)
        if script:
            descriptors.append(memory("script", script))
        rights = struct.pack(f"={len(descriptors)}i", *descriptors)
        # Not socket.send_fds: it drops the flags.
        zygote.sendmsg(
            [b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        )


def run_zygote(requests: socket.socket, domain: Domain, protected: list[int], groups: list[int]) -> None:
    """The zygote's life, in a child that the worker has just forked: never returns."""
    try:
        _become_zygote(requests, domain, protected, groups)
        channel = socket.socket(fileno=3)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        while True:
            data, descriptors, _, _ = _receive(channel)
            if not data:
                break  # the worker is gone
            try:
                _start(descriptors, null)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
    finally:
        os._exit(0)


def _receive(channel: socket.socket) -> tuple[bytes, list[int], int, object]:
    """As ``socket.recv_fds``, with descriptors that no program inherits."""
    data, ancillary, flags, address = channel.recvmsg(1, socket.CMSG_LEN(8 * 4), socket.MSG_CMSG_CLOEXEC)
    descriptors = [
        number
        for level, kind, content in ancillary
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
        for (number,) in struct.iter_unpack("=i", content[: len(content) // 4 * 4])
    ]
    return data, descriptors, flags, address


def _become_zygote(requests: socket.socket, domain: Domain, protected: list[int], groups: list[int]) -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if domain.cgroup is not None:
        os.write(domain.cgroup, b"0")  # us, and so all that we start; if it fails nothing is started
    os.setpgid(0, 0)  # a signal to our group shall not count as one that reached the worker's
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)  # the worker ignores some; what is ignored stays so over exec
    kernel.default_reserved_signals()
    _raise_oom_score()
    os.nice(limits.COMMAND_NICE)
    resource.setrlimit(resource.RLIMIT_NOFILE, domain.descriptors)
    kernel.become_undumpable()
    os.dup2(requests.fileno(), 3, inheritable=False)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 3:
            with contextlib.suppress(OSError):  # the one that listed them is gone by now
                os.close(int(name))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.close(null)
    if domain.abi:
        ruleset = command_ruleset(domain.abi, domain.read_only, domain.written)
        kernel.landlock_restrict(ruleset)
        os.close(ruleset)
    if domain.seccomp:
        program = build_filter(
            kernel.MACHINE, protected, groups, zygote=os.getpid(),
            guard_signals=domain.abi < SIGNALS_FROM_ABI, guard_truncate=0 < domain.abi < TRUNCATE_FROM_ABI,
            guard_cgroup=domain.cgroup is not None,
        )  # fmt: skip
        kernel.seccomp_filter(program)
    gc.disable()


def _raise_oom_score() -> None:
    # An undumpable process cannot write this file; the commands inherit the value.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
        own = int(file.read())
        file.seek(0)
        file.write(b"%d" % min(1000, own + _RAISED))


def _start(descriptors: list[int], null: int) -> None:
    memory, status, stdout, stderr, *rest = descriptors
    size = os.fstat(memory).st_size
    path, arguments, environment, cwd, limits, has_executable, has_script = marshal.loads(os.pread(memory, size, 0))
    executable = rest.pop(0) if has_executable else None
    script = rest.pop(0) if has_script else None
    try:
        if kernel.clone_as_sibling() != 0:
            return
    except OSError as error:
        os.write(status, PID.pack(0) + PID.pack(error.errno or 0) + b"start a process")
        return
    doing = "mark the command"
    try:
        resource.setrlimit(resource.RLIMIT_RSS, (limits[0], limits[0]))
        resource.setrlimit(RLIMIT_LOCKS, (limits[1], limits[1]))
        os.write(status, PID.pack(os.getpid()))
        os.setsid()
        doing = f"enter {cwd}"
        os.chdir(cwd)
        doing = "connect the streams"
        for descriptor, place in ((null, 0), (stdout, 1), (stderr, 2)):
            os.dup2(descriptor, place)
        if script is not None:
            os.dup2(script, SCRIPT_DESCRIPTOR)
        doing = f"execute {path}"
        os.execve(executable if executable is not None else path, arguments, environment)
    except OSError as error:
        os.write(status, PID.pack(error.errno or 0) + doing.encode("utf-8", "replace"))
    finally:
        os._exit(127)


def fork_zygote(domain: Domain, protected: list[int], groups: list[int]) -> tuple[int, socket.socket]:
    """Forks a zygote. ``protected`` and ``groups``: threads and process groups that its commands cannot touch. Returns its
    pid and the worker's end of its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        run_zygote(theirs, domain, protected, groups)
    theirs.close()
    return pid, ours
