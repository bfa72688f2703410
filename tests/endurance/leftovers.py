"""What is left when nothing runs: processes, descriptors, threads, temporary files, memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pod_host import limits
from tests.attack.rig import cmdline
from tests.endurance.pod import Pod
from tests.sandbox.conftest import processes_of

# The worker holds of each: its gate and its two streams; its memory and its stat; its pidfd.
OF_A_SHELL: Final = {"pipe": 3, "file": 2, "anon_inode": 1}
DESCRIPTORS_MORE: Final = 2  # than at the first rest: a renewal is on its way, say
MEMORY_MORE_MIB: Final = 128  # than at the first rest of a life: transcripts may take 64, and freed room the rest
MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class Look:
    """One process at rest. ``descriptors`` by what they are on, but for ``known`` ones; empty where we may not look."""

    pid: int
    threads: int
    rss_mib: float
    descriptors: Counter[str] = field(default_factory=Counter)

    @classmethod
    def at(cls, pid: int, known: Mapping[str, int]) -> Look:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        descriptors: Counter[str] = Counter()
        with suppress(PermissionError):
            for path in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    kind = os.readlink(path).partition(":")[0]
                    descriptors["file" if kind.startswith("/") else kind] += 1
        if descriptors:
            descriptors.subtract(known)
        return cls(pid, int(status["Threads"]), int(status["VmRSS"].split()[0]) / 1024, descriptors)

    def more_than(self, before: Look, name: str) -> Iterator[str]:
        if self.threads > before.threads + 1:
            yield f"{name}: {self.threads} threads, {before.threads} before"
        for kind, count in self.descriptors.items():
            if count > before.descriptors[kind] + DESCRIPTORS_MORE:
                yield f"{name}: {count} descriptors on {kind}, {before.descriptors[kind]} before"
        if self.pid == before.pid and self.rss_mib > before.rss_mib + MEMORY_MORE_MIB:
            yield f"{name}: {self.rss_mib:.0f} MiB, {before.rss_mib:.0f} before"


def processes(pod: Pod) -> Iterator[str]:
    """All but init, host, worker, zygote, relay, and the shells that stand ready: idle ones, each for one use."""
    ours = {"host": pod.host, "worker": pod.worker, "zygote": pod.zygote}
    if pod.place.relay:
        ours["relay"] = pod.relay
    if not all(ours.values()):
        yield f"not all is there: {ours}"
        return
    ready = shells(pod)
    for pid, state in pod.inhabitants().items():
        if pid in ours.values():
            if state in "ZXT":
                yield f"process {pid} is in state {state}"
            continue
        told = cmdline(pid).replace(b"\0", b" ").decode(errors="replace")[:120]
        if state == "Z" or pid not in ready:
            yield f"process {pid} ({state}) {told}"
    if len(ready) > limits.SHELLS_AHEAD:
        yield f"{len(ready)} shells stand ready"


def shells(pod: Pod) -> set[int]:
    """Those that stand ready: bash, a child of ours, with none of its own and nothing of a command in its arguments."""
    parents = [pid for pid in (pod.worker, pod.zygote) if pid]
    children = [pid for parent in parents for pid in processes_of(parent) if pid not in parents]
    return {pid for pid in children if _is_idle_bash(pid)}


def _is_idle_bash(pid: int) -> bool:
    program, *arguments = cmdline(pid).split(b"\0")
    return program.endswith(b"bash") and not b" ".join(arguments[1:]).strip() and not processes_of(pid)


def files(pod: Pod) -> Iterator[str]:
    """Files half written, and a spool past its size."""
    for directory in (pod.workspace, pod.harness, pod.base / "disk" / "skills"):
        for found in directory.rglob(".*"):
            if found.name.startswith(".pod-host-"):
                yield f"file {found.relative_to(pod.base)}"
    with suppress(FileNotFoundError):
        size = sum(path.stat().st_size for path in pod.spool.iterdir())
        if size > limits.SPOOL_TOTAL_BYTES:
            yield f"the spool holds {size / MIB:.0f} MiB"
