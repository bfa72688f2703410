"""Calls of one session in order; sessions beside one another."""

from __future__ import annotations

import asyncio

from pod_host.sandbox import AppendLog, Completed, PutFile, ReadBytes
from tests.sandbox.conftest import Box, completed, eventually


async def test_writers_of_a_session_run_one_after_another(box: Box) -> None:
    calls = [box.start(f"sleep 0.0{n % 3}; echo {n} >> log") for n in range(12)]
    calls.append(box.submit("edit", path="log", old_string="11\n", new_string="eleven\n"))
    calls.append(box.start("cat log"))
    outcomes = [await call.outcome() for call in calls]
    assert completed(outcomes[-1])["stdout"].split() == [*map(str, range(11)), "eleven"]


async def test_a_read_waits_for_earlier_writers_only(box: Box) -> None:
    box.submit("write", path="file", content="old\n")
    box.start("while [ ! -e go ]; do sleep 0.02; done; echo new > file")
    read = box.submit("read", path="file")
    later = box.start("echo later > later; mv later file")
    await box.bash("touch go", "other")
    outcome = await read.outcome()
    assert isinstance(outcome, Completed)
    assert "new" in outcome.output or "later" in outcome.output
    assert "old" not in outcome.output
    await later.outcome()


async def test_a_read_does_not_wait_for_later_writers_nor_they_for_it(box: Box) -> None:
    await box.submit("write", path="file", content="text\n").outcome()
    read = box.submit("read", path="file")
    stuck = box.start("while [ ! -e go ]; do sleep 0.02; done")
    outcome = await read.outcome()
    assert isinstance(outcome, Completed)
    assert "text" in outcome.output
    await box.bash("touch go", "other")
    await stuck.outcome()


async def test_a_stuck_command_holds_up_only_its_own_session(box: Box) -> None:
    stuck = box.start("touch begun; sleep 600", "stuck")
    behind = box.start("true", "stuck")
    await eventually((box.workspace / "begun").exists)
    assert (await box.bash("echo ok", "other"))["stdout"] == "ok\n"
    assert isinstance(await box.submit("write", "other", path="f", content="x").outcome(), Completed)
    assert isinstance(await box.submit("read", "third", path="f").outcome(), Completed)
    stuck.abort()
    await asyncio.gather(stuck.outcome(), behind.outcome())


async def test_a_thousand_queued_calls_run_in_order(box: Box) -> None:
    calls = [box.submit("write", path="n", content=str(n)) for n in range(1000)]
    last = box.submit("read", path="n")
    for call in calls:
        assert isinstance(await call.outcome(), Completed)
    outcome = await last.outcome()
    assert isinstance(outcome, Completed)
    assert "999" in outcome.output


async def test_setup_files_commands_and_log_keep_their_order(box: Box) -> None:
    put = box.sandbox.submit(PutFile("setup", "bin/tool", b"#!/bin/sh\necho tool\n", 0o755))
    run = box.start("./bin/tool", "setup")
    log = box.sandbox.submit(AppendLog("setup", "setup.log", "ran\n"))
    read = box.sandbox.submit(ReadBytes("setup", str(box.config.home / "setup.log"), 1, 100))
    assert await put.outcome() == Completed({"path": str(box.workspace / "bin/tool"), "bytes": 20})
    assert completed(await run.outcome())["stdout"] == "tool\n"
    assert await log.outcome() == Completed({"path": str(box.config.home / "setup.log")})
    assert await read.outcome() == Completed({"bytes": b"an\n", "size": 4})
