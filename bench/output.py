"""1 GB of output from one command, beside ``cat >/dev/null`` of the same output, and what the processes grow by. The second
row stands beside a command whose output nobody has to be handed: what no reader can come near.

``python -m bench.output``
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench.budgets import BUDGETS
from bench.pod import Pod, running_pod
from bench.processes import cpu_seconds, peak_mib, peak_reset, pythons, resident_mib
from bench.rows import Check, Row
from bench.running import alone
from bench.series import Series

SIZE = 10**9
_LINE = b"A line of an output that is much too long for anybody to read, number %09d.\n"


async def measure(short: bool) -> list[Row]:
    size = SIZE // 4 if short else SIZE
    async with running_pod() as pod:
        path = pod.workspace / "large.txt"
        make_file(path, size)
        await _ours(pod)
        _to_null(path), _to_a_pipe(path)
        ours, null, pipe = [], [], []
        own = pythons(pod.pid)
        before = resident_mib(own)
        peak_reset(own)
        spent = cpu_seconds(own)
        rounds = 3 if short else 7
        for _ in range(rounds):
            ours.append(await _ours(pod))
            null.append(_to_null(path))
            pipe.append(_to_a_pipe(path))
        cpu = (cpu_seconds(own) - spent) / rounds * 1e3
        grown = peak_mib(own) - before
        series, piped = Series.of(ours, 1e3), Series.of(pipe, 1e3)
        name = f"{size // 10**6} MB of output"
        return [
            Row.of(
                name,
                "ms",
                series,
                beside=("cat FILE | cat >/dev/null", piped),
                cpu_ms=cpu,
                checks=[Check(series.median / piped.median, BUDGETS.output_ratio)],
            ),
            Row.of(f"{name}, to no pipe at all", "ms", series, beside=("cat FILE >/dev/null", Series.of(null, 1e3))),
            Row(f"{name}: the processes grow", "MiB", grown, checks=(Check(grown, BUDGETS.output_growth_mib),)),
        ]


async def _ours(pod: Pod) -> float:
    began = time.perf_counter()
    result = await pod.host.use("bash", {"command": "cat large.txt"})
    took = time.perf_counter() - began
    assert result["output"]["exitCode"] == 0, result
    return took


def make_file(path: Path, size: int) -> None:
    lines = 10_000
    with path.open("wb") as file:
        written = 0
        while written < size:
            piece = b"".join(_LINE % (written + number) for number in range(lines))[: size - written]
            written += file.write(piece)
    path.chmod(0o644)


def _to_null(path: Path) -> float:
    return _shell(f"cat {path} >/dev/null")


def _to_a_pipe(path: Path) -> float:
    return _shell(f"cat {path} | cat >/dev/null")


def _shell(script: str) -> float:
    began = time.perf_counter()
    subprocess.run(["bash", "-c", script], check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    alone("output", measure)
