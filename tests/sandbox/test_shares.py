"""What one command takes, the others keep their share of: processes, descriptors, urgency, the disk; and it is told."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pod_host import limits
from pod_host.sandbox import Completed, Failed, PutFile
from pod_host.sandbox.worker.census import most_tasks
from tests.sandbox.conftest import Box, completed, eventually, nice

FEW = 60


@pytest.fixture
def few_tasks() -> Iterator[int]:
    """What a worker that starts now lets a command have. (Root is above the limit itself.)"""
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (2 * FEW, before[1]))
    yield FEW
    resource.setrlimit(resource.RLIMIT_NPROC, before)


THREADS = (
    f"python3 -c 'import threading, time\n"
    f"for _ in range({FEW}): threading.Thread(target=time.sleep, args=[99]).start()'"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="the limit counts what else the user runs")
@pytest.mark.parametrize("greedy", [f"for i in $(seq {FEW}); do sleep 99 & done; wait", THREADS])
async def test_a_command_with_too_many_processes_or_threads_is_ended_and_told_why(
    few_tasks: int, make_box: Any, greedy: str
) -> None:
    box: Box = await make_box()
    beside = box.start("sleep 1; echo done", "other")
    output = await box.bash(greedy)
    assert output["exitCode"] == 137
    assert f"more than {few_tasks} processes and threads" in output["stderr"]
    assert not [command for command in await box.living() if "99" in command]
    assert completed(await beside.outcome())["stdout"] == "done\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="the limit counts what else the user runs")
async def test_what_lives_on_and_grows_too_many_is_ended_and_the_session_told(few_tasks: int, make_box: Any) -> None:
    box: Box = await make_box()
    await box.bash(f"(sleep 0.3; for i in $(seq {few_tasks}); do sleep 99 & done; wait) >/dev/null 2>&1 &")

    async def gone() -> bool:
        return not await box.living()

    await eventually(gone)
    assert (await box.bash("true", "other"))["stderr"] == ""
    output = await box.bash("echo fine")
    assert (output["exitCode"], output["stdout"]) == (0, "fine\n")
    assert "earlier command" in output["stderr"]
    assert f"more than {few_tasks} processes and threads" in output["stderr"]
    assert (await box.bash("true"))["stderr"] == ""


def test_one_command_may_have_half_of_what_there_is(few_tasks: int) -> None:
    assert most_tasks() == few_tasks
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
    assert few_tasks < most_tasks() <= limits.COMMAND_TASKS


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


async def test_commands_are_less_urgent_than_the_worker_and_die_first_for_memory(box: Box) -> None:
    report = await box.sandbox.report()
    output = await box.bash("nice; cat /proc/self/oom_score_adj")
    urgency, score = map(int, output["stdout"].split())
    assert urgency == min(19, nice(report.pid) + limits.COMMAND_NICE)
    assert score == min(1000, oom_score(report.pid) + 500)


def may_lower_scores() -> bool:
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> 24 & 1)  # CAP_SYS_RESOURCE


async def test_a_command_resets_its_score_no_lower_than_the_kernel_was_told(box: Box) -> None:
    """Only who may lower scores can set a floor; else the host's own is the least, and the kernel takes the largest."""
    hosts = oom_score(os.getpid())
    output = await box.bash(f"echo {hosts} > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj")
    assert (int(output["stdout"]) > hosts) is (os.geteuid() == 0 and may_lower_scores())
    report = await box.sandbox.report()
    output = await box.bash(f"echo {oom_score(report.pid)} > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj")
    assert int(output["stdout"]) == oom_score(report.pid)


IN_FLIGHT = """
import os, resource, socket, sys, time
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
sent, kept = 0, []
null = os.open("/dev/null", os.O_RDONLY)
try:
    while sent < 2_000_000:
        pair = socket.socketpair()
        pair[0].setblocking(False)
        kept.append(pair)
        try:
            while True:
                socket.send_fds(pair[0], [b"x"], [null] * 250)
                sent += 250
        except BlockingIOError:
            pass
except OSError as error:
    print(error.errno, flush=True)
open("full", "w").close()
time.sleep(60)
"""


async def test_descriptors_that_a_command_keeps_in_flight_cost_no_other_command(box: Box) -> None:
    """The kernel counts them for the user as a whole, and the worker sends some for every command."""
    await box.sandbox.submit(PutFile("one", "flood.py", IN_FLIGHT.encode())).outcome()
    flood = box.start("exec python3 flood.py")
    await eventually((box.workspace / "full").exists)
    for _ in range(3):
        assert (await box.bash("echo ok", "other"))["stdout"] == "ok\n"
    flood.abort()
    assert completed(await flood.outcome())["stdout"].strip() == "109"  # ETOOMANYREFS: it did meet the limit


async def test_a_command_has_the_descriptors_that_its_container_gives(box: Box) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = (await box.bash("ulimit -Sn; ulimit -Hn"))["stdout"].split()
    assert int(told[0]) == min(soft, int(told[1]))
    assert hard - 1024 <= int(told[1]) < hard


async def test_a_command_that_loses_a_process_for_memory_is_told_so(make_box: Any, small_memory: Path) -> None:
    box: Box = await make_box()
    running = box.start(
        "echo $$ > pid; until [ -e go ]; do sleep 0.02; done; "
        "python3 -c 'x = [bytearray(1 << 20) for _ in range(1 << 12)]'; exit 3"
    )
    pid = await eventually(lambda: (box.workspace / "pid").exists() and (box.workspace / "pid").read_text().strip())
    (small_memory / "cgroup.procs").write_text(pid)
    await box.bash("touch go", "other")
    output = completed(await running.outcome())
    assert output["exitCode"] == 3
    assert "kernel killed a process because memory had run out" in output["stderr"]


@pytest.fixture
def small_disk(open_directory: Path) -> Iterator[Path]:
    """1 MiB, with the workspace and nothing else on it."""
    place = open_directory / "workspace"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "tmpfs", str(place)], check=False)
    if mounted.returncode != 0:
        pytest.skip("no tmpfs that we may mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_full_disk_is_told_and_costs_no_files_old_content(small_disk: Path, make_box: Any) -> None:
    box: Box = await make_box()
    await box.submit("write", path="kept", content="old\n").outcome()
    filled = await box.bash("dd if=/dev/zero of=big bs=64k")
    assert (filled["exitCode"], "No space left on device" in filled["stderr"]) == (1, True)
    more = "x" * 100_000
    calls = [
        await box.submit("write", path="kept", content=more).outcome(),
        await box.submit("edit", path="kept", old_string="old", new_string=more).outcome(),
        await box.sandbox.submit(PutFile("one", "kept", more.encode())).outcome(),
        await box.submit("write", path="new", content=more).outcome(),
    ]
    for outcome in calls:
        assert isinstance(outcome, Failed)
        assert "No space left on device" in outcome.message
    assert (small_disk / "kept").read_text() == "old\n"
    assert sorted(os.listdir(small_disk)) == ["big", "kept"]
    assert (await box.bash("rm big; cat kept"))["stdout"] == "old\n"
    assert isinstance(await box.submit("write", path="kept", content=more).outcome(), Completed)


async def test_a_processor_hog_for_each_core_keeps_nobody_from_answers(box: Box) -> None:
    hogs = [box.start("yes > /dev/null", f"hog{number}") for number in range(2 * (os.cpu_count() or 1))]
    answers = await asyncio.gather(*(box.bash(f"echo {number}", f"s{number}") for number in range(10)))
    assert [answer["stdout"] for answer in answers] == [f"{number}\n" for number in range(10)]
    for hog in hogs:
        hog.abort()
        assert completed(await hog.outcome())["exitCode"] == 130
