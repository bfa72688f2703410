"""Where a credential may be, after a life that used them all: nowhere but in the host's own memory and the join file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attack.rig import PYTHONPATH, Rig, as_each, attacked, cmdline
from tests.host.core import calls, said, turn_start
from tests.sandbox.conftest import processes_of

# As the scripted Runtime makes them; the egress token is what commands are given, and no secret to them.
CREDENTIAL = re.compile(rb"join-token-1|host-\d+-\d+|token of run-1")
COMMANDS_OWN = re.compile(rb"egress-\d+-\d+")


async def life(rig: Rig) -> None:
    """A turn with a tool call, a renewal, a request."""
    asked: list[Any] = []

    def model(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        return calls("bash", {"command": "env > environment; echo $HTTPS_PROXY"}) if len(asked) == 1 else said("Done.")

    rig.core.model = model
    await rig.core.renewals.count(1)
    await rig.connection.offer("run-1", turn_start())
    await rig.connection.asked("turn.completed")
    await rig.bash("cat environment")


@as_each
async def test_no_credential_is_in_arguments_environments_files_or_the_log(uid: int) -> None:
    async with attacked(uid, POD_HOST_RENEW_SECONDS="0.3") as rig:
        await life(rig)
        assert leaks_of_processes(rig) == []
        token = rig.base / "join" / "token"
        assert [path for path, text in files_below(rig.base) if path != token and CREDENTIAL.search(text)] == []
        assert [path for path, text in files_below(rig.base / "harness") if COMMANDS_OWN.search(text)] == []
        assert COMMANDS_OWN.search((rig.base / "workspace" / "environment").read_bytes())
        log = rig.process.log.encode()
    assert b"join.done" in log
    assert not CREDENTIAL.search(log)
    assert not COMMANDS_OWN.search(log)


@as_each
async def test_no_credential_is_in_the_memory_of_worker_and_zygote(uid: int) -> None:
    """So there is nothing to be had of them, whatever else a command may find."""
    async with attacked(uid, POD_HOST_RENEW_SECONDS="0.3") as rig:
        await life(rig)
        assert CREDENTIAL.search(b"".join(memory(rig.host_pid))), "the search finds what is there"
        worker = rig.worker_pid
        for pid in (worker, *processes_of(worker)):
            assert not CREDENTIAL.search(b"".join(memory(pid)))


@as_each
async def test_a_command_inherits_three_descriptors_and_no_signal_disposition(uid: int) -> None:
    async with attacked(uid) as rig:
        output = await rig.bash("echo /proc/$$/fd/*; grep -E 'Sig(Blk|Ign)' /proc/$$/status")
        descriptors, blocked, ignored = output["stdout"].splitlines()
        assert [path.rpartition("/")[2] for path in descriptors.split()][:3] == ["0", "1", "2"]
        assert len(descriptors.split()) <= 4  # the shell's own, while it lists them
        assert int(blocked.split()[1], 16) == int(ignored.split()[1], 16) == 0


@as_each
async def test_host_worker_and_zygote_are_not_dumpable_and_gain_no_privileges(uid: int) -> None:
    async with attacked(uid) as rig:
        worker = rig.worker_pid
        (zygote,) = processes_of(worker)
        for pid in (rig.host_pid, worker, zygote):
            assert owner(f"/proc/{pid}/environ") == 0, "as the kernel shows what is not dumpable"
            assert "NoNewPrivs:\t1" in status(pid)
        for pid in (worker, zygote):
            assert re.search(r"CapEff:\t0{16}", status(pid))
            assert re.search(r"Uid:\t1000\t1000\t1000\t1000", status(pid))
        assert "Seccomp:\t2" in status(zygote)


def test_a_crash_of_the_host_leaves_no_core(tmp_path: Path) -> None:
    """Under the same limits another process leaves one: so it is the host that does not."""
    if os.geteuid() != 0 or Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core":
        pytest.skip("cores go elsewhere here")
    script = """
import os, resource, sys
from pod_host.host import hardening
os.chdir(sys.argv[1]); resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
if sys.argv[2] == "hardened": hardening.harden()
os.kill(os.getpid(), 6)
"""
    for name, cores in (("plain", 1), ("hardened", 0)):
        place = tmp_path / name
        place.mkdir()
        command = [sys.executable, "-c", script, str(place), name]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": PYTHONPATH}, check=False)
        assert done.returncode == -signal.SIGABRT
        assert len(list(place.iterdir())) == cores


@as_each
async def test_a_signal_that_dumps_core_leaves_none_of_the_host(uid: int) -> None:
    async with attacked(uid) as rig:
        os.kill(rig.host_pid, signal.SIGABRT)
        ended = await rig.process.event("ended")
        assert (ended["status"] & 0x7F, ended["core"]) == (signal.SIGABRT, False)
        assert entries(rig.base / "cwd") == []


def entries(directory: Path) -> list[str]:
    return os.listdir(directory)


def owner(path: str) -> int:
    return os.stat(path).st_uid


def status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def leaks_of_processes(rig: Rig) -> list[str]:
    found = []
    worker = rig.worker_pid
    for pid in (rig.init_pid, rig.host_pid, worker, *processes_of(worker)):
        for name, content in (("cmdline", cmdline(pid)), ("environ", Path(f"/proc/{pid}/environ").read_bytes())):
            if CREDENTIAL.search(content) or COMMANDS_OWN.search(content):
                found.append(f"{name} of {cmdline(pid)!r}")
    return found


def files_below(directory: Path) -> Iterator[tuple[Path, bytes]]:
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes()


def memory(pid: int) -> Iterator[bytes]:
    """What of a process's memory can be written, so that it may have put something there."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as content:
        for line in maps:
            place, rights = line.split()[:2]
            begin, end = (int(part, 16) for part in place.split("-"))
            if rights.startswith("rw"):
                content.seek(begin)
                yield content.read(end - begin)
