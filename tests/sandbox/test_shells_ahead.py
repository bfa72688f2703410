"""Shells started ahead: what a script can see is what a fresh ``bash -c`` shows it, and what waits is in nobody's way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pod_host import limits
from pod_host.sandbox import Command, Json, Sandbox, ToolCall
from pod_host.sandbox.raw import RawResult, StreamCapture
from pod_host.sandbox.tools.bash import shape_bash
from pod_host.sandbox.worker.held import SCRIPT_BYTES
from tests.sandbox.conftest import UID, Box, completed, eventually, processes_of, remains
from tests.sandbox.shell_scripts import SAME

BASH = "/bin/bash"
pytestmark = pytest.mark.skipif(not os.path.exists(BASH), reason="the shells that are started ahead are bash")


async def zygote_of(sandbox: Sandbox) -> int:
    zygote = (await sandbox.report()).zygote
    assert zygote is not None
    return zygote


def waiting(zygote: int) -> set[int]:
    """Pids of the shells that wait for a script."""
    found = set()
    for pid in processes_of(zygote):
        shell, _, script = cmdline(pid).partition(b"\0-c\0")
        if shell == b"bash" and not script.strip(b" \0"):
            found.add(pid)
    return found


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Ahead:
    """Runs scripts in shells that waited for them, and says so when one did not."""

    def __init__(self, box: Box) -> None:
        self.box = box

    async def ready(self) -> set[int]:
        """Until a shell waits. Pids of those that do."""
        zygote = await zygote_of(self.box.sandbox)
        if not waiting(zygote):
            await self.box.bash("true")
        await eventually(lambda: bool(waiting(zygote)))
        return waiting(zygote)

    async def run(self, script: str, **variables: str) -> dict[str, Json]:
        before = await self.ready()
        call = ToolCall("one", "bash", {"command": script}, {**self.box.environment, **variables})
        output = completed(await self.box.sandbox.submit(call).outcome())
        assert before - waiting(await zygote_of(self.box.sandbox)), "the script ran in a shell of its own"
        output.pop("background", None)  # what a process substitution leaves lives a moment longer than its shell
        return output


@pytest.fixture
async def shells(box: Box) -> Ahead:
    return Ahead(box)


def _as_commands_start() -> None:
    os.nice(limits.COMMAND_NICE)
    for number in (signal.SIGINT, signal.SIGQUIT):  # ignored, where the tests run in the background
        signal.signal(number, signal.SIG_DFL)


def fresh(box: Box, script: str) -> dict[str, Json]:
    """The script in a bash of its own, as whoever commands run as; shaped as a command's result is."""
    user: dict[str, Any] = {"user": UID, "group": UID, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        ["bash", "-c", script.encode("utf-8", "surrogatepass")], executable=BASH, cwd=box.workspace, umask=0o022,
        env=box.environment, stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True, timeout=60,
        check=False, preexec_fn=_as_commands_start, **user,
    )  # fmt: skip
    by_signal = -done.returncode if done.returncode < 0 else None
    streams = [StreamCapture(raw.decode("utf-8", "replace")) for raw in (done.stdout, done.stderr)]
    code = done.returncode if by_signal is None else 128 + by_signal
    output: dict[str, Json] = shape_bash(
        RawResult(exit_code=code, signal=by_signal, stdout=streams[0], stderr=streams[1])
    ).output
    return output


@pytest.mark.parametrize("part", range(4))
async def test_a_script_sees_what_a_fresh_bash_shows_it(shells: Ahead, part: int) -> None:
    for script in SAME[part::4]:
        assert len(script.encode("utf-8", "surrogatepass")) <= SCRIPT_BYTES
        assert await shells.run(script) == fresh(shells.box, script), script


async def test_the_differences_that_are_left_are_the_documented_ones(shells: Ahead) -> None:
    text = Path(__file__).parents[2].joinpath("docs/shells.md").read_text()
    length = len("bash -c ") + SCRIPT_BYTES + 1
    for script, ours, usual in (
        ("wc -c < /proc/$$/cmdline", str(length), str(len("bash -c wc -c < /proc/$$/cmdline") + 1)),
        ("tr '\\0' '\\n' < /proc/$$/environ | grep -c BASH_ENV", "1", "0"),
        ("set | grep -c ^SECONDS=", "1", "0"),
        ("set | grep ^BASH_ARGC=", 'BASH_ARGC=([0]="0")', "BASH_ARGC=()"),
        ("echo ${PIPESTATUS[@]-none}", "0", "none"),
    ):
        assert (await shells.run(script))["stdout"] == f"{ours}\n"
        assert fresh(shells.box, script)["stdout"] == f"{usual}\n"
    for name in ("cmdline", "environ", "SECONDS", "BASH_ARGC", "PIPESTATUS"):
        assert name in text


async def test_each_call_has_its_own_traceparent_or_none(shells: Ahead) -> None:
    for number in range(3):
        traceparent = f"00-{number:032x}-00f067aa0ba902b7-01"
        output = await shells.run("env | grep ^TRACEPARENT; bash -c 'echo $TRACEPARENT'", TRACEPARENT=traceparent)
        assert output["stdout"] == f"TRACEPARENT={traceparent}\n{traceparent}\n"
        assert (await shells.run("echo ${TRACEPARENT-none}"))["stdout"] == "none\n"


async def test_another_environment_or_directory_takes_another_shell(shells: Ahead) -> None:
    box = shells.box
    assert (await shells.run("echo ${TOKEN-none}"))["stdout"] == "none\n"
    for value in ("old", "new", "new"):
        call = ToolCall("one", "bash", {"command": "echo $TOKEN"}, {**box.environment, "TOKEN": value})
        assert completed(await box.sandbox.submit(call).outcome())["stdout"] == f"{value}\n"


async def test_each_has_its_whole_environment_however_soon_its_script_comes(box: Box) -> None:
    """A script that is written while the kernel still lays out the new program would take the variables' place."""
    for number in range(1000):
        call = ToolCall("one", "bash", {"command": "echo $NUMBER"}, {**box.environment, "NUMBER": str(number)})
        assert completed(await box.sandbox.submit(call).outcome())["stdout"] == f"{number}\n"


async def test_a_directory_that_was_replaced_is_entered_anew(box: Box) -> None:
    below = box.workspace / "below"

    async def run(script: str) -> dict[str, Json]:
        return completed(await box.sandbox.submit(Command("one", script, str(below), box.environment, 20)).outcome())

    await box.bash("mkdir below")
    zygote = await zygote_of(box.sandbox)
    for number in range(3):
        await run("true")
        await eventually(lambda: bool(waiting(zygote)))
        await box.bash(f"mv below old-{number}; mkdir below")
        assert (await run("touch here; ls"))["stdout"] == "here\n"
        assert (below / "here").exists()
    await box.bash("mv below gone")
    assert "below" in str(await box.sandbox.submit(Command("one", "true", str(below), box.environment, 20)).outcome())


@pytest.mark.parametrize(
    ("name", "value", "script", "says"),
    [
        ("BASH_ENV", "greet", "true", "hello\n"),
        ("POSIXLY_CORRECT", "1", "set -o | grep posix", "posix          \ton\n"),
        ("SHELLOPTS", "xtrace", "echo $-", None),
        ("BASH_FUNC_exec%%", "() {  echo mine; }", "exec true", "mine\n"),
        ("SECONDS", "41", "echo $SECONDS", "41\n"),
    ],
)
async def test_what_bash_reads_at_its_start_is_read(box: Box, name: str, value: str, script: str, says: str) -> None:
    (box.workspace / "greet").write_text("echo hello\n")
    for _ in range(3):
        call = ToolCall("one", "bash", {"command": script}, {**box.environment, name: value})
        output = completed(await box.sandbox.submit(call).outcome())
        if says is not None:
            assert (output["stdout"], output["stderr"]) == (says, "")
        else:
            assert (output["stdout"], output["stderr"]) == ("hxBc\n", "+ echo hxBc\n")


async def test_a_script_that_is_too_long_for_them_runs_all_the_same(box: Box) -> None:
    for length in (SCRIPT_BYTES, SCRIPT_BYTES + 1, 3 * SCRIPT_BYTES):
        script = "echo ${#BASH_EXECUTION_STRING} ".ljust(length, "#")
        assert (await box.bash(script))["stdout"] == f"{length}\n"


async def test_seconds_count_from_the_call_on(shells: Ahead) -> None:
    await shells.ready()
    await asyncio.sleep(1.1)  # a second that a count from the shell's own start would show
    assert (await shells.run("echo $SECONDS"))["stdout"] == "0\n"


async def test_shells_that_wait_are_no_processes_of_commands(shells: Ahead) -> None:
    await shells.ready()
    assert (await shells.box.sandbox.report()).processes == ()
    assert "background" not in await shells.box.bash("true")


async def test_there_are_no_more_than_there_may_be_and_none_is_left(make_box: Callable[..., Any], box: Box) -> None:
    zygote = await zygote_of(box.sandbox)
    for _ in range(3):
        await asyncio.gather(*(box.start("true", f"s{number}").outcome() for number in range(30)))
    await eventually(lambda: len(waiting(zygote)) == limits.SHELLS_AHEAD)
    await asyncio.gather(*(box.start("true", f"s{number}").outcome() for number in range(30)))
    assert len(waiting(zygote)) <= limits.SHELLS_AHEAD
    await eventually(lambda: "Z" not in processes_of(zygote).values())
    left = waiting(zygote) | {zygote}
    await box.sandbox.stop()
    assert not any(remains(pid) for pid in left)


async def test_none_waits_where_none_shall(make_box: Callable[..., Any]) -> None:
    box = await make_box(shells_ahead=0)
    zygote = await zygote_of(box.sandbox)
    for _ in range(5):
        assert (await box.bash("echo $0"))["stdout"] == "bash\n"
        assert not waiting(zygote)


async def test_one_that_is_killed_stopped_or_robbed_of_its_zygote_costs_no_call(shells: Ahead) -> None:
    box = shells.box
    for harm in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        for pid in await shells.ready():
            os.kill(pid, harm)
        output = await box.bash("echo on", timeout=20)
        assert output["stdout"] == "on\n", (harm, output)
    await shells.ready()
    os.kill(await zygote_of(box.sandbox), signal.SIGKILL)
    for _ in range(3):
        assert (await box.bash("exit 3"))["exitCode"] == 3
    await shells.ready()


async def test_a_zygote_that_is_stopped_holds_no_result_back(shells: Ahead) -> None:
    await shells.ready()
    zygote = await zygote_of(shells.box.sandbox)
    call = shells.box.start("sleep 0.3; exit 7")
    os.kill(zygote, signal.SIGSTOP)
    assert completed(await call.outcome())["exitCode"] == 7


async def test_a_command_can_touch_what_waits_and_nothing_runs_but_what_was_asked_for(shells: Ahead) -> None:
    """Commands are one another's equals; a shell that waits is no weaker than one that runs."""
    await shells.ready()
    output = await shells.box.bash(
        "for pid in $(ps -o pid= --ppid $PPID); do [ $pid = $$ ] || kill -9 $pid; done 2>/dev/null; echo done"
    )
    assert output["stdout"] == "done\n"
    assert (await shells.box.bash("echo next"))["stdout"] == "next\n"
