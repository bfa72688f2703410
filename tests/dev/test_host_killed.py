"""The real host killed within a call of an agent used as a tool, and another that goes on: embedded Runtime, real servers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from pod_host.contract.base import Json, JsonObject
from pod_host.dev import directories
from pod_host.dev.agent import Agent
from pod_host.dev.config import Times
from pod_host.dev.directories import Directories
from pod_host.dev.host_process import HostProcess, launch_environment
from tests.dev.conftest import Build, ScriptedModel, World
from tests.dev.harness import WAIT
from tests.dev.tool_rig import Books, Endpoint, endpoint, mcp_server
from tests.turn.double import calls, script, text

PATIENCE = 3 * WAIT
HELPER = "HELPER"


class Cast(ScriptedModel):
    """Answers by who is asked and how far its conversation is: whoever asks again is answered alike. The call ``hold_at``, of
    all from 1, waits until ``held`` is set."""

    def __init__(self, own: list[Json], helper: list[Json], hold_at: int) -> None:
        super().__init__(held=asyncio.Event())
        self.own, self.helper = script(*own), script(*helper)
        self.hold_at = hold_at

    async def answer(self, call: JsonObject, *, effect_id: str, files: Any) -> JsonObject:
        self.calls.append((effect_id, call))
        if len(self.calls) == self.hold_at:
            self.called.set()
            assert self.held is not None
            await self.held.wait()
        asked = self.helper if HELPER in str(call["prompt"][0]) else self.own
        answer: JsonObject = asked(call, effect_id)
        return answer


@dataclass
class Killed:
    """A session whose agent calls a helper, and the hosts that run its turn, one after another."""

    world: World
    at: Directories
    books: Books
    shop: Endpoint
    session: str = ""

    @asynccontextmanager
    async def host(self) -> AsyncIterator[HostProcess]:
        environment = launch_environment(self.world.runtime, self.world.config.agent, self.at, os.environ)
        process = await HostProcess.start(environment, lambda event: None)
        try:
            yield process
        finally:
            await process.stop()

    async def say(self) -> None:
        self.session = await self.world.north.session()
        await self.world.north.say(self.session, "Go.")

    async def until_killed(self, point: Callable[[], Awaitable[object]]) -> None:
        async with self.host() as host:
            await asyncio.wait_for(point(), PATIENCE)
            os.kill(host._process.pid, signal.SIGKILL)
            assert await host.exit_code() == -signal.SIGKILL

    async def results(self) -> list[JsonObject]:
        transcript = await self.world.north.get(f"/v1/sessions/{self.session}/transcript")
        return [result for entry in transcript["entries"] for result in entry.get("results", [])]


def agent(library: str, shop: str) -> Agent:
    order = {"name": "order", "inputSchema": {"type": "object"}, "http": {"url": shop}}
    servers = [{"name": "library", "url": library}]
    helper = {"id": "helper", "instructions": HELPER, "tools": [order], "skills": [], "mcpServers": servers}
    return Agent(name="editor", instructions="Be exact.", tools=({"name": "help", "agent": helper},))


@asynccontextmanager
async def killed(build: Build, helper: Json, *, hold_at: int = 0) -> AsyncIterator[Killed]:
    async with AsyncExitStack() as life:
        books = Books()
        library = await life.enter_async_context(mcp_server(books))
        shop = await life.enter_async_context(endpoint())
        at = life.enter_context(directories.temporary())
        own = [calls(("help", {"message": "Go on."}), ("bash", {"command": "echo own"})), text("Done.")]
        model = Cast(own, [helper, text("Helped.")], hold_at)
        world = await build(agent(library, shop.url), model=model, times=Times(lease=2.0))
        yield Killed(world, at, books, shop)


async def finished(turn: Killed) -> None:
    """Another host goes on and ends the turn, with nothing run twice."""
    async with turn.host():
        await asyncio.wait_for(turn.world.north.until("turn.completed", turn.session), PATIENCE)
    events = await turn.world.north.events(turn.session)
    ended = [event["effectId"] for event in events if event["type"] == "tool.completed"]
    assert len(ended) == len(set(ended))
    assert [event["type"] for event in events].count("turn.completed") == 1
    asked = [effect_id for effect_id, _ in turn.world.model.calls]
    assert len(asked) == len(set(asked)) == 4
    helped, own = await turn.results()
    assert helped == {"callId": "c0", "toolName": "help", "kind": "completed", "output": "Helped."}
    assert own["toolName"] == "bash"


def answers_of_helper(turn: Killed) -> list[str]:
    """What the helper's model was told that its call gave."""
    prompts = [call["prompt"] for _, call in turn.world.model.calls if HELPER in str(call["prompt"][0])]
    return [item["content"][0]["text"] for item in prompts[-1] if item["kind"] == "tool-result"]


async def test_an_mcp_call_of_the_agent_is_joined_by_the_next_host(build: Build) -> None:
    async with killed(build, calls(("library__wait", {}))) as turn:
        await turn.say()
        await turn.until_killed(turn.books.began.wait)
        turn.books.held.set()
        await finished(turn)
        assert turn.books.calls == [("wait", None)]
        assert answers_of_helper(turn) == ['"waited"']


async def test_an_http_call_of_the_agent_is_joined_by_the_next_host(build: Build) -> None:
    goes_on = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        await goes_on.wait()
        return web.json_response("on its way")

    async with killed(build, calls(("order", {"what": "tea"}))) as turn:
        turn.shop.answer = answer
        await turn.say()
        await turn.until_killed(turn.shop.began.wait)
        goes_on.set()
        await finished(turn)
        assert [body for _, _, body in turn.shop.requests] == [{"what": "tea"}]
        assert answers_of_helper(turn) == ['"on its way"']


@pytest.mark.parametrize("hold_at", [2, 3])
async def test_a_model_call_of_the_agent_is_joined_by_the_next_host(build: Build, hold_at: int) -> None:
    async with killed(build, calls(("library__add", {"title": "Ships"})), hold_at=hold_at) as turn:
        await turn.say()
        await turn.until_killed(turn.world.model.called.wait)
        assert turn.world.model.held is not None
        turn.world.model.held.set()
        await finished(turn)
        assert turn.books.calls == [("add", "Ships")]
        assert answers_of_helper(turn) == ['"added Ships"']
