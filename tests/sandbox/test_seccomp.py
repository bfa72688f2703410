"""The commands' filter, judged by an interpreter of its program: also for the architecture that this machine is not."""

from __future__ import annotations

import errno
import struct

import pytest

from pod_host.sandbox.seccomp import ARCHITECTURES, MOST_PROTECTED, build_filter

HOST, WORKER, GROUP, ZYGOTE, OTHER = 100, 200, 90, 300, 5000
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
MACHINES = sorted(ARCHITECTURES)


def judge(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """Runs a classic BPF program over a struct seccomp_data."""
    values = [argument & 0xFFFFFFFFFFFFFFFF for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, audit, 0, *values)
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, true, false, k = instructions[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x15:
                at += true if accumulator == k else false
            case 0x35:
                at += true if accumulator >= k else false
            case 0x05:
                at += k
            case 0x06:
                return int(k)
            case _:
                raise AssertionError(f"instruction {code:#x}")


def verdict(
    machine: str, number: int, *arguments: int, guard: bool = False, protected: tuple[int, ...] = (HOST, WORKER)
) -> int:
    program = build_filter(machine, protected, [GROUP], zygote=ZYGOTE, guard_signals=guard)
    return judge(program, ARCHITECTURES[machine].audit, number, *arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_limits_are_set_on_oneself_only(machine: str) -> None:
    at = ARCHITECTURES[machine]
    pointer_with_empty_low_half = 0x7F00_0000_0000
    assert verdict(machine, at.prlimit64, 0, 7, 0x7FFF1234, 0) == ALLOW
    assert verdict(machine, at.prlimit64, OTHER, 7, 0, 0x7FFF1234) == ALLOW  # only asks
    for new in (0x7FFF1234, pointer_with_empty_low_half):
        assert verdict(machine, at.prlimit64, OTHER, 7, new, 0) == EPERM
        assert verdict(machine, at.prlimit64, HOST, 7, new, 0) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_priorities_and_cpus_of_the_protected_are_out_of_reach(machine: str) -> None:
    at = ARCHITECTURES[machine]
    for number, process in ((at.setpriority, 0), (at.ioprio_set, 1)):
        assert verdict(machine, number, process, 0, 5) == ALLOW
        assert verdict(machine, number, process, OTHER, 5) == ALLOW
        for target in (HOST, WORKER, ZYGOTE, HOST | 0xABCD << 32):  # the kernel looks at an int
            assert verdict(machine, number, process, target, 5) == EPERM
        for which in {0, 1, 2, 3} - {process}:
            assert verdict(machine, number, which, 0, 5) == EPERM
    for number in at.scheduling:
        assert verdict(machine, number, OTHER) == ALLOW
        assert verdict(machine, number, WORKER) == EPERM
        assert verdict(machine, number, ZYGOTE) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_signals_are_guarded_where_landlock_does_not(machine: str) -> None:
    at = ARCHITECTURES[machine]
    for number in at.signals:
        assert verdict(machine, number, HOST, 9, 9, guard=False) == ALLOW
        assert verdict(machine, number, OTHER, 9, 9, guard=True) == ALLOW
        assert verdict(machine, number, 0, 9, 9, guard=True) == ALLOW
        assert verdict(machine, number, ZYGOTE, 9, 9, guard=True) == ALLOW
        for target in (HOST, WORKER, -1, -GROUP):
            assert verdict(machine, number, target, 9, 9, guard=True) == EPERM
    assert verdict(machine, at.pidfd_send_signal, 3, 9, guard=True) == EPERM
    for command, target, right in (
        (8, HOST, EPERM),
        (8, -GROUP, EPERM),
        (8, OTHER, ALLOW),
        (15, 0, EPERM),
        (4, HOST, ALLOW),
    ):
        assert verdict(machine, at.fcntl, 3, command, target, guard=True) == right
    assert verdict(machine, at.ioctl, 3, 0x8901, guard=True) == EPERM
    assert verdict(machine, at.ioctl, 3, 0x5401, guard=True) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_foreign_calls_are_closed(machine: str) -> None:
    program = build_filter(machine, [HOST], [GROUP], zygote=ZYGOTE, guard_signals=False)
    for audit in (0x40000003, 0x40000028, *(ARCHITECTURES[other].audit for other in MACHINES if other != machine)):
        assert judge(program, audit, 1) == KILL
    if ARCHITECTURES[machine].x32:
        assert judge(program, ARCHITECTURES[machine].audit, 0x40000000 | 39) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("guard", [False, True])
def test_any_number_of_threads_makes_a_program_that_the_kernel_takes(machine: str, guard: bool) -> None:
    threads = tuple(range(1000, 1400))
    program = build_filter(
        machine, threads, [GROUP, GROUP + 1], zygote=ZYGOTE, guard_signals=guard, guard_truncate=True, guard_cgroup=True
    )
    assert len(program) // 8 <= 4096
    at = ARCHITECTURES[machine]
    last = threads[MOST_PROTECTED - 1]
    assert judge(program, at.audit, at.scheduling[0], last) == EPERM
    assert judge(program, at.audit, at.signals[0], -GROUP - 1) == (EPERM if guard else ALLOW)


@pytest.mark.parametrize("machine", MACHINES)
def test_truncate_by_path_is_closed_where_landlock_does_not_know_it(machine: str) -> None:
    at = ARCHITECTURES[machine]
    assert verdict(machine, at.truncate, 0x7FFF1234, 0) == ALLOW
    program = build_filter(machine, [HOST], [], zygote=ZYGOTE, guard_signals=False, guard_truncate=True)
    assert judge(program, at.audit, at.truncate, 0x7FFF1234, 0) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_clone3_is_unknown_where_it_could_lead_out_of_a_cgroup(machine: str) -> None:
    """Libraries then take clone, which cannot."""
    at = ARCHITECTURES[machine]
    assert verdict(machine, 435, 0x7FFF1234, 88) == ALLOW
    program = build_filter(machine, [HOST], [], zygote=ZYGOTE, guard_signals=False, guard_cgroup=True)
    assert judge(program, at.audit, 435, 0x7FFF1234, 88) == ENOSYS
