"""What a command cannot do to host, worker and relay: each property by itself, at every Landlock ABI, for both kinds of host.

At an ABI below 6 the kernel's Landlock does not scope signals, and the commands' seccomp filter stands in.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable

import pytest

from tests.attack.battery import NEWEST, battery
from tests.attack.rig import as_each, attacked

REFUSED = (errno.EPERM, errno.EACCES)
# 0: none at all. The newest is this kernel's own.
at_each_abi = pytest.mark.parametrize("abi", [0, *range(2, NEWEST + 1)])

SIGNALS = ["kill", "kill group", "tkill", "tgkill", "pidfd", "proc descriptor", "sigqueue"]
PTRACE = ["ptrace", "ptrace attach", "kcmp", "robust list", "namespaces"]
MEMORY = [
    "process_vm_readv", "process_vm_writev", "mem", "memory write", "maps", "mapped files", "auxiliary vector", "stack",
    "executable", "process_madvise", "migrate_pages",
]  # fmt: skip
ENVIRONMENT = ["environ"]
DESCRIPTORS = ["descriptors", "descriptor", "descriptor info", "pidfd_getfd"]
LIMITS = ["prlimit"]
PRIORITIES = ["setpriority", "setpriority group", "setpriority user", "autogroup", "timer slack"]
SCHEDULING = ["affinity", "scheduler"]
IO_PRIORITY = ["ioprio", "ioprio user"]
PLACES = ["root", "cwd"]
REST = ["core scheduling", "oom score", "name", "clear_refs", "core filter"]
OF_THREADS = [
    "signal", "limit", "priority", "affinity", "scheduler", "scheduler parameters", "scheduler attributes", "ioprio",
]  # fmt: skip


def went_through(
    uid: int, abi: int, attempts: Iterable[str], targets: tuple[str, ...] = ("host", "worker", "relay")
) -> list[str]:
    met = battery(uid, abi).met
    names = [f"{target} {attempt}" for target in targets for attempt in attempts]
    return [f"{name}: {errno.errorcode.get(met[name], met[name])}" for name in names if met[name] not in REFUSED]


@as_each
@at_each_abi
def test_signals(uid: int, abi: int) -> None:
    assert went_through(uid, abi, SIGNALS) == []
    assert battery(uid, abi).lives


@as_each
@at_each_abi
def test_signals_that_the_kernel_sends_for_a_descriptors_owner(uid: int, abi: int) -> None:
    """SIGIO ends a process that does not expect it. To name an owner may be allowed: the signal must not arrive."""
    tried = [name for name in battery(uid, abi).met if " sigio" in name]
    assert len(tried) == 15
    assert battery(uid, abi).lives


@as_each
@at_each_abi
def test_ptrace(uid: int, abi: int) -> None:
    assert went_through(uid, abi, PTRACE) == []


@as_each
@at_each_abi
def test_memory(uid: int, abi: int) -> None:
    assert went_through(uid, abi, MEMORY) == []


@as_each
@at_each_abi
def test_environment(uid: int, abi: int) -> None:
    assert went_through(uid, abi, ENVIRONMENT) == []


@as_each
@at_each_abi
def test_descriptors(uid: int, abi: int) -> None:
    assert went_through(uid, abi, DESCRIPTORS) == []


@as_each
@at_each_abi
def test_directories_by_way_of_proc(uid: int, abi: int) -> None:
    assert went_through(uid, abi, PLACES) == []


@as_each
@at_each_abi
def test_limits(uid: int, abi: int) -> None:
    """A limit on processor time, set from outside, kills."""
    assert went_through(uid, abi, LIMITS) == []
    seen = battery(uid, abi)
    assert {name: text for name, text in seen.after.items() if "limits" in name} == {
        name: text for name, text in seen.before.items() if "limits" in name
    }


@as_each
@at_each_abi
def test_priorities(uid: int, abi: int) -> None:
    assert went_through(uid, abi, PRIORITIES) == []


@as_each
@at_each_abi
def test_processors_and_policies(uid: int, abi: int) -> None:
    assert went_through(uid, abi, SCHEDULING) == []


@as_each
@at_each_abi
def test_io_priorities(uid: int, abi: int) -> None:
    assert went_through(uid, abi, IO_PRIORITY) == []


@as_each
@at_each_abi
def test_what_else_there_is_to_set(uid: int, abi: int) -> None:
    # The kernel's own ways to say no: to another's thread names; to core scheduling, where cores have but one thread.
    allowed = {"name: EINVAL", "core scheduling: EINVAL", "core scheduling: ENODEV"}
    assert {text.partition(" ")[2] for text in went_through(uid, abi, REST)} <= allowed


@as_each
@at_each_abi
@pytest.mark.parametrize("attempt", OF_THREADS)
def test_every_thread(uid: int, abi: int, attempt: str) -> None:
    """A thread has a number of its own, that a filter for processes alone would let pass."""
    met = battery(uid, abi).met
    for target in ("host", "worker", "relay"):
        codes = {
            name: code for name, code in met.items() if name.startswith(f"{target} {attempt} ") and name[-1].isdigit()
        }
        assert codes
        assert {name: code for name, code in codes.items() if code not in REFUSED} == {}


@as_each
@at_each_abi
def test_nothing_changed_and_no_thread_came_later(uid: int, abi: int) -> None:
    seen = battery(uid, abi)
    assert seen.after == seen.before


@as_each
def test_without_filters_memory_and_descriptors_hold(uid: int) -> None:
    """A process that is not dumpable keeps them, whatever else the kernel lacks."""
    met = battery(uid, NEWEST, seccomp=False).met
    for attempt in (*PTRACE[:2], *MEMORY[:4], *ENVIRONMENT, *DESCRIPTORS):
        assert met[f"host {attempt}"] in REFUSED, attempt
        assert met[f"worker {attempt}"] in REFUSED, attempt
    # And so it is the filter that refuses the rest: without it the kernel does not.
    assert {code for name, code in met.items() if name.startswith("worker priority ")} == {0}


@as_each
@at_each_abi
async def test_abstract_sockets_of_others(uid: int, abi: int) -> None:
    """They have no place in the file system and no owner; from ABI 6 the kernel keeps commands from those of others."""
    name = f"pod-host-attack-{uid}-{abi}-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(f"\0{name}")
        theirs.listen()
        async with attacked(uid, abi=abi) as rig:
            ask = f"import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + {name!r})"
            output = await rig.bash(f'python3 -c "{ask}"')
            assert ("PermissionError" in output["stderr"]) is (abi >= 6), output
            own = "import socket; s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + str()); s.listen(); "
            own += "socket.socket(socket.AF_UNIX).connect(s.getsockname()); print(1)"
            assert (await rig.bash(f'python3 -c "{own}"'))["stdout"] == "1\n"
