"""A real host in a PID namespace of its own, under a hard limit, with a scripted Runtime outside; and what is seen of it
from outside, as root."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import HostProcess, pod_environment
from tests.host.core import Connection, Core
from tests.sandbox.conftest import UID, eventually, processes_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TASKS = 600  # for what gets away; a command's own limit is half of it
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
SECONDS = 100.0  # for what a test waits for


PYTHONPATH = ":".join([str(ROOT), *(path for path in sys.path if path.endswith("-packages"))])


@cache
def interpreter(uid: int) -> str | None:
    """One that this user may run, with what the host imports. The tests' own may lie in a closed home directory."""
    as_user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
    for path in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        check = [
            *as_user,
            "sh",
            "-c",
            f"exec {path} -c 'import pod_host.host.life'",
        ]  # setpriv itself may still be root
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        if (
            os.path.exists(path)
            and subprocess.run(check, capture_output=True, check=False, env=environment).returncode == 0
        ):
            return path
    return None


@cache
def why_not(uid: int) -> str | None:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "a PID namespace needs root"
    return None if interpreter(uid) else f"no interpreter that uid {uid} can run"


@contextmanager
def pod_directories(uid: int) -> Iterator[Path]:
    """As a pod has them, all the host's user's own: so nothing but the kernel's confinement stands before them."""
    base = Path(tempfile.mkdtemp(prefix="pod-host-attack-", dir="/var/tmp"))
    base.chmod(0o755)
    os.chown(base, uid, uid)
    for name in ("join", "harness", "workspace", "skills", "cwd"):
        (base / name).mkdir()
        os.chown(base / name, uid or (UID if name == "workspace" else 0), uid)
    (base / "join" / "token").write_text("join-token-1\n")
    os.chown(base / "join" / "token", uid, uid)
    try:
        yield base
    finally:
        for path in (base / "workspace", base / "harness"):
            subprocess.run(["umount", "-ql", str(path)], check=False)
        shutil.rmtree(base)


class Rig:
    """``host_pid``, ``worker_pid``: as seen from here."""

    def __init__(self, core: Core, base: Path, process: HostProcess) -> None:
        self.core = core
        self.base = base
        self.process = process
        self.connection: Connection

    @classmethod
    @asynccontextmanager
    async def run(
        cls,
        core: Core,
        base: Path,
        uid: int,
        *,
        abi: int | None = None,
        seccomp: bool = True,
        tasks: int = TASKS,
        cgroup: Path | None = None,
        lacking: str = "",
        **variables: str,
    ) -> AsyncIterator[Rig]:
        mask = {"abi": abi, "seccomp": seccomp}
        host = [interpreter(uid) or "", str(HERE / "masked.py"), json.dumps(mask)]
        if lacking:
            host = [host[0], str(HERE / "refuse.py"), lacking, *host]
        around = {"uid": uid, "tasks": tasks, "cgroup": cgroup and str(cgroup)}
        init = [sys.executable, str(HERE / "init.py"), json.dumps(around)]
        environment = pod_environment(base, core.url, **variables)
        command = [*NAMESPACE, *init, *host]
        environment["PYTHONPATH"] = PYTHONPATH
        process = await HostProcess.start(*command, environment=environment, directory=base / "cwd")
        rig = cls(core, base, process)
        try:
            yield rig
        finally:
            if process.process.returncode is None:
                process.process.kill()
            await process.ended()

    async def connect(self, number: int = 1) -> None:
        connected = asyncio.ensure_future(self.core.connected(number))
        ended = asyncio.ensure_future(self.process.process.wait())
        await asyncio.wait({connected, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not connected.done():
            connected.cancel()
            await self.process.ended()  # its log is whole then
            raise AssertionError(f"the host ended:\n{self.process.log}")
        self.connection = await connected

    # --- from inside --------------------------------------------------------------------------------------------------

    async def begin(self, command: str, session: str = "attacker", **more: Any) -> tuple[int, Any]:
        return await self.connection.begin("workspace.exec", call("bash", session, command=command, **more))

    async def bash(self, command: str, session: str = "attacker", **more: Any) -> dict[str, Any]:
        _, answer = await self.begin(command, session, **more)
        async with asyncio.timeout(SECONDS):
            frame = await answer
        assert frame["ok"], frame
        assert frame["r"]["kind"] == "completed", frame
        output: dict[str, Any] = frame["r"]["output"]
        return output

    async def write(self, path: str, content: str) -> None:
        answer = await self.connection.ask("workspace.write", call("write", "attacker", path=path, content=content))
        assert answer["r"]["kind"] == "completed", answer

    # --- from outside -------------------------------------------------------------------------------------------------

    @property
    def init_pid(self) -> int:
        (pid,) = processes_of(self.process.process.pid)
        return pid

    @property
    def host_pid(self) -> int:
        return min(processes_of(self.init_pid))

    @property
    def worker_pid(self) -> int:
        return min(pid for pid in processes_of(self.host_pid) if b"pod_host.sandbox.worker" in cmdline(pid))

    @property
    def relay_pid(self) -> int:
        return min(pid for pid in processes_of(self.host_pid) if b"pod_host.relay" in cmdline(pid))

    def others(self) -> dict[int, str]:
        """Everything in the namespace but init, host, worker, zygote and shells that wait for a script; zombies too."""
        namespace = os.readlink(f"/proc/{self.init_pid}/ns/pid")
        worker = self.worker_pid
        zygotes = [pid for pid in processes_of(worker) if is_zygote(pid, worker)]
        # Those of a zygote that was killed have come to the worker, and wait on.
        waiting = [pid for parent in (worker, *zygotes) for pid in processes_of(parent) if is_waiting(pid)]
        known = {self.init_pid, self.host_pid, worker, *zygotes, *waiting}
        found = {}
        for name in os.listdir("/proc"):
            try:
                if name.isdecimal() and int(name) not in known and os.readlink(f"/proc/{name}/ns/pid") == namespace:
                    found[int(name)] = cmdline(int(name)).replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # gone
        return found

    async def nothing_left(self, but: frozenset[int] = frozenset()) -> None:
        """Nothing but ``but`` is left in the namespace, twice in a row."""
        for _ in range(2):
            await eventually(lambda: set(self.others()) <= but, SECONDS)


def call(tool: str, session: str, **tool_input: Any) -> dict[str, Any]:
    return {"session": {"ownerId": session, "activeTurnId": None}, "spec": {}, "tool": tool, "input": tool_input}


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_zygote(pid: int, worker: int) -> bool:
    """It never executes anything, so it looks like the worker it was forked from."""
    return cmdline(pid) == cmdline(worker)


def is_waiting(pid: int) -> bool:
    """A shell that was started ahead, and has no script yet."""
    shell, _, script = cmdline(pid).partition(b"\0-c\0")
    return shell == b"bash" and script.strip(b" \0") == b""


@asynccontextmanager
async def attacked(uid: int, **options: Any) -> AsyncIterator[Rig]:
    """A host as ``uid``, connected."""
    with pod_directories(uid) as base:
        async with Core() as core, Rig.run(core, base, uid, **options) as rig:
            await rig.connect()
            yield rig


STARTED_AS = [
    pytest.param(uid, id=name, marks=pytest.mark.skipif(why_not(uid) is not None, reason=str(why_not(uid))))
    for uid, name in ((0, "root"), (UID, "user"))
]
as_each = pytest.mark.parametrize("uid", STARTED_AS)
"""The host started as root (it drops commands to a user), and as that user itself, as in a pod."""
