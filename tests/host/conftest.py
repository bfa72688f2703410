"""A real ``pod-host run`` process, its directories and its log."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ending import end_with_us
from tests.host.core import Core, Watched

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def core() -> AsyncIterator[Core]:
    async with Core() as core:
        yield core


@pytest.fixture
def pod() -> Iterator[Path]:
    """A pod's directories; a test may change the environment made of them. Not below /tmp, which is the commands' own."""
    base = Path(tempfile.mkdtemp(prefix="pod-host-test-", dir="/var/tmp"))
    base.chmod(0o755)
    for name in ("join", "harness", "workspace", "skills"):
        (base / name).mkdir()
    if os.geteuid() == 0:
        os.chown(base / "workspace", 1000, 1000)
    (base / "join" / "token").write_text("join-token-1\n")
    yield base
    shutil.rmtree(base)


def pod_environment(pod: Path, harness_url: str, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "NYLORUN_SANDBOX_ID": "sbx",
        "NYLORUN_POD_UID": "pod-uid-1",
        "NYLORUN_SANDBOX_JOIN_FILE": str(pod / "join" / "token"),
        "NYLORUN_HARNESS_URL": harness_url,
        "NYLORUN_GATES_URL": harness_url,
        "NYLORUN_EGRESS_PROXY": "http://127.0.0.1:9",
        "POD_HOST_HARNESS_DIR": str(pod / "harness"),
        "POD_HOST_WORKSPACE_DIR": str(pod / "workspace"),
        "POD_HOST_SKILLS_DIR": str(pod / "skills"),
        "POD_HOST_NETWORK_GATE": "off",
        "POD_HOST_LOG_LEVEL": "debug",
        "POD_HOST_LOG_FORMAT": "json",
        **more,
    }


class HostProcess:
    """``python -m pod_host run``. ``events``: its log's lines as they come."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events = Watched()
        self.other_lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, *command: str, environment: dict[str, str], directory: Path) -> HostProcess:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stderr=asyncio.subprocess.PIPE,
            cwd=directory,
            limit=64 * 1024 * 1024,  # a line of its log
            preexec_fn=end_with_us,
        )
        return cls(process)

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                self.other_lines.append(line.decode())
                continue
            await self.events.add(event)

    async def event(self, name: str, after: int = 0) -> dict[str, Any]:
        event: dict[str, Any] = await self.events.first(lambda event: event["event"] == name, after)
        return event

    def terminate(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Any number of times. (`send_signal` would reap the process beside asyncio.)"""
        os.kill(self.process.pid, how)

    def stop_reading(self) -> None:
        """Close our end of its stderr: asyncio has no word of its own for that."""
        pipe = self.process._transport.get_pipe_transport(2)  # type: ignore[attr-defined]
        pipe.close()

    async def ended(self) -> int:
        """Its exit code. A host that does not end fails the test."""
        async with asyncio.timeout(60):  # its drain and its start, on a machine that is busy
            code = await self.process.wait()
            await self._reading
        return code

    @property
    def log(self) -> str:
        return "".join([json.dumps(event) + "\n" for event in self.events.all] + self.other_lines)


StartHost = Callable[..., Any]


@pytest.fixture
async def start_host(pod: Path, core: Core) -> AsyncIterator[StartHost]:
    """``await start_host(VARIABLE="…")``: a host against ``core``. What still runs at the test's end is killed."""
    hosts: list[HostProcess] = []

    async def start(**variables: str) -> HostProcess:
        command = (sys.executable, "-m", "pod_host", "run")
        environment = pod_environment(pod, core.url, **variables)
        host = await HostProcess.start(*command, environment=environment, directory=ROOT)
        hosts.append(host)
        return host

    yield start
    for host in hosts:
        if host.process.returncode is None:
            host.process.kill()
        await host.ended()
        if host.process.returncode not in (0, 75, 78):
            print(host.log)
