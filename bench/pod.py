"""A real ``pod-host run`` on this machine, against a core in this process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.core import Connection, Core
from pod_host.sandbox import kernel

_ROOT = Path(__file__).parents[1]


@dataclass
class Pod:
    """``began``: when it was started, on `time.perf_counter`. ``host``: its connection, which waits for work."""

    core: Core
    directory: Path
    process: asyncio.subprocess.Process
    began: float
    host: Connection

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def workspace(self) -> Path:
        return self.directory / "workspace"

    def own(self, path: Path) -> Path:
        """A file that we made in the workspace becomes the sandbox's."""
        if os.geteuid() == 0:
            for place in [path, *path.rglob("*")]:
                os.lchown(place, 1000, 1000)
        return path


@asynccontextmanager
async def running_pod(core: Core | None = None, **variables: str) -> AsyncIterator[Pod]:
    """A host that is connected and has asked for its first lease; it is gone, with its directories, at the end.
    ``variables``: more of its environment."""
    if core is None:
        async with Core() as core, running_pod(core, **variables) as pod:
            yield pod
        return
    directory = _directories()
    try:
        with (directory / "log").open("wb") as log:
            began = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "pod_host", "run"),
                env=_environment(directory, core.url, variables),
                stderr=log,
                cwd=_ROOT,
                preexec_fn=_end_with_us,
            )
        try:
            yield Pod(core, directory, process, began, await _connection(core, process, directory))
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()
    finally:
        shutil.rmtree(directory)


async def _connection(core: Core, process: asyncio.subprocess.Process, directory: Path) -> Connection:
    connecting = asyncio.create_task(core.connected())
    ending = asyncio.create_task(process.wait())
    await asyncio.wait({connecting, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if not connecting.done():
        connecting.cancel()
        raise RuntimeError(f"the host ended at once: {(directory / 'log').read_text()}")
    return connecting.result()


def _directories() -> Path:
    """Not below /tmp, which is the commands' own."""
    directory = Path(tempfile.mkdtemp(prefix="pod-host-bench-", dir="/var/tmp"))
    directory.chmod(0o755)
    for name in ("join", "harness", "workspace", "skills"):
        (directory / name).mkdir()
    if os.geteuid() == 0:
        os.chown(directory / "workspace", 1000, 1000)
    (directory / "join" / "token").write_text("join-token\n")
    return directory


def _environment(directory: Path, url: str, more: dict[str, str]) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "NYLORUN_SANDBOX_ID": "sbx",
        "NYLORUN_POD_UID": "pod-uid",
        "NYLORUN_SANDBOX_JOIN_FILE": str(directory / "join" / "token"),
        "NYLORUN_HARNESS_URL": url,
        "NYLORUN_GATES_URL": url,
        "NYLORUN_EGRESS_PROXY": "http://127.0.0.1:9",
        "POD_HOST_HARNESS_DIR": str(directory / "harness"),
        "POD_HOST_WORKSPACE_DIR": str(directory / "workspace"),
        "POD_HOST_SKILLS_DIR": str(directory / "skills"),
        "POD_HOST_NETWORK_GATE": "off",
        "POD_HOST_LOG_FORMAT": "json",
        **more,
    }


def _end_with_us() -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
