"""The pod: its directories, its namespaces, its init, and the host in it, seen from outside."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.attack.rig import PYTHONPATH, cmdline, interpreter
from tests.ending import end_with_us
from tests.endurance import network
from tests.endurance.clock import Offsets
from tests.sandbox.conftest import UID, processes_of

HERE: Final = Path(__file__).parent
DISK_MIB: Final = 192
START_SECONDS: Final = 60.0
EMPTY_SECONDS: Final = 20.0
WARDEN_SECONDS: Final = 5.0  # to end by itself, once nobody tells it anything any more


@dataclass(frozen=True)
class Place:
    """What a run has, as far as this machine lets it. ``uid``: whom the host is started as. ``disk``: a small one of its own.
    ``cable``: a network that can be unplugged. ``relay``: commands reach the egress proxy through one of the host's.
    ``shift``: seconds that the pod's own monotonic and boot clocks are ahead."""

    uid: int
    disk: bool
    cable: bool
    relay: bool = False
    shift: int = 0

    @classmethod
    def here(cls, uid: int, *, relay: bool, shift: int) -> Place:
        root = os.geteuid() == 0
        own = can("unshare", "--pid", "--fork", "--mount-proc", "mount", "-t", "tmpfs", "endurance", "/tmp")
        clocks = own and can("unshare", "--time", "--fork", "--boottime=1", "--monotonic=1", "true")
        cable = own and network.why_not() is None
        return cls(uid if root else os.geteuid(), own, cable, relay, shift if clocks else 0)

    @property
    def without(self) -> dict[str, str]:
        """Kinds of faults that cannot be made here, and why."""
        missing = {} if self.disk else {"disk.full": "a disk of its own needs root, and a kernel that lets it"}
        if not self.cable:
            missing["wire.unplugged"] = network.why_not() or "its process namespace cannot be made"
        return missing if self.relay else {**missing, "relay.killed": "this run has no relay"}


class Pod:
    """``host``: the pid of the host that runs, as seen from here; None when none does."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.base = Path(tempfile.mkdtemp(prefix="pod-host-endurance-", dir="/var/tmp"))
        self.ledger = self.base / "ledger"
        self.workspace = self.base / "disk" / "workspace"
        self.harness = self.base / "disk" / "harness"
        self.log = self.base / "log" / "host"
        self.clock: Offsets
        self.network = network.Network() if place.cable else None
        self.address = self.network.address if self.network else "127.0.0.1"
        self.host: int | None = None
        self.exits: list[int] = []  # of hosts, as exit codes; negative: the signal
        self.ended = 0  # by us
        self._life = ExitStack()
        self._warden: asyncio.subprocess.Process
        self._listening: asyncio.Task[None]
        self._told = asyncio.Condition()
        self._started = 0
        self._said_at_start = 0  # bytes of the log, when the host that runs was started

    # --- the place ----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._life.callback(self._remove)
        self.base.chmod(0o755)
        for name in ("join", "log", "ledger", "disk"):
            (self.base / name).mkdir()
        if self.place.disk:
            _mount(self.base / "disk")
            self._life.callback(_unmount, self.base / "disk")
        for name in ("workspace", "harness", "skills"):
            (self.base / "disk" / name).mkdir()
        (self.base / "join" / "token").write_text("a join token of the endurance run\n")
        self.clock = Offsets(self.base / "clock")
        self._give()
        if self.network is not None:
            self._life.callback(self.network.close)
            self.network.open()
        await self._start_warden()

    def _give(self) -> None:
        """What a pod has, its user owns; the ledger is the commands' own."""
        if os.geteuid() != 0:
            return
        uid = self.place.uid
        for path in (self.base / "join" / "token", self.base / "log", self.harness, self.base / "disk" / "skills"):
            os.chown(path, uid, uid)
        for path in (self.ledger, self.workspace):
            os.chown(path, UID, UID)

    async def _start_warden(self) -> None:
        command = [sys.executable, str(HERE / "warden.py")]
        if self.place.disk:
            private = [] if any(path.startswith("/tmp/") for path in sys.path) else ["mount -t tmpfs tmpfs /tmp;"]
            command = ["sh", "-c", f'{" ".join(private)} exec "$@"', "sh", *command]
            shift = [f"--boottime={self.place.shift}", f"--monotonic={self.place.shift}"] if self.place.shift else []
            timed = ["--time", *shift] if shift else []
            command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *timed, *command]
        if self.network is not None:
            command = self.network.within(*command)
        self._warden = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            preexec_fn=end_with_us,
        )
        self._listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Everything ends and is removed."""
        if self._warden.returncode is None:
            assert self._warden.stdin is not None
            self._warden.stdin.close()
            if not self.place.disk:  # no namespace that takes the others along
                for pid in self.inhabitants():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            with suppress(TimeoutError):  # it stands in a full pipe, say: then it is killed
                await asyncio.wait_for(self._warden.wait(), WARDEN_SECONDS)
            if self._warden.returncode is None:
                self._warden.kill()
        await self._warden.wait()
        await self._listening
        self._life.close()

    def _remove(self) -> None:
        subprocess.run(["chmod", "-R", "u+rwX", str(self.base)], check=False)
        shutil.rmtree(self.base)

    # --- the host -----------------------------------------------------------------------------------------------------

    async def start_host(self, environment: dict[str, str]) -> None:
        assert self._warden.stdin is not None
        assert self.host is None
        program = program_for(self.place.uid)
        assert program is not None
        order = {
            "argv": [program, str(HERE / "host.py"), str(self.clock.path)],
            "env": {**environment, "PYTHONPATH": PYTHONPATH},
            "uid": self.place.uid,
            "log": str(self.log),
        }
        number = self._started + 1
        self._said_at_start = self._said
        self._warden.stdin.write(json.dumps(order).encode() + b"\n")
        async with asyncio.timeout(START_SECONDS), self._told:
            await self._told.wait_for(lambda: self._started == number)

    async def end_host(self, how: signal.Signals) -> int:
        """Its exit code, once it has ended."""
        self.ended += 1
        self.kill(self.host, how)
        async with asyncio.timeout(START_SECONDS), self._told:
            await self._told.wait_for(lambda: self.host is None)
            return self.exits[-1]

    async def stop_host(self) -> None:
        """SIGTERM: it ends in order, and nothing lives on. Before Python runs, the signal's own default ends it."""
        code = await self.end_host(signal.SIGTERM)
        unborn = code == -signal.SIGTERM and self._said == self._said_at_start
        assert code == 0 or unborn, f"the host ended with {code} after SIGTERM"
        await self.emptied()

    @property
    def _said(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    async def emptied(self) -> None:
        """Nothing lives on when a host has ended, however it ended. A frozen worker ends when it is let go."""
        ends = time.monotonic() + EMPTY_SECONDS
        while left := self.inhabitants():
            told = {pid: cmdline(pid)[:100] for pid in left}
            assert time.monotonic() < ends, f"the host has ended, and this is left: {told}"
            await asyncio.sleep(0.05)

    def kill(self, pid: int | None, how: signal.Signals) -> None:
        """One that ended meanwhile is no fault of ours."""
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, how)

    async def _listen(self) -> None:
        assert self._warden.stdout is not None
        async for line in self._warden.stdout:
            told: dict[str, Any] = json.loads(line)
            async with self._told:
                if "started" in told:
                    self._started += 1
                    self.host = await asyncio.to_thread(_seen_from_here, self.warden, told["started"])
                else:
                    self.host = None
                    self.exits.append(os.waitstatus_to_exitcode(told["status"]))
                self._told.notify_all()

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def warden(self) -> int:
        """The init's pid. What starts it execs, but for unshare, which forks it."""
        pid = self._warden.pid
        return next(iter(processes_of(pid)), pid) if self.place.disk else pid

    def inhabitants(self) -> dict[int, str]:
        """Every process below the init, zombies too, and its state."""
        found: dict[int, str] = {}
        fresh = [self.warden]
        while fresh:
            for child, state in processes_of(fresh.pop()).items():
                if child not in found:
                    found[child] = state
                    fresh.append(child)
        return found

    @property
    def worker(self) -> int | None:
        return self._child(b"pod_host.sandbox.worker")

    @property
    def relay(self) -> int | None:
        return self._child(b"pod_host.relay")

    def _child(self, named: bytes) -> int | None:
        children = processes_of(self.host) if self.host else {}
        return next((pid for pid in children if named in cmdline(pid)), None)

    @property
    def zygote(self) -> int | None:
        """It never executes anything, so it looks like the worker it was forked from."""
        worker = self.worker
        if worker is None:
            return None
        told = cmdline(worker)
        return next((pid for pid in processes_of(worker) if cmdline(pid) == told), None)

    @property
    def spool(self) -> Path:
        """Where whole outputs are kept, as seen from here."""
        name = f"tmp/pod-host-{UID if self.place.uid == 0 else self.place.uid}"
        return Path(f"/proc/{self.warden}/root/{name}") if self.place.disk else Path("/") / name


@cache
def can(*command: str) -> bool:
    """Root in a container may do less than root."""
    return os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0


def program_for(uid: int) -> str | None:
    """An interpreter that the host's user may run."""
    return sys.executable if uid == os.geteuid() else interpreter(uid)


def _mount(path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "endurance", path], check=True)


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "-l", path], check=False)


def _seen_from_here(warden: int, pid: int) -> int:
    """The pid of the init's child that has ``pid`` in its own namespace."""
    for child in processes_of(warden):
        with suppress(OSError):
            for line in Path(f"/proc/{child}/status").read_text().splitlines():
                if line.startswith("NSpid:") and int(line.split()[-1]) == pid:
                    return child
    return 0
