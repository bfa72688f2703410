"""What no host that is made like ours can be faster than: measured beside the rows that are over their budgets."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Final

from websockets.asyncio.client import connect

from bench.pod import Pod

_SPAWNS: Final = """
import json, os, sys, time
argv, count, took = sys.argv[2:], int(sys.argv[1]), []
nothing = os.open(os.devnull, os.O_WRONLY)
for _ in range(count):
    began = time.perf_counter()
    os.waitpid(os.posix_spawnp(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, nothing, 1)]), 0)
    took.append(time.perf_counter() - began)
print(json.dumps(took))
"""
_ECHO: Final = """
import asyncio
from websockets.asyncio.server import serve

async def echo(connection):
    async for message in connection:
        await connection.send(message)

async def main():
    async with serve(echo, "127.0.0.1", 0, compression=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

asyncio.run(main())
"""
_FRAME: Final = json.dumps(
    {"t": "req", "id": 1, "m": "workspace.exec", "p": {"tool": "bash", "input": {"command": "true"}}}
)


async def spawned_inside(pod: Pod, argv: Sequence[str], count: int) -> list[float]:
    """Seconds of each ``posix_spawn`` of a program, and its wait, by a command: confined, and with its environment."""
    command = shlex.join(["python3", "-c", _SPAWNS, str(count), *argv])
    result = await pod.host.use("bash", {"command": command})
    assert result["output"]["exitCode"] == 0, result
    took: list[float] = json.loads(result["output"]["stdout"])
    return took


async def echoes(count: int, pause_seconds: float) -> list[float]:
    """Seconds of each small WebSocket message to another Python and back, with a pause before it."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _ECHO, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        took = []
        async with connect(f"ws://127.0.0.1:{port}", compression=None, proxy=None) as connection:
            for _ in range(count):
                await asyncio.sleep(pause_seconds)
                began = time.perf_counter()
                await connection.send(_FRAME)
                await connection.recv()
                took.append(time.perf_counter() - began)
        return took
    finally:
        process.kill()
        await process.wait()
