"""Bombs, hogs and fillers as a turn's tool call: the lease is renewed, other sessions get answers, and the result names what
happened."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attack.rig import TASKS, Rig, as_each, attacked, pod_directories
from tests.host import core as scripted
from tests.host.core import Core, calls, said, turn_start
from tests.sandbox.conftest import alive, memory_cgroup

MIB = 1 << 20
RENEWALS = 10  # that must come while it runs, at 50 ms each


async def result_of(rig: Rig, command: str, **more: Any) -> dict[str, Any]:
    """The command as a turn's tool call, and the output that the model is told. Meanwhile other sessions are served, and
    the lease renewed: what would be over at once begins with a `sleep 1`, so that both can be seen."""
    asked: list[Any] = []

    def model(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        return calls("bash", {"command": command, **more}) if len(asked) == 1 else said("Done.")

    rig.core.model = model
    before = (rig.host_pid, rig.worker_pid)
    turn = asyncio.ensure_future(rig.connection.asked("turn.completed"))
    await rig.connection.offer("run-1", turn_start())
    await rig.connection.asked("effect.intent")
    began = len(rig.connection.frames.all)
    answers = 0
    while not turn.done():
        assert (await rig.bash("echo served", f"other{answers % 3}"))["stdout"] == "served\n"
        answers += 1
    await turn
    assert (rig.host_pid, rig.worker_pid) == before, "neither died"
    assert alive(rig.host_pid)
    assert not rig.connection.closed.done()
    frames = rig.connection.frames.all
    assert answers > 1
    assert sum(frame.get("m") == "lease.renew" for frame in frames[began:]) >= RENEWALS
    outcomes = [frame["p"]["value"] for frame in frames if frame.get("m") == "effect.outcome"]
    (output,) = [
        value["output"] for value in outcomes if value.get("kind") == "completed" and "exitCode" in value["output"]
    ]
    return dict(output)


@pytest.fixture(autouse=True)
def fast_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scripted.HELLO, "renewEveryMs", 50)


@as_each
async def test_a_fork_bomb_is_ended_and_named(uid: int) -> None:
    async with attacked(uid) as rig:
        output = await result_of(rig, "f() { f | f & }; sleep 1; f; sleep 60", timeout=30)
        assert output["exitCode"] == 137
        assert f"more than {TASKS // 2} processes and threads" in output["stderr"]
        await rig.nothing_left()


@as_each
async def test_a_fork_bomb_whose_shell_has_gone_is_ended_too(uid: int) -> None:
    async with attacked(uid) as rig:
        await rig.bash("bomb() { bomb | bomb & }; bomb")
        await rig.nothing_left()
        assert (await rig.bash("echo on", "other"))["stdout"] == "on\n"


@as_each
async def test_a_thread_bomb_is_ended_and_named(uid: int) -> None:
    bomb = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=[99]).start()"
    async with attacked(uid) as rig:
        output = await result_of(rig, f"sleep 1; python3 -c '{bomb}'; sleep 60", timeout=30)
        assert f"more than {TASKS // 2} processes and threads" in output["stderr"]


@as_each
async def test_a_processor_hog_for_each_core_runs_into_its_timeout(uid: int) -> None:
    async with attacked(uid) as rig:
        hogs = 2 * (os.cpu_count() or 1)
        output = await result_of(rig, f"for i in $(seq {hogs}); do yes > /dev/null & done; wait", timeout=3)
        assert (output["exitCode"], output["timedOut"]) == (124, True)
        await rig.nothing_left()


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """300 MiB for a whole pod."""
    with memory_cgroup(300 * MIB) as group:
        yield group


HOGS = {
    "one": "python3 -c 'x = [bytearray(1 << 20) for _ in range(1 << 12)]'",
    "its score reset": (
        "echo 0 > /proc/self/oom_score_adj; exec python3 -c 'x = [bytearray(1 << 20) for _ in range(1 << 12)]'"
    ),
    "many small ones": (
        "for i in $(seq 40); do python3 -c 'import time; x = bytearray(20 << 20); time.sleep(99)' & done; wait -n; exit 3"
    ),
    "files in memory": "python3 -c 'import os\nwhile True: os.write(os.memfd_create(str()), bytes(8 << 20)); os.dup(2)'",
}


@as_each
@pytest.mark.parametrize("hog", HOGS)
async def test_a_memory_hog_is_ended_by_the_kernel_and_named(uid: int, hog: str, memory_group: Path) -> None:
    async with attacked(uid, cgroup=memory_group) as rig:
        output = await result_of(rig, f"sleep 1; {HOGS[hog]}", timeout=60)
        assert output["exitCode"] != 0
        assert "memory" in output["stderr"]


def mount(path: Path, size: str, uid: int) -> None:
    options = f"size={size},mode=755,uid={uid},gid={uid}"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=False)
    if done.returncode != 0:
        pytest.skip("no tmpfs that we may mount")


@as_each
async def test_a_filled_disk_is_named_and_costs_neither_the_volume_id_nor_setups_marks_nor_content(uid: int) -> None:
    """Workspace and the host's directory on one small disk, as on a pod's volume."""
    setup = {"files": [], "commands": [{"command": "echo ran >> marks"}]}
    with pod_directories(uid) as base:
        mount(base / "harness", "2m", uid)
        (base / "harness" / "home").mkdir()
        os.chown(base / "harness" / "home", 1000, 1000)
        workspace = str(base / "harness" / "home" / "work")
        async with Core() as core:
            core.setup = {"setup": setup}
            async with Rig.run(core, base, uid, POD_HOST_WORKSPACE_DIR=workspace) as rig:
                await rig.connect()
                await rig.write("kept", "old\n")
                output = await result_of(rig, "sleep 1; dd if=/dev/zero of=big bs=64k; echo more > small")
                assert "No space left on device" in output["stderr"]
                refused = await rig.connection.ask(
                    "workspace.write",
                    {"session": {"ownerId": "x"}, "tool": "write", "input": {"path": "kept", "content": "x" * MIB}},
                )
                assert "No space left on device" in refused["r"]["message"]
                volume_id = core.joins.all[0]["volumeId"]
                marks = (base / "harness" / "setup.json").read_text()
                await rig.bash("dd if=/dev/zero of=more bs=1 count=9000", "other")  # the last bytes too
            async with Rig.run(
                core, base, uid, POD_HOST_WORKSPACE_DIR=workspace
            ) as rig:  # the pod comes again, its disk still full
                await rig.connect(2)
                assert core.joins.all[1]["volumeId"] == volume_id
                assert (base / "harness" / "setup.json").read_text() == marks
                output = await rig.bash("cat kept marks; rm big more; echo new > small && cat small")
                assert output["stdout"] == "old\nran\nnew\n"
