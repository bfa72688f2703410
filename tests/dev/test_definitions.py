"""Versions of the Agent: a session keeps the one that it was opened with."""

from __future__ import annotations

import base64

from pod_host.dev.agent import Agent
from pod_host.dev.skills import Skill
from tests.dev.conftest import Build


def agent(instructions: str, text: bytes) -> Agent:
    skill = Skill(name="s", description="d", files={"SKILL.md": text})
    return Agent(name="changing", instructions=instructions, skills={"s": skill})


async def test_a_session_keeps_its_manifest_and_files_when_the_agent_changes(build: Build) -> None:
    first = await build(agent("old", b"one"))
    old = await first.north.session()
    await first.runtime.stop()
    world = await build(agent("new", b"two"))
    new = await world.north.session()
    seen = {}
    async with world.pod.connected() as channel:
        for session in (old, new):
            await world.north.say(session)
            run = await channel.lease()
            manifest = run.start["manifest"]
            sha256 = manifest["skills"][0]["files"]["SKILL.md"]
            content = base64.b64decode((await run.ask("definition.file", sha256=sha256))["base64"])
            seen[run.session_id] = (manifest["instructions"], content, run.start["definition"]["version"])
    assert seen == {old: ("old", b"one", 1), new: ("new", b"two", 2)}


async def test_the_same_agent_is_the_same_version(build: Build) -> None:
    first = await build(agent("same", b"x"))
    await first.runtime.stop()
    world = await build(agent("same", b"x"))
    async with world.pod.connected() as channel:
        await world.north.say(await world.north.session())
        run = await channel.lease()
        assert run.start["definition"] == {"name": "changing", "version": 1}
        assert run.checkpoint["manifestHash"].startswith("sha256:")


async def test_a_session_of_another_harness_is_not_offered_to_this_one(build: Build) -> None:
    first = await build(Agent(name="a", harness_id="other-harness"))
    old = await first.north.session()
    await first.north.say(old)
    await first.runtime.stop()
    world = await build(Agent(name="a"))
    new = await world.north.session()
    async with world.pod.connected() as channel:
        await world.north.say(new)
        assert (await channel.lease()).session_id == new
        assert (await world.north.turn(old))["status"] == "queued"
