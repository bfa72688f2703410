"""The zygote: a small single-threaded process in the commands' domain that starts every program the worker asks for.

It starts them in two ways (``zygote_protocol``). What is to RUN is cloned with the *worker* as its parent, marks itself,
and executes. What is to be HELD is spawned without a copy of us, which takes half the time: it is our child, cannot run
until the worker has marked it and opens its gate, and stays a zombie until the worker has heard of its end. So the zygote
says nothing that must be believed, and its death costs no running command: its children come to the worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
from dataclasses import dataclass
from typing import Final

from pod_host import limits
from pod_host.sandbox import kernel
from pod_host.sandbox.landlock import SIGNALS_FROM_ABI, TRUNCATE_FROM_ABI, command_ruleset
from pod_host.sandbox.seccomp import build_filter
from pod_host.sandbox.tags import RLIMIT_LOCKS
from pod_host.sandbox.worker.zygote_protocol import (
    GATE_DESCRIPTOR,
    PID,
    SCRIPT_DESCRIPTOR,
    Do,
    Program,
    Said,
    answer,
    read_hold,
    read_run,
    receive,
)

_RAISED: Final = 500  # of 1000: the kernel takes commands before us when memory runs out


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


def run_zygote(
    requests: socket.socket, domain: Domain, pair: tuple[int, int], protected: list[int], groups: list[int]
) -> None:
    """The zygote's life, in a child that the worker has just forked: never returns."""
    try:
        _mark(*pair)
        _become_zygote(requests, domain, protected, groups)
        _Zygote(socket.socket(fileno=3)).serve()
    finally:
        os._exit(0)


class _Zygote:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(self._null, GATE_DESCRIPTOR, inheritable=False)  # nothing else is to have that number
        self._program: Program | None = None  # of the latest HOLD

    def serve(self) -> None:
        """Returns when the worker is gone."""
        while request := receive(self._channel):
            do, token, collected, descriptors = request
            try:
                for pid in collected:
                    os.waitpid(pid, 0)
                match do:
                    case Do.RUN:
                        _run(descriptors, self._null)
                    case Do.HOLD:
                        self._hold(token, descriptors)
                    case Do.COLLECT:
                        pass
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _hold(self, token: int, descriptors: list[int]) -> None:
        stdout, stderr, gate, *plan = descriptors
        if plan:
            self._program = read_hold(plan[0])
        program = self._program
        assert program is not None, "the worker names one before it names none"
        doing = f"enter {program.cwd}"
        try:
            os.chdir(program.cwd)
            doing = f"start {program.path}"
            pid = os.posix_spawn(
                program.path, program.arguments, program.environment, setsid=True,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, self._null, 0),
                    (os.POSIX_SPAWN_DUP2, stdout, 1),
                    (os.POSIX_SPAWN_DUP2, stderr, 2),
                    (os.POSIX_SPAWN_DUP2, gate, GATE_DESCRIPTOR),
                ],
            )  # fmt: skip
        except OSError as error:
            answer(self._channel, Said.REFUSED, token, error.errno or 0, doing)
        else:
            answer(self._channel, Said.STARTED, token, pid)


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


def _mark(rss: int, locks: int) -> None:
    resource.setrlimit(resource.RLIMIT_RSS, (rss, rss))
    resource.setrlimit(RLIMIT_LOCKS, (locks, locks))


def _raise_oom_score() -> None:
    # An undumpable process cannot write this file; the commands inherit the value.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
        own = int(file.read())
        file.seek(0)
        file.write(b"%d" % min(1000, own + _RAISED))


def _run(descriptors: list[int], null: int) -> None:
    memory, status, stdout, stderr, *rest = descriptors
    program, tag, has_executable, has_script = read_run(memory)
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
        _mark(*tag)
        os.write(status, PID.pack(os.getpid()))
        os.nice(limits.COMMAND_NICE)
        os.setsid()
        doing = f"enter {program.cwd}"
        os.chdir(program.cwd)
        doing = "connect the streams"
        for descriptor, place in ((null, 0), (stdout, 1), (stderr, 2)):
            os.dup2(descriptor, place)
        if script is not None:
            os.lseek(script, 0, os.SEEK_SET)
            os.dup2(script, SCRIPT_DESCRIPTOR)
        doing = f"execute {program.path}"
        os.execve(executable if executable is not None else program.path, program.arguments, program.environment)
    except OSError as error:
        os.write(status, PID.pack(error.errno or 0) + doing.encode("utf-8", "replace"))
    finally:
        os._exit(127)


def fork_zygote(
    domain: Domain, pair: tuple[int, int], protected: list[int], groups: list[int]
) -> tuple[int, socket.socket]:
    """Forks a zygote. ``pair``: what marks it, and what it starts. ``protected`` and ``groups``: threads and process groups
    that its commands cannot touch. Returns its pid and the worker's end of its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        run_zygote(theirs, domain, pair, protected, groups)
    theirs.close()
    return pid, ours
