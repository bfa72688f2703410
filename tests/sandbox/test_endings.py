"""Timeouts and aborts: the whole tree ends, and nobody else's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pod_host.sandbox import Command, Failed, ToolCall
from tests.sandbox.conftest import Box, alive, completed, eventually


async def test_a_busy_loop_ends_at_its_timeout(box: Box) -> None:
    output = await box.bash("python3 -c 'while 1: pass'", timeout=1)
    assert (output["exitCode"], output["timedOut"]) == (124, True)
    assert "timed out after 1s" in output["stderr"]
    assert await box.living() == []


async def test_a_program_that_eats_memory_over_a_huge_line_ends_at_its_timeout(box: Box) -> None:
    await box.bash(
        "truncate -s 1G huge; head -c 64M /dev/zero | tr '\\0' a > line; for i in 1 2 3; do cat line; done > l"
    )
    worker = (await box.sandbox.report()).pid
    before = _resident(worker)
    output = await box.command("while grep -E '.{0,120}(a|b).{0,300}' l; do :; done", 0.7)
    assert output["exitCode"] == 124
    assert await box.living() == []
    assert _resident(worker) - before < 8 * 1024


def _resident(pid: int) -> int:
    """KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def test_a_tree_that_ignores_sigterm_is_killed(box: Box) -> None:
    output = await box.command("trap '' TERM; sleep 600 & sleep 601 & wait", 0.5)
    assert output["exitCode"] == 124
    assert await box.living() == []


async def test_sigterm_comes_first_and_its_last_words_are_heard(box: Box) -> None:
    output = await box.command("trap 'echo bye; exit 0' TERM; sleep 600 & wait", 0.5)
    assert (output["exitCode"], output["stdout"]) == (124, "bye\n")


async def test_stopped_processes_end_too(box: Box) -> None:
    assert (await box.command("sleep 600 & kill -STOP $!; kill -STOP $$", 0.5))["exitCode"] == 124
    assert await box.living() == []


HIDERS = {
    "setsid": "setsid -f sleep 999; sleep 100",
    "double fork": "(setsid sh -c '(sleep 999 &) ; exit' &) ; sleep 100",
    "no environment": "env -i setsid -f sleep 999; sleep 100",
    "no descriptors": "setsid -f sleep 999 </dev/null >/dev/null 2>&1; sleep 100",
    "lower limits": "(ulimit -m 4; setsid -f sleep 999); (ulimit -x 4; setsid -f sleep 999); sleep 100",
    "no limits": "(ulimit -m 4; ulimit -x 4; setsid -f sleep 999); sleep 100",
    "user namespace": "unshare -r setsid -f sleep 999; sleep 100",
}


@pytest.mark.parametrize("how", HIDERS)
async def test_a_process_that_hides_ends_and_a_bystander_does_not(box: Box, how: str) -> None:
    server = await box.bash("setsid sleep 998 >/dev/null 2>&1 & echo $!", "other")
    busy = box.start("sleep 2; echo done", "third")
    output = await box.command(HIDERS[how], 0.7)
    assert output["exitCode"] == 124
    assert not any("999" in command for command in await box.living())
    assert any("998" in command for command in await box.living())
    assert completed(await busy.outcome())["stdout"] == "done\n"
    assert alive(int(server["stdout"]))


async def test_an_abort_ends_the_tree_and_keeps_what_was_written(box: Box) -> None:
    running = box.start("echo begun; touch begun; setsid -f sleep 999; sleep 100")
    await eventually((box.workspace / "begun").exists)
    running.abort()
    output = completed(await running.outcome())
    assert (output["exitCode"], output["stdout"]) == (130, "begun\n")
    assert await box.living() == []


async def test_cancelling_the_wait_aborts_the_call(box: Box) -> None:
    call = ToolCall("one", "bash", {"command": "touch begun; sleep 100"}, box.environment)
    task = asyncio.create_task(box.sandbox.ask(call))
    await eventually((box.workspace / "begun").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def gone() -> bool:
        return not await box.living()

    await eventually(gone)


async def test_a_call_aborted_in_the_queue_never_runs_and_keeps_the_order(box: Box) -> None:
    first = box.start("touch begun; while [ ! -e go ]; do sleep 0.02; done; echo first >> log")
    second = box.start("echo second >> log")
    write = box.submit("write", path="never", content="")
    third = box.start("echo third >> log; cat log")
    await eventually((box.workspace / "begun").exists)
    second.abort()
    write.abort()
    assert completed(await second.outcome())["exitCode"] == 130
    assert isinstance(await write.outcome(), Failed)
    await box.bash("touch go", "other")
    await first.outcome()
    assert completed(await third.outcome())["stdout"] == "first\nthird\n"
    assert not (box.workspace / "never").exists()


async def test_a_timeout_counts_from_the_commands_own_start(box: Box) -> None:
    """One that waits in the queue for longer than its timeout runs all the same."""
    first = box.start("sleep 1.2")
    second = box.start("echo ran", timeout=1)
    await first.outcome()
    assert completed(await second.outcome())["stdout"] == "ran\n"


async def test_a_call_can_be_aborted_at_any_moment(box: Box) -> None:
    """The race between an abort and a start, an end, or an answer on its way."""
    for delay in range(40):
        running = box.start("setsid -f sleep 999; exit 5")
        await asyncio.sleep(delay / 8000)  # the moment of the abort, not a wait for something
        running.abort()
        output = completed(await running.outcome())
        assert output["exitCode"] in (5, 130)
        if output["exitCode"] == 5:
            await box.bash(f"kill {output['background'][0]['pid']}")
    assert await box.living() == []


async def test_setup_commands_may_run_longer_than_a_models(box: Box) -> None:
    request = Command("one", "echo ok", str(box.workspace), box.environment, 3600.0)
    assert completed(await box.sandbox.submit(request).outcome())["stdout"] == "ok\n"
