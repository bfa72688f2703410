"""``read``, ``write`` and ``edit`` of a 10 KB file from core to core, beside the bare system calls that they need.

``python -m bench.files``
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.budgets import BUDGETS
from bench.core import Connection
from bench.pod import Pod, running_pod
from bench.processes import cpu_seconds, pythons
from bench.rows import Check, Row
from bench.running import alone
from bench.series import Series

LINE = "All that a file of ten kilobytes holds is a line like this.\n"
TEXT = LINE * (10_000 // len(LINE))


async def measure(short: bool) -> list[Row]:
    count = 300 if short else 2000
    async with running_pod() as pod:
        await pod.host.use("write", {"path": "file.txt", "content": TEXT})
        path = pod.workspace / "bare.txt"
        path.write_text(TEXT)
        return [
            await _beside(pod, "nothing: workspace.sweep", count, _nothing, None),
            await _beside(pod, "read of 10 KB", count, _read, lambda: _bare_read(path)),
            await _beside(pod, "write of 10 KB", count, _write, lambda: _bare_write(path)),
            await _beside(pod, "edit of 10 KB", count, _edit, lambda: _bare_edit(path)),
        ]


async def _beside(
    pod: Pod,
    what: str,
    count: int,
    tool: Callable[[Connection, int], Awaitable[object]],
    bare: Callable[[], object] | None,
) -> Row:
    """The tool and the bare calls in turn."""
    ours: list[float] = []
    floor: list[float] = []
    own = pythons(pod.pid)
    for number in range(count + 20):
        if number == 20:  # what came before was to warm up
            ours, floor = [], []
            spent = cpu_seconds(own)
        began = time.perf_counter()
        await tool(pod.host, number)
        ours.append(time.perf_counter() - began)
        if bare is not None:
            began = time.perf_counter()
            bare()
            floor.append(time.perf_counter() - began)
    cpu = (cpu_seconds(own) - spent) / count * 1e3
    series = Series.of(ours, 1e3)
    if not floor:
        return Row.of(what, "ms", series, cpu_ms=cpu)
    beside = Series.of(floor, 1e3)
    over = Check(series.median - beside.median, BUDGETS.file_tool_over_ms, "over it")
    return Row.of(what, "ms", series, beside=("bare system calls", beside), cpu_ms=cpu, checks=[over])


async def _nothing(host: Connection, number: int) -> object:
    return await host.ask("workspace.sweep", {})


async def _read(host: Connection, number: int) -> object:
    return await host.use("read", {"path": "file.txt"})


async def _write(host: Connection, number: int) -> object:
    return await host.use("write", {"path": "file.txt", "content": TEXT})


async def _edit(host: Connection, number: int) -> object:
    """To and fro: an edit that changes nothing is refused."""
    old, new = ("file", "elif") if number % 2 == 0 else ("elif", "file")
    return await host.use("edit", {"path": "file.txt", "old_string": old, "new_string": new, "replace_all": True})


def _bare_read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fstat(descriptor)
        return os.read(descriptor, 1 << 20)
    finally:
        os.close(descriptor)


def _bare_write(path: Path, content: bytes = TEXT.encode()) -> None:
    """A new file, renamed into place."""
    beside = path.with_name(".beside")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
    os.rename(beside, path)


def _bare_edit(path: Path) -> None:
    _bare_write(path, _bare_read(path).replace(b"file", b"elif"))


if __name__ == "__main__":
    alone("files", measure)
