"""The real host as a process of its own, as a pod starts it: through the entry point, with the launch contract's
environment and nothing of the person's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pod_host.contract.base import JsonObject
from pod_host.dev.agent import Agent
from pod_host.dev.directories import Directories
from pod_host.dev.runtime import Runtime
from pod_host.limits import DRAIN_SECONDS, SANDBOX_UID

LINE_BYTES: Final = 16 * 1024 * 1024  # one event of its log
LAST_LINES: Final = 8  # shown when it dies
STOP_SECONDS: Final = DRAIN_SECONDS + 3.0  # its drain, and a moment to leave
# And LC_*, OTEL_*; keys and tokens of the person stay out. HOME: for the host to hide, the commands get another.
_PASSED: Final = ("HOME", "PATH", "LANG", "LANGUAGE", "TZ", "POD_HOST_EGRESS")
# When this process is killed, the host gets SIGTERM: nobody else would ever end it.
_LAUNCH: Final = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM);"  # PR_SET_PDEATHSIG, which lives on across exec
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def launch_environment(
    runtime: Runtime, agent: Agent, directories: Directories, environ: Mapping[str, str]
) -> dict[str, str]:
    """The launch contract of ``pod-host run``."""
    passed = {name: value for name, value in environ.items() if name in _PASSED or name.startswith(("LC_", "OTEL_"))}
    return {
        **passed,
        "NYLORUN_SANDBOX_ID": runtime.sandbox_id,
        "NYLORUN_POD_UID": str(uuid.uuid4()),  # each start is a new pod on the same volume
        "NYLORUN_SANDBOX_JOIN_FILE": str(runtime.join_file),
        "NYLORUN_HARNESS_URL": runtime.harness_url,
        "NYLORUN_GATES_URL": runtime.gates_url,
        "NYLORUN_EGRESS_PROXY": runtime.egress_url,
        "POD_HOST_HARNESS_ID": agent.harness_id,
        "POD_HOST_HARNESS_DIR": str(directories.harness),
        "POD_HOST_WORKSPACE_DIR": str(directories.workspace),
        "POD_HOST_SKILLS_DIR": str(directories.skills),
        "POD_HOST_SANDBOX_UID": str(SANDBOX_UID),
        "POD_HOST_NETWORK_GATE": "off",  # a laptop has no network policy to wait for
        "POD_HOST_LOG_FORMAT": "json",
        "POD_HOST_PYTHON": sys.executable,
    }


def entry_point() -> list[str]:
    """A checkout's ``entrypoint.sh``; installed as a wheel, the module that it would start."""
    script = Path(__file__).resolve().parents[2] / "entrypoint.sh"
    if script.is_file():
        return ["/bin/sh", str(script)]
    return [sys.executable, "-I", "-m", "pod_host", "run"]


class HostProcess:
    """``on_event`` gets each event of its log."""

    def __init__(self, process: asyncio.subprocess.Process, on_event: Callable[[JsonObject], None]) -> None:
        self._process = process
        self._on_event = on_event
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._reading = asyncio.create_task(self._read(), name="host log")

    @classmethod
    async def start(
        cls, environment: Mapping[str, str], on_event: Callable[[JsonObject], None], command: list[str] | None = None
    ) -> HostProcess:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", _LAUNCH, *(command or entry_point())),
            env=dict(environment),
            cwd="/",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
            start_new_session=True,  # the terminal's Ctrl-C is for us
        )
        return cls(process, on_event)

    async def ended(self) -> int:
        """Its exit code, once it has ended and its log is read to the end."""
        await asyncio.shield(self._reading)
        return await self.exit_code()

    async def exit_code(self) -> int:
        """Negative: the signal that ended it."""
        return await self._process.wait()

    def epitaph(self, code: int) -> list[str]:
        """How it ended, and its last log lines."""
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return [f"the host ended with {how}; its last log lines:", *self._last]

    async def stop(self) -> None:
        """SIGTERM, its drain, SIGKILL to its whole group."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                await self._process.wait()
        self._reading.cancel()
        await asyncio.wait({self._reading})

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            line = raw.decode(errors="replace").rstrip("\n")
            self._last.append(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue  # not the log's: a traceback of Python's own, seen when it is the last
            if isinstance(event, dict):
                self._on_event(event)
