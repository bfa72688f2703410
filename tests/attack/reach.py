"""Run as a command: what can it do to host and worker? Prints JSON: by target and attempt, the errno met (0: none).

Standard library only, and tests/sandbox/attacks.py.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import struct
import sys
from collections.abc import Callable

from tests.sandbox.attacks import _IOPRIO_SET, _TKILL, _X86, _call, _checked, _libc, _read, _write, attempts

_SCHED_SETATTR = 314 if _X86 else 274
_PROCESS_VM_WRITEV = 311 if _X86 else 271
_PROCESS_MADVISE = 440
_MOVE_PAGES = 279 if _X86 else 239
_MIGRATE_PAGES = 256 if _X86 else 238
_PERF_EVENT_OPEN = 298 if _X86 else 241
_PTRACE_ATTACH = 16
_PR_SCHED_CORE = 62
_BUFFER = ctypes.create_string_buffer(64)
_VECTOR = ctypes.create_string_buffer(struct.pack("=QQ", ctypes.addressof(_BUFFER), 16), 16)
_ATTRIBUTE = ctypes.create_string_buffer(struct.pack("=IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0), 48)  # SCHED_IDLE


def worker_above(pid: int) -> int:
    """A zygote, which the shells that are started ahead come from, looks like the worker that it was forked from."""
    found = 0
    while pid:
        with open(f"/proc/{pid}/cmdline") as file:
            if "pod_host.sandbox.worker" in file.read():
                found = pid
        pid = parent_of(pid)
    return found


def relay_of(host: int) -> int:
    for name in os.listdir("/proc"):
        if name.isdecimal() and parent_of(int(name)) == host:
            with open(f"/proc/{name}/cmdline") as file:
                if "pod_host.relay" in file.read():
                    return int(name)
    raise LookupError("there is no relay")


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def further(target: int) -> dict[str, Callable[[], object]]:
    proc = f"/proc/{target}"
    return {
        "ptrace attach": lambda: _checked(_libc.ptrace(_PTRACE_ATTACH, target, 0, 0)),
        "process_vm_writev": lambda: _call(_PROCESS_VM_WRITEV, target, _VECTOR, 1, _VECTOR, 1, 0),
        "process_madvise": lambda: _call(_PROCESS_MADVISE, os.pidfd_open(target), _VECTOR, 1, 20, 0),
        "move_pages": lambda: _call(_MOVE_PAGES, target, 0, 0, 0, 0, 0),
        "migrate_pages": lambda: _call(_MIGRATE_PAGES, target, 64, _BUFFER, _BUFFER),
        "perf": lambda: _call(_PERF_EVENT_OPEN, struct.pack("=IIQ", 1, 112, 0) + bytes(96), target, -1, -1, 0),
        "core scheduling": lambda: _checked(_libc.prctl(_PR_SCHED_CORE, 2, target, 1, 0)),
        "descriptor": lambda: os.open(f"{proc}/fd/2", os.O_RDONLY),
        "descriptor info": lambda: _read(f"{proc}/fdinfo/2"),
        "auxiliary vector": lambda: _read(f"{proc}/auxv"),
        "stack": lambda: _read(f"{proc}/stack"),
        "executable": lambda: _read(f"{proc}/exe"),
        "mapped files": lambda: os.listdir(f"{proc}/map_files"),
        "namespaces": lambda: os.open(f"{proc}/ns/mnt", os.O_RDONLY),
        "memory write": lambda: _write(f"{proc}/mem", b"x"),
        "timer slack": lambda: _write(f"{proc}/timerslack_ns", b"1000000000"),
        "autogroup": lambda: _write(f"{proc}/autogroup", b"19"),
        "name": lambda: _write(f"{proc}/comm", b"x"),
        "clear_refs": lambda: _write(f"{proc}/clear_refs", b"1"),
        "core filter": lambda: _write(f"{proc}/coredump_filter", b"0x7f"),
    }


def of_thread(target: int) -> dict[str, Callable[[], object]]:
    return {
        "signal": lambda: _call(_TKILL, target, 9),
        "limit": lambda: resource.prlimit(target, resource.RLIMIT_CPU, (1, 1)),
        "priority": lambda: os.setpriority(os.PRIO_PROCESS, target, 19),
        "affinity": lambda: os.sched_setaffinity(target, {0}),
        "scheduler": lambda: os.sched_setscheduler(target, os.SCHED_IDLE, os.sched_param(0)),
        "scheduler parameters": lambda: os.sched_setparam(target, os.sched_param(0)),
        "scheduler attributes": lambda: _call(_SCHED_SETATTR, target, _ATTRIBUTE, 0),
        "ioprio": lambda: _call(_IOPRIO_SET, 1, target, 3 << 13),
    }


def met(attempt: Callable[[], object]) -> int:
    """In a process of its own: one that hits itself (its user's priority, say) is not to spoil the next."""
    if os.fork() == 0:
        try:
            attempt()
        except OSError as error:
            os._exit(error.errno or errno.EIO)
        except BaseException:  # noqa: BLE001 - told as what it is: no errno
            os._exit(255)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.wait()[1])


def main() -> None:
    worker = worker_above(os.getppid())
    host = parent_of(worker)
    result: dict[str, object] = {}
    for name, target in (("host", host), ("worker", worker), ("relay", relay_of(host))):
        tried = {attempt: met(do) for attempt, do in {**attempts(target), **further(target)}.items()}
        threads = {
            f"{attempt} {thread}": met(do)
            for thread in sorted(map(int, os.listdir(f"/proc/{target}/task")))
            for attempt, do in of_thread(thread).items()
        }
        result[name] = {"process": tried, "threads": threads}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
