"""What a user would have instead, from PyPI, in a venv of its own: swe-rex, the Anthropic SDK's sandbox tools, and
inspect-tool-support, each used as it is meant to be, in turn with us in one run.

They are not the same thing. Only ours and swe-rex cross a network protocol to a server; the SDK's tools run in the caller's
own process; only ours confines what it runs. In a session a command goes to a shell that lives on; fresh is a shell of its
own.

    python -m bench.peers
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from bench.exec import run_true
from bench.files import TEXT
from bench.machine import spawn_bash
from bench.pod import running_pod
from bench.rows import Row
from bench.running import alone
from bench.series import Series

HERE = Path(__file__).parent
VENV = HERE / ".peers"
LOCK = HERE.parent / "locks" / "peers.lock"
DRIVERS = {"swe-rex": "swe_rex", "Anthropic SDK": "anthropic_sdk", "inspect-tool-support": "inspect_tools"}
OPERATIONS = {
    "true-fresh": "true, a fresh shell",
    "true-session": "true, in a session",
    "read": "read of 10 KB",
    "write": "write of 10 KB",
    "edit": "edit of 10 KB",
}
ROUND = 5
SLOW_SECONDS = 0.1  # what takes as long gets fewer rounds

Ask = Callable[[str, int], Awaitable[list[float]]]


async def measure(short: bool) -> list[Row]:
    python = await asyncio.to_thread(_venv)
    times: dict[tuple[str, str], list[float]] = {}
    async with AsyncExitStack() as stack:
        peers: dict[str, tuple[list[str], Ask]] = {"pod_host": await stack.enter_async_context(_ours())}
        for name, driver in DRIVERS.items():
            peers[name] = await stack.enter_async_context(_driven(python, driver))
        for number in range(4 if short else 41):
            for name, (operations, ask) in peers.items():
                for operation in operations:
                    so_far = times.setdefault((operation, name), [])
                    if number % 8 == 0 or not so_far or min(so_far) < SLOW_SECONDS:
                        took = await ask(operation, ROUND)
                        so_far += took if number else []
            floor = times.setdefault(("true-fresh", "bash -c true"), [])
            floor += [spawn_bash() for _ in range(ROUND)]
    rows = []
    for operation, what in OPERATIONS.items():
        ours = times.get((operation, "pod_host")) or times[("true-fresh", "pod_host")]
        for (measured, name), took in times.items():
            if measured == operation and took:
                beside = None if name == "pod_host" else ("pod_host", Series.of(ours, 1e3))
                rows.append(Row.of(f"{name}: {what}", "ms", Series.of(took, 1e3), beside=beside))
    return rows


@asynccontextmanager
async def _ours() -> AsyncIterator[tuple[list[str], Ask]]:
    async with running_pod() as pod:
        host = pod.host
        await host.use("write", {"path": "file.txt", "content": TEXT})

        async def once(operation: str, number: int) -> None:
            match operation:
                case "true-fresh":
                    await run_true(host)
                case "read":
                    await host.use("read", {"path": "file.txt"})
                case "write":
                    await host.use("write", {"path": "file.txt", "content": TEXT})
                case "edit":
                    old, new = ("file", "elif") if number % 2 == 0 else ("elif", "file")
                    edit = {"path": "file.txt", "old_string": old, "new_string": new, "replace_all": True}
                    await host.use("edit", edit)

        async def ask(operation: str, count: int) -> list[float]:
            took = []
            for number in range(count + count % 2):
                began = time.perf_counter()
                await once(operation, number)
                took.append(time.perf_counter() - began)
            return took

        yield ["true-fresh", "read", "write", "edit"], ask


@asynccontextmanager
async def _driven(python: Path, driver: str) -> AsyncIterator[tuple[list[str], Ask]]:
    """A peer's driver, in a directory of its own."""
    directory = Path(tempfile.mkdtemp(prefix="peer-", dir="/var/tmp"))
    (directory / "file.txt").write_text(TEXT)
    process = await asyncio.create_subprocess_exec(
        *(str(python), str(HERE / "peer_drivers" / f"{driver}.py"), str(directory / "file.txt")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=directory,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, answers = process.stdin, process.stdout

    async def ask(operation: str, count: int) -> list[float]:
        to.write(f"{operation} {count + count % 2}\n".encode())
        took: list[float] = json.loads(await answers.readline())
        return took

    try:
        operations: list[str] = json.loads(await answers.readline())
        yield operations, ask
    finally:
        to.close()
        await process.wait()
        shutil.rmtree(directory)


def _venv() -> Path:
    """The peers' interpreter; their venv is made when the lock is newer."""
    made, python = VENV / ".made", VENV / "bin" / "python"
    if not made.exists() or made.stat().st_mtime < LOCK.stat().st_mtime:
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([*install, "-r", str(LOCK)], check=True)
        made.touch()
    return python


if __name__ == "__main__":
    alone("peers", measure)
