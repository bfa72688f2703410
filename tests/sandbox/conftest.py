"""A real sandbox (worker, zygote, commands) in a directory of its own, for every test that asks for one.

The directory lies in /var/tmp: pytest's own are closed to other users, and hiding a directory below /tmp would take
/tmp itself from the commands.
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pod_host.sandbox import (
    Command,
    Completed,
    Failed,
    Json,
    Pending,
    Sandbox,
    SandboxConfig,
    ToolCall,
    command_environment,
)

UID = 1000  # what commands become when the tests run as root


class Box:
    """A sandbox and its directories. ``root/hidden`` is denied, but for the home in it."""

    def __init__(self, root: Path, **overrides: Any) -> None:
        self.root = root
        self.hidden = root / "hidden"
        self.workspace = root / "workspace"
        settings: dict[str, Any] = {
            "workspace": self.workspace,
            "home": self.hidden / "home",
            "skills": root / "skills",
            "spool": root / "spool",
            "denied": (self.hidden,),
            "allowed": (self.hidden / "home",),
            "uid": UID if os.geteuid() == 0 else None,
        }
        self.config = SandboxConfig(**{**settings, **overrides})
        self.sandbox = Sandbox(self.config)
        self.environment = command_environment(
            base={"PATH": os.environ["PATH"]},
            home=self.config.home,
            session={},
            proxy=None,
            trust_bundle=None,
            traceparent=None,
        )

    def submit(self, tool: str, session: str = "one", **tool_input: Any) -> Pending:
        return self.sandbox.submit(ToolCall(session, tool, tool_input, self.environment))

    def start(self, command: str, session: str = "one", **tool_input: Any) -> Pending:
        return self.submit("bash", session, command=command, **tool_input)

    async def bash(self, command: str, session: str = "one", **tool_input: Any) -> dict[str, Json]:
        return completed(await self.start(command, session, **tool_input).outcome())

    async def command(self, command: str, seconds: float, session: str = "one") -> dict[str, Json]:
        """As setup runs one: the timeout need not be a whole number."""
        request = Command(session, command, str(self.workspace), self.environment, seconds)
        return completed(await self.sandbox.submit(request).outcome())

    async def living(self) -> list[str]:
        return [process.command for process in (await self.sandbox.report()).processes]


def completed(outcome: Completed | Failed) -> dict[str, Json]:
    assert isinstance(outcome, Completed), outcome
    output: dict[str, Json] = outcome.output
    return output


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter."""
    path = Path(tempfile.mkdtemp(prefix="pod-host-test-", dir="/var/tmp"))
    path.chmod(0o755)
    (path / "hidden").mkdir()
    (path / "hidden" / "token").write_text("join-token")
    if os.geteuid() == 0:
        os.chown(path / "hidden" / "token", UID, UID)  # so that nothing but the domain keeps commands from it
    yield path
    subprocess.run(["chmod", "-R", "u+rwX", str(path)], check=True)  # a mounted skill is read-only, for its owner too
    shutil.rmtree(path)


@pytest.fixture
async def make_box(open_directory: Path) -> AsyncIterator[Callable[..., Any]]:
    """``await make_box(**members of SandboxConfig)``: a started sandbox, stopped after the test."""
    made: list[Box] = []

    async def make(**overrides: Any) -> Box:
        box = Box(open_directory, **overrides)
        made.append(box)
        await box.sandbox.start()
        return box

    yield make
    for box in made:
        await box.sandbox.stop()


@pytest.fixture
async def box(make_box: Callable[..., Any]) -> Box:
    made: Box = await make_box()
    return made


@pytest.fixture
def small_memory() -> Iterator[Path]:
    with memory_cgroup(64 << 20) as group:
        yield group


@contextmanager
def memory_cgroup(size: int) -> Iterator[Path]:
    """A new cgroup with so much memory, version 1 or 2."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        if not Path(root, "cgroup.procs").exists():
            continue
        group = Path(root, f"pod-host-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(size))
            yield group
        except OSError:
            continue
        else:
            return
        finally:
            _wait_until_empty(group)
            group.rmdir()
    pytest.skip("no memory cgroup that we may make")


def _wait_until_empty(group: Path) -> None:
    """A namespace's processes end a moment after its init."""
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(int(pid))
            select.select([descriptor], [], [], 60)
            os.close(descriptor)


def processes_of(pid: int) -> dict[int, str]:
    """The children of a process and the state of each."""
    found = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):  # not a glob: it stumbles over one that is just going
        try:
            state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid:
            found[int(name)] = state
    return found


def nice(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])


def remains(pid: int) -> bool:
    """Whether there is anything of it, a zombie even."""
    return Path(f"/proc/{pid}").exists()


async def eventually(true: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Waits for ``true`` (a function, perhaps a coroutine function) to give something true; fails when it never does."""
    end = time.monotonic() + seconds
    while True:
        value = true()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
