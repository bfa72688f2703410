"""The embedded Runtime as a process that is killed and started again on the same state directory, and its north API."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from pod_host.contract.base import Json, JsonObject
from tests.attack.rig import PYTHONPATH
from tests.ending import end_with_us
from tests.endurance.clock import Offsets

HERE = Path(__file__).parent
READY_SECONDS = 60.0


class Down(Exception):
    """The Runtime did not answer: what was asked may have been done."""


class Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:300]}")
        self.status = status
        self.text = text


class Runtime:
    """``status``: what it said when it was ready, last. ``ready``: set while it runs."""

    def __init__(self, base: Path, arguments: list[str]) -> None:
        self.state = base / "state"
        self.clock = Offsets(base / "core-clock")
        self.log = base / "log" / "core"
        self.status: JsonObject = {}
        self.ready = asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None
        self._arguments = arguments
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    str(HERE / "core.py"),
                    "--clock",
                    str(self.clock.path),
                    "--state-dir",
                    str(self.state),
                ),
                *self._arguments,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": PYTHONPATH},
                preexec_fn=end_with_us,
            )
        assert self.process.stdout is not None
        async with asyncio.timeout(READY_SECONDS):
            line = await self.process.stdout.readline()
        assert line, f"the Runtime did not start:\n{self.log.read_text()}"
        self.status = json.loads(line)
        self.ready.set()

    async def end(self, how: signal.Signals) -> int:
        """Its exit code."""
        assert self.process is not None
        self.ready.clear()
        if self.process.returncode is None:
            self.process.send_signal(how)
        async with asyncio.timeout(READY_SECONDS):
            return await self.process.wait()

    def forget_keys(self) -> None:
        """While it is down: no token that it gave is good any more, and its CA is another."""
        for path in (self.state / "keys").glob("*.pem"):
            path.unlink()

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            await self.end(signal.SIGKILL)
        await self._http.close()

    def port(self, name: str) -> int:
        return int(self.status["urls"][name].rpartition(":")[2])

    def database(self) -> sqlite3.Connection:
        """The record, to be read while nobody writes to it."""
        connection = sqlite3.connect(f"file:{self.state / 'runtime.sqlite'}?mode=ro", uri=True)
        connection.row_factory = sqlite3.Row
        return connection

    # --- north --------------------------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: JsonObject | None = None, *, seconds: float = 60.0) -> Json:
        """Raises Down, Refused."""
        if not self.ready.is_set():
            raise Down("it is not running")
        try:
            async with self._http.request(
                method, f"{self.status['urls']['north']}{path}", json=body, timeout=aiohttp.ClientTimeout(seconds)
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as fault:
            raise Down(f"{type(fault).__name__}: {fault}") from None
        if answer.status >= 400:
            raise Refused(answer.status, text)
        return json.loads(text) if text else {}

    async def events(self, after: int) -> AsyncIterator[JsonObject]:
        """Every event after ``after`` as it comes, until the Runtime goes. Raises Down."""
        url = f"{self.status['urls']['north']}/v1/events?after={after}&follow=1"
        try:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
            async with self._http.get(url, timeout=timeout, read_bufsize=2**24) as answer:
                async for line in answer.content:
                    yield json.loads(line)
        except (aiohttp.ClientError, OSError, ValueError) as fault:
            raise Down(f"{type(fault).__name__}: {fault}") from None
