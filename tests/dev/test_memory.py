"""Memory and wakes: the two tools that core runs itself, in the intent's own transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pod_host.dev.agent import Agent
from tests.dev.conftest import Build
from tests.dev.harness import JsonObject, Run
from tests.dev.test_leases import begun

MEMORY = {"kind": "runtime", "operation": "memory"}
WAKE = {"kind": "runtime", "operation": "schedule_wake"}
TOMORROW = (datetime.now(UTC) + timedelta(days=1)).isoformat()
REMEMBERING = Agent(name="remembering", memory={"access": "read_write"}, self_wake=True)


class Caller:
    """Makes calls of one run, each with an identity of its own."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.count = 0

    async def value(self, target: dict[str, str], arguments: Any, **more: Any) -> JsonObject:
        self.count += 1
        answer = await self.run.intent(
            self.run.tool_intent(target["operation"], target, arguments, at=f"s/{self.count}", **more)
        )
        assert answer["status"] == "completed"
        value: JsonObject = answer["outcome"]["value"]
        return value

    async def memory(self, command: str, **arguments: Any) -> str:
        """The output of a call, or the code of its failure."""
        value = await self.value(MEMORY, {"command": command, **arguments})
        return str(value["output"] if value["kind"] == "completed" else value["code"])


async def test_memories_are_written_read_changed_and_listed(build: Build) -> None:
    world = await build(REMEMBERING)
    async with world.pod.connected() as channel:
        caller = Caller(await begun(world, channel))
        assert await caller.memory("view", path="/memories") == "/memories is empty."
        assert await caller.memory("create", path="/memories/a.md", file_text="one\ntwo\n") == "Wrote /memories/a.md"
        assert await caller.memory("create", path="/memories/d/b", file_text="b") == "Wrote /memories/d/b"
        assert "- /memories/a.md\n- /memories/d/b" in await caller.memory("view", path="/memories/")
        assert "     1\tone\n     2\ttwo" in await caller.memory("view", path="/memories/a.md")
        assert "     2\ttwo" in await caller.memory("view", path="/memories/a.md", view_range=[2, 2])
        assert "one" not in await caller.memory("view", path="/memories/a.md", view_range=[2, -1])
        await caller.memory("str_replace", path="/memories/a.md", old_str="two", new_str="2")
        await caller.memory("insert", path="/memories/a.md", insert_line=0, insert_text="zero\n")
        assert "     1\tzero\n     2\tone\n     3\t2" in await caller.memory("view", path="/memories/a.md")
        await caller.memory("rename", old_path="/memories/d", new_path="/memories/e")
        assert "/memories/e/b" in await caller.memory("view", path="/memories")
        await caller.memory("delete", path="/memories/e")
        assert "/memories/e" not in await caller.memory("view", path="/memories")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"command": "burn"}, "memory.invalid"),
        ({"command": "view"}, "memory.invalid"),
        ({"command": "view", "path": "/etc/passwd"}, "memory.invalid"),
        ({"command": "view", "path": "/memories/../etc"}, "memory.invalid"),
        ({"command": "view", "path": "/memories/none"}, "memory.not_found"),
        ({"command": "view", "path": "/memories/a", "view_range": [2, 1]}, "memory.invalid"),
        ({"command": "create", "path": "/memories", "file_text": ""}, "memory.invalid"),
        ({"command": "create", "path": "/memories/b"}, "memory.invalid"),
        ({"command": "create", "path": "/memories/a/b", "file_text": ""}, "memory.exists"),
        ({"command": "create", "path": "/memories/b", "file_text": "x" * 200_000}, "memory.too_large"),
        ({"command": "str_replace", "path": "/memories/a", "old_str": "none", "new_str": ""}, "memory.no_match"),
        ({"command": "str_replace", "path": "/memories/a", "old_str": "x", "new_str": ""}, "memory.no_match"),
        ({"command": "insert", "path": "/memories/a", "insert_line": 9, "insert_text": ""}, "memory.invalid"),
        ({"command": "delete", "path": "/memories/none"}, "memory.not_found"),
        ({"command": "rename", "old_path": "/memories/a", "new_path": "/memories/a/b"}, "memory.invalid"),
        ({"command": "rename", "old_path": "/memories/a", "new_path": "/memories/c"}, "memory.exists"),
        ("no object", "memory.invalid"),
    ],
)
async def test_a_memory_call_that_cannot_be_done_is_text_for_the_model(build: Build, arguments: Any, code: str) -> None:
    world = await build(REMEMBERING)
    async with world.pod.connected() as channel:
        caller = Caller(await begun(world, channel))
        await caller.memory("create", path="/memories/a", file_text="x x")
        await caller.memory("create", path="/memories/c", file_text="c")
        value = await caller.value(MEMORY, arguments)
        assert (value["kind"], value["code"]) == ("failed", code)
        assert value["message"]


async def test_the_index_of_a_later_turn_lists_the_newest_first(build: Build) -> None:
    world = await build(REMEMBERING)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        caller = Caller(run)
        await caller.memory("create", path="/memories/old", file_text="x")
        await caller.memory("create", path="/memories/new", file_text="---\ndescription: How to\n---\nx")
        await run.complete()
        other = await begun(world, channel)  # memory is the Agent's, not the session's
        assert other.start["memory"]["index"] == "- /memories/new — How to\n- /memories/old"


async def test_a_segment_that_runs_again_is_told_the_index_that_the_turn_began_with(build: Build) -> None:
    world = await build(REMEMBERING)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        await Caller(run).memory("create", path="/memories/new", file_text="x")
        await run.ask("lease.release", reason="shutdown")
        again = await channel.lease()
        assert again.turn_id == run.turn_id
        assert again.start["memory"] == run.start["memory"]


async def test_read_only_memory_and_agents_used_as_tools_may_only_view(build: Build) -> None:
    world = await build(Agent(name="reader", memory={"access": "read_only"}))
    async with world.pod.connected() as channel:
        caller = Caller(await begun(world, channel))
        assert await caller.memory("create", path="/memories/a", file_text="") == "memory.forbidden"
        assert await caller.memory("view", path="/memories") == "/memories is empty."


async def test_an_agent_used_as_a_tool_may_not_write(build: Build) -> None:
    world = await build(REMEMBERING)
    async with world.pod.connected() as channel:
        caller = Caller(await begun(world, channel))
        used = {"id": "helper", "path": ["helper"]}
        value = await caller.value(MEMORY, {"command": "create", "path": "/memories/a", "file_text": ""}, agent=used)
        assert value["code"] == "memory.forbidden"


async def test_a_write_that_is_asked_again_is_not_done_twice(build: Build) -> None:
    world = await build(REMEMBERING)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        caller = Caller(run)
        await caller.memory("create", path="/memories/a", file_text="x")
        insert = {"command": "insert", "path": "/memories/a", "insert_line": 0, "insert_text": "y"}
        effect = run.tool_intent("memory", MEMORY, insert, at="twice")
        assert await run.intent(effect) == await run.intent(effect)
        assert (await caller.memory("view", path="/memories/a")).count("y\n") == 1


async def test_a_wake_sends_its_note_as_a_message(build: Build) -> None:
    world = await build(REMEMBERING)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        value = await Caller(run).value(WAKE, {"in": 0.1, "note": "look again"})
        assert value["output"]["note"] == "look again"
        await world.north.until("wake.fired", run.session_id)
        await run.complete()
        woken = await channel.lease()
        assert woken.session_id == run.session_id
        assert woken.checkpoint["input"]["text"] == "look again"


async def test_a_wake_is_replaced_and_cancelled(build: Build) -> None:
    world = await build(REMEMBERING)
    async with world.pod.connected() as channel:
        caller = Caller(await begun(world, channel))
        for given in ({"in": "2h", "note": "a"}, {"at": TOMORROW, "note": "b"}):
            assert (await caller.value(WAKE, given))["kind"] == "completed"
        assert (await caller.value(WAKE, {"cancel": True}))["output"] == {"cancelled": True}
        assert (await caller.value(WAKE, {"cancel": True}))["output"] == {"cancelled": False}


@pytest.mark.parametrize(
    "given",
    [
        {},
        "soon",
        {"in": "1h"},
        {"in": "1h", "at": TOMORROW, "note": "x"},
        {"in": "tomorrow", "note": "x"},
        {"in": -1, "note": "x"},
        {"in": True, "note": "x"},
        {"in": "99999999d", "note": "x"},
        {"at": "noon", "note": "x"},
        {"at": 5, "note": "x"},
        {"in": "1h", "note": ""},
        {"in": "1h", "note": "x", "more": 1},
        {"cancel": False},
    ],
)
async def test_a_wake_that_cannot_be_is_a_failure_with_text(build: Build, given: Any) -> None:
    world = await build(REMEMBERING)
    async with world.pod.connected() as channel:
        value = await Caller(await begun(world, channel)).value(WAKE, given)
        assert (value["kind"], value["code"]) == ("failed", "wake.invalid")
