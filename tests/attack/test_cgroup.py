"""Where a cgroup is delegated: commands live in one of their own, and nothing that they do changes that.

Needs root, and a cgroup2 hierarchy that it may make directories in. Its controllers may all be elsewhere (version 1): what
depends on one is skipped then.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pod_host.sandbox import cgroup
from tests.attack.rig import HERE, SECONDS, as_each, attacked, is_waiting, is_zygote
from tests.sandbox.conftest import alive, eventually

MIB = 1 << 20
REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)  # the last: clone3
WITHOUT = (("no Landlock", {"abi": 0}), ("no filter", {"seccomp": False}))


@pytest.fixture
def delegate() -> Iterator[Callable[..., Path]]:
    """``delegate(uid, **limits)``: a cgroup as a service manager makes one for a service of this user, with its mark."""
    own = cgroup.own_cgroup()
    made: list[Path] = []

    def make(uid: int, **wanted: str) -> Path:
        if own is None or os.geteuid() != 0:
            pytest.skip("no cgroup2 that we may divide")
        group = Path(own.mount, f"pod-host-test-{os.getpid()}-{len(made)}")
        try:
            group.mkdir()
        except OSError:
            pytest.skip("no cgroup2 that we may divide")
        made.append(group)
        os.setxattr(group, "user.delegate", b"1")
        for path in (group, *(group / f"cgroup.{name}" for name in ("procs", "threads", "subtree_control"))):
            os.chown(path, uid, uid)
        for name, value in wanted.items():
            file = group / name.replace("_", ".")
            if not file.exists():
                pytest.skip(f"no {file.name} in this hierarchy")
            file.write_text(value)
        return group

    yield make
    for group in made:
        (group / "cgroup.kill").write_text("1")
        end = time.monotonic() + SECONDS
        while "populated 1" in (group / "cgroup.events").read_text() and time.monotonic() < end:
            time.sleep(0.01)  # what was killed takes its time to go; if it does not, the rmdir fails
        for path in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            path.rmdir()
        group.rmdir()


def members(group: Path) -> set[int]:
    return set(map(int, (group / "cgroup.procs").read_text().split()))


def leaves(group: Path) -> list[Path]:
    return [path for path in (group / "commands").iterdir() if path.is_dir()] if (group / "commands").exists() else []


def is_locked(leaf: Path) -> bool:
    """Whether its worker lives."""
    descriptor = os.open(leaf, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def outside(group: Path) -> set[int]:
    """Processes that are in no leaf of commands."""
    found = members(group)
    return found | members(group / "host") if (group / "host").exists() else found


@as_each
async def test_every_command_is_born_in_it_and_host_and_worker_are_not(uid: int, delegate: Callable[..., Path]) -> None:
    group = delegate(uid)
    async with attacked(uid, cgroup=group) as rig:
        (leaf,) = leaves(group)
        output = await rig.bash("grep ^0:: /proc/self/cgroup; setsid -f sleep 999; echo $$")
        assert output["stdout"].startswith(f"0::/{group.name}/commands/{leaf.name}\n")
        left = [pid for pid in members(leaf) if not is_waiting(pid)]
        assert len(left) == 2, "the zygote, and what the command left"
        assert {rig.host_pid, rig.worker_pid} <= outside(group)
        assert any(is_zygote(pid, rig.worker_pid) for pid in members(leaf))


@as_each
@pytest.mark.parametrize("abi", [2, None])
async def test_no_command_leaves_it(uid: int, abi: int | None, delegate: Callable[..., Path]) -> None:
    group = delegate(uid)
    async with attacked(uid, cgroup=group, abi=abi) as rig:
        await rig.write("leave.py", (HERE / "leave.py").read_text())
        before = outside(group)
        output = await rig.bash(f"python3 leave.py {group}")
        told = json.loads(output["stdout"])
        assert {name: code for name, code in told["met"].items() if code not in REFUSED} == {}
        assert len(told["met"]) > 20
        assert told["cgroups"][0] == told["cgroups"][1] != f"/{group.name}"
        written = await rig.connection.ask(
            "workspace.write",
            {"session": {"ownerId": "a"}, "tool": "write", "input": {"path": f"{group}/cgroup.procs", "content": "0"}},
        )
        assert written["r"]["kind"] == "failed"
        assert outside(group) == before
        assert (await rig.bash("echo on"))["stdout"] == "on\n"


@as_each
@pytest.mark.parametrize(("lacking", "mask"), WITHOUT, ids=[name for name, _ in WITHOUT])
async def test_where_it_can_be_left_the_host_says_so(
    uid: int, lacking: str, mask: dict[str, int | bool], delegate: Callable[..., Path]
) -> None:
    group = delegate(uid)
    async with attacked(uid, cgroup=group, **mask) as rig:
        await rig.write("leave.py", (HERE / "leave.py").read_text())
        (warning,) = [event for event in rig.process.events.all if event["event"] == "confinement.report"]
        said = "Commands have a cgroup of their own, and can leave it" in warning["exposed"]
        assert said is (uid != 0), "root's files are root's"
        beside = "host" if (group / "host").exists() else "base"
        place = "leaf mkdir" if lacking == "no Landlock" else f"{beside} clone3"
        met = json.loads((await rig.bash(f"python3 -c '{_ONE}' {group} '{place}'"))["stdout"])
        assert (met == 0) is said


_ONE = """
import sys
sys.path.insert(0, ".")
import leave
try:
    leave.attempts(sys.argv[1])[sys.argv[2]]()
    print(0)
except OSError as error:
    print(error.errno)
"""


@as_each
async def test_the_worker_dies_and_the_next_one_has_a_leaf_of_its_own(uid: int, delegate: Callable[..., Path]) -> None:
    group = delegate(uid)
    async with attacked(uid, cgroup=group) as rig:
        (first,) = leaves(group)
        await rig.bash("env -i setsid -f sh -c 'trap : TERM; sleep 999 & sleep 999'")
        left = members(first)
        os.kill(rig.worker_pid, signal.SIGKILL)
        await eventually(lambda: leaves(group) not in ([], [first]), SECONDS)
        output = await rig.bash("grep ^0:: /proc/self/cgroup")
        (second,) = leaves(group)
        assert output["stdout"] == f"0::/{group.name}/commands/{second.name}\n"
        assert second != first
        assert not any(map(alive, left))


@as_each
async def test_a_stopped_host_leaves_the_cgroup_as_it_was(uid: int, delegate: Callable[..., Path]) -> None:
    group = delegate(uid)
    async with attacked(uid, cgroup=group) as rig:
        await rig.bash("setsid -f sleep 999")
        os.kill(rig.host_pid, signal.SIGTERM)
        await eventually(lambda: not [path for path in group.iterdir() if path.is_dir()], SECONDS)
    assert (group / "cgroup.subtree_control").read_text().strip() == ""


@as_each
async def test_a_killed_host_leaves_what_the_next_one_ends(uid: int, delegate: Callable[..., Path]) -> None:
    group = delegate(uid)
    async with attacked(uid, cgroup=group) as rig:
        await rig.bash("setsid -f sleep 999")
        (first,) = leaves(group)
    await eventually(lambda: not members(first) and not is_locked(first), SECONDS)
    stray = await asyncio.create_subprocess_exec("sleep", "999")
    (first / "cgroup.procs").write_text(str(stray.pid))
    async with attacked(uid, cgroup=group) as rig:
        (second,) = leaves(group)
        assert second != first
        async with asyncio.timeout(SECONDS):
            assert await stray.wait() == -signal.SIGKILL
        assert (await rig.bash("echo on"))["stdout"] == "on\n"


@as_each
async def test_modes_that_a_command_changed_are_mended(uid: int, delegate: Callable[..., Path]) -> None:
    """Landlock forbids no chmod of what one's user owns."""
    group = delegate(uid)
    async with attacked(uid, cgroup=group) as rig:
        first = leaves(group)
        await rig.bash(
            f"chmod 0 {group}/commands/* {group}/commands {group}/cgroup.* {group}/host/* {group}/host {group}"
        )
        os.kill(rig.worker_pid, signal.SIGKILL)
        await eventually(lambda: leaves(group) not in ([], first), SECONDS)
        output = await rig.bash("grep ^0:: /proc/self/cgroup")
        assert f"0::/{group.name}/commands/" in output["stdout"]
        assert len(leaves(group)) == 1


# --- where the hierarchy has controllers ---------------------------------------------------------------------------------


@as_each
async def test_a_bomb_meets_the_commands_limit_and_leaves_room(uid: int, delegate: Callable[..., Path]) -> None:
    group = delegate(uid, pids_max="200")
    async with attacked(uid, cgroup=group) as rig:
        most = int((group / "commands" / "pids.max").read_text())
        assert most == 150
        output = await rig.bash("f() { f | f & }; f; sleep 60", timeout=60)
        assert "more than 100 processes and threads" in output["stderr"]
        assert "max 0" in (group / "pids.events").read_text(), "ours was never met"
        assert (await rig.bash("echo on", "other"))["stdout"] == "on\n"


@as_each
async def test_a_hog_meets_the_commands_limit_and_leaves_room(uid: int, delegate: Callable[..., Path]) -> None:
    group = delegate(uid, memory_max=str(400 * MIB))
    async with attacked(uid, cgroup=group) as rig:
        assert int((group / "commands" / "memory.max").read_text()) == 300 * MIB
        reset = "echo 0 > /proc/self/oom_score_adj; "
        output = await rig.bash(
            reset + "exec python3 -c 'x = [bytearray(1 << 20) for _ in range(1 << 12)]'", timeout=60
        )
        assert "memory" in output["stderr"]
        assert "oom_kill 0" not in (group / "commands" / "memory.events").read_text()
        assert "oom_kill 0" in (group / "memory.events.local").read_text()


@as_each
async def test_many_small_hogs_whose_scores_are_reset_take_no_host(uid: int, delegate: Callable[..., Path]) -> None:
    """Each is smaller than the host: by size alone the kernel would take that."""
    group = delegate(uid, memory_max=str(400 * MIB))
    async with attacked(uid, cgroup=group) as rig:
        before = rig.host_pid, rig.worker_pid
        hog = "import time; x = bytearray(20 << 20); time.sleep(99)"
        many = f"for i in $(seq 40); do (echo 0 > /proc/self/oom_score_adj; exec python3 -c '{hog}') & done; wait -n; exit 3"
        output = await rig.bash(many, timeout=100)
        assert "memory" in output["stderr"]
        assert (rig.host_pid, rig.worker_pid) == before
        assert "oom_kill 0" in (group / "memory.events.local").read_text()
