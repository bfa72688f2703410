"""What processes cost: CPU time and memory, of one and of a whole tree, from /proc."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def tree(root: int) -> list[int]:
    """The process and all that it and its children started and that lives."""
    pids = [root]
    for pid in pids:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                pids += map(int, children.read_text().split())
    return pids


def pythons(root: int) -> list[int]:
    """Host, worker and zygote: those of the tree that run this interpreter."""
    return [pid for pid in tree(root) if "python" in _executable(pid)]


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of the processes' threads that live, in nanoseconds' exactness. Children that ended are not in it."""
    spent = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                spent += int(thread.read_text().split()[0])
    return spent / 1e9


def pss_mib(pids: list[int]) -> float:
    """Proportional set size of them all: a page that n processes share counts an nth each. Raises PermissionError for
    processes that keep their memory to themselves, unless we are root."""
    return sum(_rollup(pid, "Pss") for pid in pids) / 1024


def alone_mib(pids: list[int]) -> float:
    """The same were nobody else on the machine: of what is shared, the most that any of them maps of it counts once."""
    private = 0
    shared: dict[str, int] = {}
    for pid in pids:
        name = ""
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            member, _, value = line.partition(":")
            if "-" in member.split(" ")[0]:
                span, _, offset, device, inode, *_ = line.split()
                name = f"{device} {inode} {offset}" if inode != "0" else span
                here = 0
            elif member.startswith("Private_"):
                private += int(value.split()[0])
            elif member.startswith("Shared_"):
                here += int(value.split()[0])
                shared[name] = max(shared.get(name, 0), here)
    return (private + sum(shared.values())) / 1024


def peak_reset(pids: list[int]) -> None:
    """Forget how large they were: `peak_mib` counts from here."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mib(pids: list[int]) -> float:
    """The most that each had resident since `peak_reset`, together."""
    return sum(_status(pid, "VmHWM") for pid in pids) / 1024


def resident_mib(pids: list[int]) -> float:
    return sum(_status(pid, "VmRSS") for pid in pids) / 1024


def _status(pid: int, member: str) -> int:
    return _member(Path(f"/proc/{pid}/status").read_text(), member)


def _rollup(pid: int, member: str) -> int:
    return _member(Path(f"/proc/{pid}/smaps_rollup").read_text(), member)


def _member(text: str, member: str) -> int:
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{member}:"))


def _executable(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""
