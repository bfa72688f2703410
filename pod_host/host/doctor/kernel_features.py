"""What the kernel offers, and which kind of kernel it seems to be."""

from __future__ import annotations

import os
from pathlib import Path

from pod_host.host.doctor.findings import Finding
from pod_host.sandbox import cgroup, kernel
from pod_host.sandbox.landlock import SIGNALS_FROM_ABI


def look_at_kernel() -> list[Finding]:
    uname = os.uname()
    findings = [
        Finding("kernel", "kind", "note", f"{kind_of_kernel()}; {uname.sysname} {uname.release}, {uname.machine}")
    ]
    if uname.machine not in ("x86_64", "aarch64"):
        findings.append(Finding("kernel", "machine", "failure", f"{uname.machine} is not supported"))
    findings.append(_landlock())
    findings.append(_seccomp())
    findings.append(_pidfd())
    yama = _read("/proc/sys/kernel/yama/ptrace_scope")
    findings.append(Finding("kernel", "Yama", "note", f"ptrace_scope {yama}" if yama else "not there"))
    findings.append(_cgroup())
    return findings


def kind_of_kernel() -> str:
    """Hints, no proof: gVisor's kernel names itself in its log and version, Kata's guest in its command line."""
    version, command_line = _read("/proc/version"), _read("/proc/cmdline")
    modules = Path("/proc/modules")
    if "gvisor" in version.lower() or (os.uname().release == "4.4.0" and not modules.exists()):
        return "gVisor"
    if "kata" in command_line.lower() or "agent.log" in command_line:
        return "a Kata guest"
    return "an ordinary kernel"


def _landlock() -> Finding:
    abi = kernel.landlock_abi()
    if abi == 0:
        says = (
            "not there: nothing but user ids keeps commands from files of the host; run it under another uid, or gVisor"
        )
        return Finding("kernel", "Landlock", "warning", says)
    if abi < SIGNALS_FROM_ABI:
        return Finding("kernel", "Landlock", "warning", f"ABI {abi}: below {SIGNALS_FROM_ABI} it scopes no signals")
    return Finding("kernel", "Landlock", "ok", f"ABI {abi}")


def _seccomp() -> Finding:
    status = _read("/proc/self/status")
    if "\nSeccomp:" not in status:
        return Finding("kernel", "seccomp", "warning", "not there: commands can change the host's limits and priority")
    mode = status.partition("\nSeccomp:")[2].split()[0]
    says = {"0": "there; no filter of the container's own", "2": "there, with a filter of the container's own"}
    return Finding("kernel", "seccomp", "ok", says.get(mode, f"there, mode {mode}"))


def _pidfd() -> Finding:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as fault:
        return Finding("kernel", "pidfd", "failure", f"pidfd_open: {fault.strerror}; the host cannot watch its worker")
    return Finding("kernel", "pidfd", "ok", "there")


def _cgroup() -> Finding:
    own = cgroup.own_cgroup()
    if own is None:
        return Finding("kernel", "cgroup", "note", "no version 2 that is mounted")
    base = cgroup.delegated(own)
    if base is None:
        says = "not delegated"
    else:
        says = "delegated" if os.access(base.directory, os.W_OK) else "a container's own, which it may not divide"
    return Finding("kernel", "cgroup", "note", f"version 2, {own.path}: {says}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
