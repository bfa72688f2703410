"""Agents used as tools at the embedded Runtime: what their calls may do, and a whole turn with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pod_host.contract.base import Json, JsonObject
from pod_host.dev.agent import Agent
from tests.dev.conftest import Build
from tests.dev.harness import Run
from tests.dev.test_command import place
from tests.dev.test_gates import error_of, post
from tests.dev.test_leases import begun
from tests.dev.test_tool_gate import Rig
from tests.dev.test_tools_end_to_end import Setting
from tests.dev.tool_rig import Books, endpoint, mcp_server

__all__ = ["place"]

ORDER = {"name": "order", "inputSchema": {"type": "object"}, "http": {"url": "http://127.0.0.1:1/"}}


def agent(own: str, used: str, **members: Any) -> Agent:
    """Two agents with a server of one name; the one used as a tool may not add, and alone orders."""
    scribe = {
        "id": "scribe",
        "instructions": "Write.",
        "tools": [ORDER],
        "skills": [],
        "mcpServers": [{"name": "library", "url": used, "tools": {"add": {"enabled": False}}}],
    }
    tool = {"name": "write", "agent": scribe}
    return Agent(name="editor", tools=(tool,), mcp_servers=({"name": "library", "url": own},), **members)


@dataclass
class Two(Rig):
    """``books``: of the session's own agent; ``theirs``: of the one used as a tool."""

    theirs: Books | None = None

    async def snapshot(self) -> JsonObject:
        servers: list[JsonObject] = []
        for named in ({}, {"agentId": "scribe"}):
            body = {"server": {"serverName": "library", **named}}
            tools = (await self.gate("mcp/list", body))["result"]["tools"]
            servers.append({**named, "name": "library", "tools": tools})
        answer: JsonObject = await self.run.ask(
            "session.mcp", snapshot={"snapshotSchemaVersion": 2, "servers": servers}, diagnostics=[]
        )
        return answer


@asynccontextmanager
async def two(build: Build, **members: Any) -> AsyncIterator[Two]:
    books, theirs = Books(), Books()
    async with mcp_server(books) as own, mcp_server(theirs) as used:
        world = await build(agent(own, used, **members))
        async with world.pod.connected() as channel:
            yield Two(world, await begun(world, channel), books, theirs=theirs)


async def test_each_agents_servers_are_reached_by_its_id(build: Build) -> None:
    async with two(build) as rig:
        facts = (await rig.snapshot())["mcp"]["servers"]
        enabled = {
            server.get("agentId"): {tool["name"]: tool["enabled"] for tool in server["tools"]} for server in facts
        }
        assert (enabled[None]["add"], enabled["scribe"]["add"]) == (True, False)
        body = await rig.mcp_call("search", query="ships")
        body["server"] = {"serverName": "library", "agentId": "scribe"}
        answer = await rig.gate("tool-calls", body, key=body["effectId"])
        assert answer["ok"] is True
        assert rig.theirs is not None
        assert (rig.books.calls, rig.theirs.calls) == ([], [("search", "ships")])


async def test_a_tool_that_one_agent_disables_is_not_called_in_its_name(build: Build) -> None:
    async with two(build) as rig:
        await rig.snapshot()
        body = await rig.mcp_call("add", title="Ships")  # the session's own agent has it
        body["server"] = {"serverName": "library", "agentId": "scribe"}
        refused = await post(rig.world, rig.run, "tool-calls", body, key=body["effectId"])
        assert error_of(refused) == (409, "effect_not_journaled")
        intent = _of_scribe(rig.run, "add", {"kind": "mcp", "server": "library", "tool": "add"}, {"title": "Ships"})
        assert await _failure(rig.run, intent) == "tool.disabled"


async def test_an_http_tool_is_the_agents_that_declares_it(build: Build) -> None:
    async with two(build) as rig:
        body = await rig.http_call({"what": "tea"})
        refused = await post(rig.world, rig.run, "http-calls", body, key=body["effectId"])
        assert error_of(refused) == (400, "invalid_request")
        body["tool"] = {"toolName": "order", "agentId": "scribe"}
        answer = await rig.gate("http-calls", body, key=body["effectId"])
        assert answer["result"]["code"] == "http.unreachable"
        stranger = rig.run.tool_intent("order", {"kind": "http", "tool": "order"}, {}, at="step-9/0")
        stranger["agent"] = {"id": "editor", "path": []}
        assert await _failure(rig.run, stranger) == "tool.unavailable"


async def test_an_unknown_agents_server_is_refused(build: Build) -> None:
    async with two(build) as rig:
        body = {"server": {"serverName": "library", "agentId": "nobody"}}
        assert error_of(await post(rig.world, rig.run, "mcp/connect", body)) == (400, "invalid_request")


async def test_memory_is_only_viewed_in_the_name_of_an_agent_used_as_a_tool(build: Build) -> None:
    async with two(build, memory={"access": "read_write"}) as rig:
        target = {"kind": "runtime", "operation": "memory"}
        create = {"command": "create", "path": "/memories/a", "file_text": "x"}
        assert await _failure(rig.run, _of_scribe(rig.run, "memory", target, create)) == "memory.forbidden"


def _of_scribe(run: Run, name: str, target: JsonObject, arguments: Json) -> JsonObject:
    intent: JsonObject = run.tool_intent(name, target, arguments, at="step-8/0")
    return {**intent, "agent": {"id": "scribe", "path": ["write"]}}


async def _failure(run: Run, intent: JsonObject) -> Json:
    answer = await run.intent(intent)
    assert answer["status"] == "completed"
    return answer["outcome"]["value"]["code"]


# --- A whole turn ------------------------------------------------------------------------------------------------------

AGENT = """
name: editor
instructions: Be exact.
tools:
  - name: helper
    description: Helps.
    agent:
      instructions: Help.
      mcpServers: [{{name: library, url: {library}}}]
      skills: [tables]
      tools: [{{name: order, http: {{url: "{shop}"}}}}]
"""


async def test_the_model_calls_an_agent_whose_own_tools_do_the_work(place: Path) -> None:
    books = Books()
    (place / "tables").mkdir()
    (place / "tables" / "SKILL.md").write_text("---\nname: tables\ndescription: Draws.\n---\nDraw by hand.\n")
    async with mcp_server(books) as library, endpoint() as shop:
        file = place / "agent.yaml"
        file.write_text(AGENT.format(library=library, shop=shop.url))
        message = (
            'use the tool library__search with {\\"query\\": \\"ships\\"} and use the tool order with {\\"what\\": \\"tea\\"}'
            ' and use the tool load_skill with {\\"name\\": \\"tables\\"}'
        )
        shown = await Setting(place, file, books, shop).dev(f'use the tool helper with {{"message": "{message}"}}')
    assert books.calls == [("search", "ships")]
    assert [body for _, _, body in shop.requests] == [{"what": "tea"}]
    assert "1 book on ships" in shown
    assert "Draw by hand." in shown
