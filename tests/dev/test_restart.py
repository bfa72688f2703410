"""The standalone process: ready line, clean stop, and a kill at any point of a turn."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.dev.harness import WAIT, Channel, JsonObject, North, Pod, Refused, Run

SANDBOX = {"kind": "sandbox"}
Start = Callable[..., Awaitable["Standalone"]]


@dataclass
class Standalone:
    """One Runtime as a process of its own."""

    process: asyncio.subprocess.Process
    status: JsonObject
    north: North

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


async def launch(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pod_host.dev",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin"},
    )


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def begin(*arguments: str) -> Standalone:
            process = await launch("--state-dir", str(tmp_path / "state"), "--lease-seconds", "1", *arguments)
            stack.push_async_callback(end, process)
            assert process.stdout is not None
            status = json.loads(await asyncio.wait_for(process.stdout.readline(), WAIT))
            north = North(status["urls"]["north"])
            stack.push_async_callback(north.close)
            return Standalone(process, status, north)

        yield begin


async def end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.communicate()


async def test_the_ready_line_says_where_everything_is(start: Start) -> None:
    runtime = await start()
    assert set(runtime.status["urls"]) == {"harness", "gates", "egress", "north"}
    assert Pod(runtime.status).join_token()
    assert await runtime.north.get("/v1/status") == runtime.status


async def test_sigterm_closes_the_sockets_and_exits_with_0(start: Start) -> None:
    runtime = await start()
    async with Pod(runtime.status).connected() as channel:
        runtime.process.send_signal(signal.SIGTERM)
        assert await channel.closed() == (1001, "core is stopping")
    assert await asyncio.wait_for(runtime.process.wait(), WAIT) == 0


async def test_wrong_configuration_is_one_line_each_and_exit_78(start: Start, tmp_path: Path) -> None:
    runtime = await start()
    port = runtime.status["urls"]["gates"].rpartition(":")[2]
    agent = tmp_path / "agent.yaml"
    agent.write_text("instructions: 1\n")
    for arguments, problem in (
        (["--state-dir", str(tmp_path / "state")], "another Runtime is running on it"),
        (["--state-dir", str(tmp_path / "other"), "--gates-port", port], f"gates port {port} on 127.0.0.1 is taken"),
        (["--state-dir", str(tmp_path / "other"), "--agent", str(agent)], "agent.yaml"),
    ):
        process = await launch(*arguments)
        _, errors = await asyncio.wait_for(process.communicate(), WAIT)
        assert process.returncode == 78
        assert problem in errors.decode()
        assert errors.decode().count("\n") == 1


class Killed:
    """A turn in which the Runtime is killed and started again, at a point that the test names."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.runtime: Standalone
        self.pod: Pod
        self.session = ""

    async def begin(self) -> None:
        self.runtime = await self.start()
        self.pod = Pod(self.runtime.status)
        self.session = await self.runtime.north.session()
        await self.runtime.north.say(self.session, "go")

    async def again(self) -> None:
        await self.runtime.kill()
        urls = self.runtime.status["urls"]
        self.runtime = await self.start()
        assert self.runtime.status["urls"] == urls  # a host finds it where it was


@pytest.mark.parametrize("point", ["leased", "intent", "outcome", "second intent", "yielded"])
async def test_a_turn_goes_on_where_it_was_when_the_runtime_is_killed(start: Start, point: str) -> None:
    turn = Killed(start)
    await turn.begin()
    async with turn.pod.connected() as channel:
        first = await channel.lease()
        await advance_to(first, point)
        await turn.again()
    assert turn.runtime.status["host"]["epoch"] == 1
    assert (await turn.pod.renew()).status_code == 200  # keys and epoch are kept
    async with turn.pod.connected() as channel:
        run = await channel.lease()
        assert run.turn_id == first.turn_id
        assert run.segment == (1 if point == "yielded" else 0)
        await replay(run, first, point)
        await run.complete("at last")
    view = await turn.runtime.north.turn(turn.session)
    assert (view["status"], view["output"]) == ("completed", "at last")
    kinds = [event["type"] for event in await turn.runtime.north.events(turn.session)]
    assert kinds.count("turn.queued") == kinds.count("turn.completed") == 1
    assert kinds.count("message.assistant") == (0 if point == "leased" or point == "intent" else 1)


def model_of(run: Run) -> tuple[JsonObject, JsonObject]:
    return run.model_intent(), run.model_call()


async def advance_to(run: Run, point: str) -> None:
    model, call = model_of(run)
    tool = run.tool_intent("bash", SANDBOX, {"command": "ls"})
    if point == "leased":
        return
    await run.intent(model, call=call)
    if point == "intent":
        return
    await run.outcome(model, "thought")
    if point == "outcome":
        return
    if point == "second intent":
        await run.intent(tool)
        return
    entry = run.input_entry("go")
    await run.ask("checkpoint", status="yielded", state=1, transcript=[{"keep": 0, "entries": [entry], "length": 1}])


async def replay(run: Run, first: Run, point: str) -> None:
    """What a harness finds when it asks for the same effects again."""
    if point == "yielded":
        assert run.checkpoint["state"] == 1
        assert len((await run.ask("transcript.read"))["entries"]) == 1
        return
    recorded = {outcome["effectId"]: outcome["outcome"] for outcome in run.start["outcomes"]}
    model, call = model_of(run)
    assert run.checkpoint == first.checkpoint
    if point in ("leased", "intent"):
        assert recorded == {}
        assert await run.intent(model, call=call) == {"status": "execute"}
        return
    assert recorded == {model["effectId"]: {"value": "thought"}}
    assert await run.intent(model, call=call) == {"status": "completed", "outcome": {"value": "thought"}}
    if point == "second intent":
        tool = run.tool_intent("bash", SANDBOX, {"command": "ls"})
        assert (await run.intent(tool))["outcome"]["value"]["code"] == "tool.interrupted"


async def test_a_turn_that_waits_for_a_person_still_waits_after_a_kill(start: Start, tmp_path: Path) -> None:
    agent = tmp_path / "agent.json"
    tool = {"name": "post", "http": {"url": "http://127.0.0.1:1/"}}
    agent.write_text(json.dumps({"name": "careful", "tools": [tool]}))
    arguments = ("--agent", str(agent), "--ask", "po*")
    runtime = await start(*arguments)
    session = await runtime.north.session()
    await runtime.north.say(session)
    async with Pod(runtime.status).connected() as channel:
        run = await channel.lease()
        effect = run.tool_intent("post", {"kind": "http", "tool": "post"}, {})
        assert await run.intent(effect) == {"status": "pending"}
        await run.ask("turn.waiting", status="waiting", effectIds=[effect["effectId"]], state=1)
        await runtime.kill()
    runtime = await start(*arguments)
    view = await runtime.north.get(f"/v1/sessions/{session}")
    assert (view["state"], view["interactions"][0]["id"]) == ("waiting", effect["effectId"])
    await runtime.north.post(f"/v1/sessions/{session}/interactions/{effect['effectId']}", {"approved": True})
    async with Pod(runtime.status).connected() as channel:
        run = await channel.lease()
        assert (await run.intent(effect))["status"] == "execute"


async def test_messages_that_wait_and_events_survive_a_kill(start: Start) -> None:
    runtime = await start()
    session = await runtime.north.session()
    await runtime.north.say(session, "one")
    await runtime.north.say(session, "two")
    before = await runtime.north.events()
    await runtime.kill()
    runtime = await start()
    assert (await runtime.north.events())[: len(before)] == before
    async with Pod(runtime.status).connected() as channel:
        await (await first_run(channel)).complete()
        assert (await channel.lease()).checkpoint["input"] == "two"


async def first_run(channel: Channel) -> Run:
    run = await channel.lease()
    assert run.checkpoint["input"] == "one"
    return run


class Driver:
    """A harness that plays one turn to its end, however often its Runtime is killed: it replays what is recorded, asks for
    the rest, and notes what was acknowledged."""

    STEPS = 12

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.executed: list[str] = []

    async def play(self, run: Run) -> None:
        recorded = {outcome["effectId"] for outcome in run.start["outcomes"]}
        assert self.acknowledged_in(run) <= recorded  # nothing that was acknowledged is lost
        for number in range(self.STEPS):
            effect = run.tool_intent("step", {"kind": "harness"}, {"n": number}, at=f"step-{number}/0")
            if effect["effectId"] not in recorded:
                await self.step(run, effect, number)
            if number == self.STEPS // 2 and run.segment == 0:
                edit = {"keep": 0, "entries": [run.input_entry("half")], "length": 1}
                await run.ask("checkpoint", status="yielded", state=1, transcript=[edit])
                return
        await run.complete("whole")

    async def step(self, run: Run, effect: JsonObject, number: int) -> None:
        answer = await run.intent(effect)
        if answer["status"] == "completed":
            assert answer["outcome"]["value"]["code"] == "tool.interrupted"
        else:
            assert effect["effectId"] not in self.executed, "a call of our own was executed twice"
            self.executed.append(effect["effectId"])
            await run.outcome(effect, {"kind": "completed", "output": number})
        self.acknowledged.add(effect["effectId"])

    def acknowledged_in(self, run: Run) -> set[str]:
        prefix = f"{run.turn_id}:{run.segment}:"
        return {effect_id for effect_id in self.acknowledged if effect_id.startswith(prefix)}

    async def play_until_killed(self, pod: Pod) -> None:
        async with pod.connected() as channel:
            while True:
                await self.play(await channel.lease())


@pytest.mark.parametrize("seed", range(3))
async def test_whenever_the_runtime_is_killed_nothing_acknowledged_is_lost_and_nothing_runs_twice(
    start: Start, seed: int
) -> None:
    chance = random.Random(seed)
    turn = Killed(start)
    await turn.begin()
    driver = Driver()
    for _ in range(3):
        playing = asyncio.create_task(driver.play_until_killed(turn.pod))
        seen = await turn.runtime.north.events(turn.session)
        await turn.runtime.north.hear(chance.randint(1, 9), turn.session, after=seen[-1]["seq"])
        await turn.again()
        with pytest.raises(Refused):
            await playing
    playing = asyncio.create_task(driver.play_until_killed(turn.pod))
    done = await turn.runtime.north.until("turn.completed", turn.session)
    assert done["output"] == "whole"
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    events_of = await turn.runtime.north.events(turn.session)
    completed = [event["effectId"] for event in events_of if event["type"] == "tool.completed"]
    assert len(completed) == len(set(completed)) == Driver.STEPS + Driver.STEPS // 2 + 1
    assert [event["type"] for event in events_of].count("turn.completed") == 1
