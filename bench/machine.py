"""The machine: what it is, and its floor, which is what it takes to start a shell at all."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import Final

from bench.series import Series

BASH: Final = shutil.which("bash") or "/bin/bash"
_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int
    memory_gib: int
    kernel: str
    python: str
    bash: str

    @classmethod
    def this(cls) -> Machine:
        version = subprocess.run([BASH, "-c", 'echo "$BASH_VERSION"'], capture_output=True, text=True, check=True)
        return cls(
            cpu=_first("/proc/cpuinfo", "model name") or platform.machine(),
            cores=len(os.sched_getaffinity(0)),
            memory_gib=round(int(_first("/proc/meminfo", "MemTotal").split()[0]) / 2**20),
            kernel=platform.release(),
            python=platform.python_version(),
            bash=version.stdout.strip(),
        )

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib} GiB, Linux {self.kernel}, "
            f"Python {self.python}, bash {self.bash}"
        )


def spawn_bash() -> float:
    """The floor: seconds of one ``posix_spawn`` of ``bash -c true`` and its wait, unconfined."""
    began = time.perf_counter()
    os.waitpid(os.posix_spawn(BASH, ["bash", "-c", "true"], _ENVIRONMENT), 0)
    return time.perf_counter() - began


def spawn_many(count: int) -> float:
    """Seconds of ``count`` such shells, as many at a time as keep every core busy: the most that the machine can do."""
    began = time.perf_counter()
    running = 0
    for _ in range(count):
        if running >= 2 * (os.cpu_count() or 1):
            os.wait()
            running -= 1
        os.posix_spawn(BASH, ["bash", "-c", "true"], _ENVIRONMENT)
        running += 1
    for _ in range(running):
        os.wait()
    return time.perf_counter() - began


def idle_floor(count: int = 300) -> Series:
    """Milliseconds of the floor, one every 10 ms, with nothing else of ours running."""
    values = []
    for _ in range(count):
        time.sleep(0.01)
        values.append(spawn_bash())
    return Series.of(values, 1e3)


def _first(path: str, member: str) -> str:
    with open(path) as lines:
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(member)), "")
