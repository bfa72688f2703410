"""Deaths: of the worker, of the zygote, of the host; and starts that fail."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pod_host.errors import ConfinementMissing, SandboxError, WorkerLost
from pod_host.sandbox import Completed, Failed, kernel
from tests.sandbox.conftest import UID, Box, alive, completed, eventually, processes_of, remains

BELOW = "setsid -f sleep 999; env -i setsid sleep 998 & sleep 997"


async def test_a_killed_worker_fails_its_calls_leaves_nothing_and_is_replaced(box: Box) -> None:
    before = await box.sandbox.report()
    running = box.start(f"touch begun; {BELOW}")
    queued = box.start("true")
    await eventually((box.workspace / "begun").exists)
    left = [process.pid for process in await _processes(box, 3)]
    os.kill(before.pid, signal.SIGKILL)
    for call in (running, queued):
        with pytest.raises(WorkerLost):
            await call.outcome()
    assert (await box.bash("echo again"))["stdout"] == "again\n"
    after = await box.sandbox.report()
    assert after.pid != before.pid
    assert not any(remains(pid) for pid in [*left, before.pid, before.zygote or 0])


async def _processes(box: Box, count: int) -> Any:
    async def enough() -> Any:
        processes = (await box.sandbox.report()).processes
        return processes if len(processes) >= count else None

    return await eventually(enough)


async def test_calls_submitted_while_no_worker_is_there_run_on_the_next(box: Box) -> None:
    os.kill((await box.sandbox.report()).pid, signal.SIGKILL)

    async def away() -> bool:
        return not (await box.sandbox.report()).alive

    await eventually(away)
    outputs = await asyncio.gather(*(box.bash(f"echo {n}", f"s{n}") for n in range(5)))
    assert [output["stdout"] for output in outputs] == [f"{n}\n" for n in range(5)]


async def test_a_killed_zygote_costs_no_running_command(box: Box) -> None:
    running = box.start("touch begun; while [ ! -e go ]; do sleep 0.02; done; exit 9")
    await eventually((box.workspace / "begun").exists)
    zygote = (await box.sandbox.report()).zygote
    assert (await box.bash(f"kill -9 {zygote}", "killer"))["exitCode"] == 0  # a command can
    assert (await box.bash("touch go; echo ok", "other"))["stdout"] == "ok\n"
    assert completed(await running.outcome())["exitCode"] == 9
    assert (await box.sandbox.report()).zygote != zygote


async def test_a_stopped_zygote_is_replaced(box: Box) -> None:
    zygote = (await box.sandbox.report()).zygote
    await box.bash(f"kill -STOP {zygote}")
    assert (await box.bash("echo once >> log; cat log"))["stdout"] == "once\n"
    await eventually(
        lambda: not alive(zygote or 0)
    )  # the shell may have been waiting: then it was not asked for one yet
    assert (await box.bash("echo again"))["stdout"] == "again\n"


async def test_a_zygote_that_dies_under_load_costs_no_call_and_runs_none_twice(box: Box) -> None:
    async def killer() -> None:
        for _ in range(15):
            zygote = (await box.sandbox.report()).zygote
            with contextlib.suppress(ProcessLookupError):  # replaced since it was asked for
                os.kill(zygote or 0x7FFFFFFF, signal.SIGKILL)
            await asyncio.sleep(0.02)  # long enough for the next one to be given some

    killing = asyncio.create_task(killer())
    outputs = await asyncio.gather(*(box.bash(f"echo x >> log{n}; exit 3", f"s{n}") for n in range(150)))
    await killing
    assert {output["exitCode"] for output in outputs} == {3}
    assert {(box.workspace / f"log{n}").read_text() for n in range(150)} == {"x\n"}


async def test_a_search_can_be_aborted_at_any_moment_and_its_program_ends(box: Box) -> None:
    await box.bash("mkfifo pipe; for i in $(seq 300); do mkdir -p d$i; seq 1 20000 > d$i/f; done")
    for delay in range(20):
        search = box.submit("grep", "other", pattern="no such thing (a|b|c|d)+e{1,50}$")
        await asyncio.sleep(delay / 1000)  # the moment of the abort, not a wait for something
        search.abort()
        outcome = await search.outcome()
        assert isinstance(outcome, Failed) or outcome == Completed("No matches.")

    async def gone() -> bool:
        return not await box.living()

    await eventually(gone)


async def test_stop_ends_every_command_and_the_worker(box: Box) -> None:
    running = box.start(f"touch begun; {BELOW}")
    await box.bash("setsid -f sleep 996", "other")
    await eventually((box.workspace / "begun").exists)
    report = await box.sandbox.report()
    pids = [process.pid for process in await _processes(box, 4)]
    await box.sandbox.stop()
    with pytest.raises(WorkerLost):
        await running.outcome()
    assert not any(alive(pid) for pid in [*pids, report.pid, report.zygote or 0])
    with pytest.raises(SandboxError):
        box.start("true")
    assert not (await box.sandbox.report()).alive


HOST = """
import asyncio, os, signal, sys
sys.path.insert(0, {root!r})
if {ignore}:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
from pathlib import Path
from pod_host.sandbox import *
async def main():
    root = Path({directory!r})
    places = [root/name for name in ("workspace", "home", "skills", "spool")]
    sandbox = Sandbox(SandboxConfig(*places, uid={uid}, landlock_abi={abi}))
    await sandbox.start()
    environment = command_environment(
        base={{}}, home=root/"home", session={{}}, proxy=None, trust_bundle=None, traceparent=None)
    async def bash(command):
        outcome = await sandbox.submit(ToolCall("one", "bash", {{"command": command}}, environment)).outcome()
        return outcome.output
    {body}
    await sandbox.stop()
asyncio.run(main())
"""


def host(
    directory: Path, body: str, *, ignore: bool = False, uid: int | None = None, abi: int | None = None
) -> list[str]:
    root = str(Path(__file__).resolve().parents[2])
    script = HOST.format(root=root, directory=str(directory), body=body, ignore=ignore, uid=uid, abi=abi)
    return ["-c", script]


def test_exit_codes_are_right_though_the_host_ignores_sigchld(open_directory: Path) -> None:
    body = "print([(await bash(c))['exitCode'] for c in ('exit 7', 'true', 'kill -9 $$', 'sh -c \"exit 3\"; exit $?')])"
    uid = UID if os.geteuid() == 0 else None
    command = [sys.executable, *host(open_directory, body, ignore=True, uid=uid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[7, 0, 137, 3]\n", "")


def test_a_killed_host_takes_its_commands_with_it(open_directory: Path) -> None:
    body = f"print((await sandbox.report()).pid, flush=True); await bash({BELOW!r})"
    uid = UID if os.geteuid() == 0 else None
    with subprocess.Popen([sys.executable, *host(open_directory, body, uid=uid)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        children = _descendants(worker, 4)
        process.kill()
        process.wait()
    _wait_until_gone([worker, *children])


def _descendants(pid: int, least: int) -> list[int]:
    """All below ``pid``, as soon as there are so many."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found = [pid]
        for parent in found:
            found += processes_of(parent)
        if len(found) > least:
            return found
        time.sleep(0.01)  # nothing tells of another's children
    raise AssertionError("the processes never came")


def _wait_until_gone(pids: list[int]) -> None:
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([descriptor], [], [], 20)[0], f"{pid} lives"
        finally:
            os.close(descriptor)


async def test_a_command_that_eats_all_memory_says_how_it_was_killed(box: Box, small_memory: Path) -> None:
    running = box.start(
        "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done; "
        "python3 -c 'x = [bytearray(1 << 20) for _ in range(1 << 12)]'"
    )
    pid = await eventually(lambda: (box.workspace / "pid").exists() and (box.workspace / "pid").read_text().strip())
    (small_memory / "cgroup.procs").write_text(pid)
    worker = (await box.sandbox.report()).pid
    await box.bash("touch go", "other")
    output = completed(await running.outcome())
    assert output["exitCode"] == 137
    assert "memory" in output["stderr"]
    assert (await box.sandbox.report()).pid == worker


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")
@pytest.mark.parametrize("abi", [0, 5, 7])
def test_a_command_can_do_nothing_to_a_host_of_its_own_user(open_directory: Path, abi: int) -> None:
    """Host and command share a uid, as in a pod: only the domain, the filter and DUMPABLE 0 stand between them."""
    attacks = Path(__file__).with_name("attacks.py").read_text()
    (open_directory / "attacks.py").write_text(attacks)
    body = (
        f"become_undumpable(); print((await bash('python3 {open_directory}/attacks.py ' + str(os.getpid())))['stdout'])"
    )
    done = _as_user(open_directory, body, abi=abi)
    assert done.stderr == ""
    result = json.loads(done.stdout)
    harmless = {name for name in result if name.startswith("sigio")} if kernel.landlock_abi() >= abi >= 6 else set()
    through = {name: code for name, code in result.items() if code not in (errno.EPERM, errno.EACCES)}
    assert set(through) <= harmless, through


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")
def test_the_whole_works_when_the_host_is_that_user_itself(open_directory: Path) -> None:
    """Started as uid 1000, without root, by an interpreter that this user can read."""
    body = "print((await bash('id -u; echo $HOME; exit 5'))['stdout'].split()[0], sandbox.confinement.abi >= 0)"
    done = _as_user(open_directory, body)
    assert (done.stdout, done.stderr) == (f"{UID} True\n", "")


def _as_user(
    directory: Path, body: str, abi: int | None = None, prefix: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    python = next((path for path in ("/usr/local/bin/python3", "/usr/bin/python3") if _new_enough(path)), None)
    if python is None:
        pytest.skip("no interpreter that every user can read")
    os.chown(directory, UID, UID)
    command = [python, *host(directory, body, abi=abi)]
    return subprocess.run(
        ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *prefix, *command],
        capture_output=True, text=True, timeout=60, check=False, cwd="/",
    )  # fmt: skip


def _new_enough(path: str) -> bool:
    check = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return os.path.exists(path) and subprocess.run(check, check=False).returncode == 0


async def test_what_is_required_and_missing_is_refused(make_box: Any) -> None:
    with pytest.raises(ConfinementMissing, match="files, signals"):
        await make_box(landlock_abi=0, require=frozenset({"files", "signals"}))
    with pytest.raises(ConfinementMissing, match="signals"):
        await make_box(landlock_abi=5, require=frozenset({"files", "signals"}))


async def test_a_workspace_that_is_no_directory_is_one_clear_line(make_box: Any, open_directory: Path) -> None:
    (open_directory / "workspace").write_text("")
    with pytest.raises(SandboxError, match=r"workspace is not a directory\.$"):
        await make_box()


async def test_a_workspace_that_commands_cannot_write_is_one_clear_line(make_box: Any, open_directory: Path) -> None:
    (open_directory / "workspace").mkdir(mode=0o500)
    with pytest.raises(SandboxError, match="workspace is not writable for uid"):
        await make_box()


async def test_a_missing_home_is_made_for_the_commands(box: Box) -> None:
    output = await box.bash("touch ~/here && stat -c %u ~ && echo $HOME")
    assert output["stdout"] == f"{(await box.sandbox.report()).uid}\n{box.config.home}\n"


async def test_a_start_that_is_cancelled_leaves_no_process(open_directory: Path) -> None:
    before = set(processes_of(os.getpid()))
    for delay in (0.0, 0.001, 0.01, 0.03, 0.05, 0.1):
        box = Box(open_directory)
        task = asyncio.create_task(box.sandbox.start())
        await asyncio.sleep(delay)  # the moment of the cancel, not a wait for something
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            assert set(processes_of(os.getpid())) <= before
        else:
            await box.sandbox.stop()
    assert set(processes_of(os.getpid())) <= before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")
def test_few_descriptors_fail_calls_and_not_the_worker(open_directory: Path) -> None:
    body = (
        "import resource; results = await asyncio.gather(*(sandbox.submit(ToolCall(str(n), 'bash', "
        "{'command': 'sleep 0.3'}, environment)).outcome() for n in range(60)))\n"
        "    print({type(r).__name__ for r in results}, (await bash('echo ok'))['stdout'])"
    )
    done = _as_user(open_directory, body, prefix=("prlimit", "--nofile=96:96"))
    assert (done.stdout, done.stderr) == ("{'Completed', 'Failed'} ok\n\n", "") or done.stdout == (
        "{'Failed', 'Completed'} ok\n\n"
    )
