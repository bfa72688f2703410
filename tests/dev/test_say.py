"""``python -m pod_host.dev.say``: words for a Runtime that runs already."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.dev.conftest import World
from tests.dev.harness import WAIT


async def start_say(world: World, *arguments: str, stdin: bytes | None = None) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pod_host.dev.say", "--north", world.runtime.north_url, *arguments),
        cwd=Path(__file__).parents[2],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(stdin or b"")
    process.stdin.close()
    return process


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(WAIT):
        out, err = await process.stdout.read(), await process.stderr.read()
        return await process.wait(), out.decode(), err.decode()


async def test_it_waits_for_the_host_and_shows_the_turn(world: World) -> None:
    process = await start_say(world, "what is here?")
    async with world.pod.connected() as channel:
        run = await channel.lease()
        assert run.checkpoint["input"] == "what is here?"
        entries = [run.input_entry("what is here?"), run.final_entry("a workspace")]
        await run.complete("a workspace", transcript=[{"keep": 0, "entries": entries, "length": 2}])
        code, out, _ = await ended(process)
    assert code == 0
    assert "a workspace" in out
    assert "completed" in out


async def test_each_line_of_a_pipe_is_a_message_of_the_session_that_is_named(world: World) -> None:
    session = await world.north.session()
    async with world.pod.connected() as channel:
        process = await start_say(world, "--session", session, stdin=b"one\ntwo\n")
        for number, text in enumerate(("one", "two")):
            run = await channel.lease()
            assert (run.checkpoint["input"], run.grant["sessionId"]) == (text, session)
            update = {
                "keep": 2 * number,
                "entries": [run.input_entry(text), run.final_entry(text)],
                "length": 2 * number + 2,
            }
            await run.complete(text, transcript=[update])
        code, out, _ = await ended(process)
    assert code == 0
    assert out.count("completed") == 2


async def test_a_turn_that_fails_is_exit_code_1(world: World) -> None:
    async with world.pod.connected() as channel:
        process = await start_say(world, "hello")
        run = await channel.lease()
        await run.ask("turn.failed", thrown={"code": "internal", "message": "no luck"})
        code, out, _ = await ended(process)
    assert code == 1
    assert "no luck" in out


async def test_a_host_that_does_not_come_is_said_in_one_line(world: World) -> None:
    assert await ended(await start_say(world, "hello", "--wait", "0.1")) == (1, "", "no host connected within 0.1 s\n")


async def test_a_runtime_that_does_not_answer_is_said_in_one_line(world: World) -> None:
    await world.runtime.stop()
    code, _, err = await ended(await start_say(world, "hello"))
    assert code == 1
    assert err.startswith("the embedded Runtime does not answer")
    assert len(err.splitlines()) == 1
