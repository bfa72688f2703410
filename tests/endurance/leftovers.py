"""What is left when nothing runs: processes, descriptors, threads, temporary files, memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pod_host import limits
from tests.attack.rig import cmdline
from tests.endurance.pod import Pod
from tests.sandbox.conftest import processes_of

SHELLS_AHEAD: Final = 8  # the most that may stand ready, one use each
DESCRIPTORS_MORE: Final = 3  # than at the first rest: an idle connection to a gate is closed when the next is needed
MEMORY_MORE_MIB: Final = 96  # than at the first rest of the same life: the transcript cache alone may hold 64
MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class Look:
    """One process at rest. ``descriptors`` by what they are on; empty where we may not look."""

    pid: int
    threads: int
    rss_mib: float
    descriptors: Counter[str] = field(default_factory=Counter)

    @classmethod
    def at(cls, pid: int) -> Look:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        descriptors: Counter[str] = Counter()
        with suppress(PermissionError):
            for path in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    descriptors[os.readlink(path).split(":")[0].split("/")[0] or "file"] += 1
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
    """All but init, host, worker, zygote, and the shells that stand ready."""
    host, worker, zygote = pod.host, pod.worker, pod.zygote
    if not (host and worker and zygote):
        yield f"host {host}, worker {worker}, zygote {zygote}"
        return
    ready = set(processes_of(zygote)) | set(processes_of(worker))
    waiting = 0
    for pid, state in pod.inhabitants().items():
        if pid in (host, worker, zygote):
            if state in "ZXT":
                yield f"process {pid} is in state {state}"
            continue
        told = cmdline(pid).replace(b"\0", b" ").decode(errors="replace")[:120]
        if state == "Z" or pid not in ready or b"endurance" in cmdline(pid) or not _is_shell(pid):
            yield f"process {pid} ({state}) {told}"
        else:
            waiting += 1
    if waiting > SHELLS_AHEAD:
        yield f"{waiting} shells stand ready"


def _is_shell(pid: int) -> bool:
    with suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in ("bash", "sh", "dash")
    return False


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
