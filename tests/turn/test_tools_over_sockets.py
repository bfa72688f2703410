"""MCP and HTTP calls from end to end: the turn, the embedded Runtime's gate and real servers, with real sockets between;
hosts that leave within a call, and a Runtime that is stopped within one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pod_host.client import Channel, Gates, Run, Served
from pod_host.contract.base import Empty, JsonObject
from pod_host.contract.turn_start import TurnStart
from pod_host.contract.work import HelloParams, LeaseResult
from pod_host.dev.agent import Agent
from pod_host.dev.config import ToolRule
from pod_host.dev.runtime import Runtime
from pod_host.turn import FileCache, Released, Reported, TranscriptCache, Turn
from tests.dev.conftest import Build, World, build
from tests.dev.harness import WAIT, North, Pod
from tests.dev.tool_rig import Books, endpoint, mcp_server
from tests.turn.double import calls, text
from tests.turn.test_artifacts_over_sockets import large

__all__ = ["build"]


@dataclass
class Host:
    """A connection, and what leases a run on it."""

    channel: Channel
    gates: Gates

    async def lease(self) -> tuple[Turn, Run]:
        lease: LeaseResult = await asyncio.wait_for(self.channel.request("lease", Empty()), WAIT)
        run = Run(self.channel, lease.run)
        turn = Turn(
            run=run, start=TurnStart.read(lease.input), gates=self.gates, sandbox=None,
            transcripts=TranscriptCache(), files=FileCache(), notes=(),
        )  # fmt: skip
        return turn, run

    async def turn(self) -> None:
        turn, _ = await self.lease()
        assert await turn.run() == Reported("completed")

    async def leave_within(self, began: asyncio.Event) -> None:
        """A turn that is stopped, as by SIGTERM, when ``began`` is set."""
        turn, run = await self.lease()
        running = asyncio.create_task(turn.run())
        await asyncio.wait_for(began.wait(), WAIT)
        turn.stop("shutdown")
        assert await running == Released("shutdown")
        await run.release("shutdown")


@asynccontextmanager
async def host(runtime: Runtime, pod: Pod) -> AsyncIterator[Host]:
    def serve(served: Served) -> None:
        raise AssertionError(served.method)

    await pod.join()
    channel = await Channel.connect(
        runtime.status()["urls"]["harness"],
        pod.host_token,
        tls=None,
        on_request=serve,
        on_message=lambda method, params: None,
    )
    gates = Gates(runtime.gates_url, None)
    await channel.request("hello", HelloParams(api=5, name="pod-host", version="0", features={}))
    try:
        yield Host(channel, gates)
    finally:
        await gates.close()
        await channel.close("done")


def agent(url: str, shop: str = "http://127.0.0.1:1/") -> Agent:
    server = {"name": "library", "type": "streamable-http", "url": url}
    tool = {"name": "order", "inputSchema": {"type": "object"}, "http": {"url": shop}}
    return Agent(name="tester", mcp_servers=(server,), tools=(tool,))


async def results(north: North, session: str) -> list[JsonObject]:
    transcript = await north.get(f"/v1/sessions/{session}/transcript")
    return [result for entry in transcript["entries"] for result in entry.get("results", [])]


async def begun(world: World, *answers: JsonObject) -> str:
    world.model.answers = [*answers, text("Done.")]
    session = await world.north.session()
    await world.north.say(session, "Go.")
    return session


async def test_servers_are_discovered_once_and_their_tools_called(build: Build) -> None:
    books = Books()
    async with mcp_server(books) as url, endpoint() as shop:
        world = await build(agent(url, shop.url), model=large())
        step = calls(("library__search", {"query": "ships"}), ("order", {"what": "tea"}), ("library__count", {}))
        session = await begun(world, step)
        async with host(world.runtime, world.pod) as one:
            await one.turn()
            searched, ordered, counted = await results(world.north, session)
            assert searched["output"] == "1 book on ships"
            assert ordered["output"] == {"got": {"what": "tea"}}
            assert counted["output"] == {"books": 3}
            world.model.answers = [calls(("library__burn", {})), text("Done.")]
            await world.north.say(session, "Again.")
            await one.turn()
            burnt = (await results(world.north, session))[-1]
            assert (burnt["code"], "not burnt here" in burnt["message"]) == ("mcp.tool", True)
        events = await world.north.events(session)
        assert [event["servers"] for event in events if event["type"] == "session.mcp"] == [{"library": 9}]
        rows = (await world.north.get(f"/v1/sessions/{session}/calls/tool"))["calls"]
        assert [(row["kind"], row.get("server"), row["tool"]) for row in rows[:2]] == [
            ("mcp", "library", "search"),
            ("http", None, "order"),
        ]
        assert (await world.north.get("/v1/warnings"))["warnings"] == []


async def test_a_denied_tool_does_not_run(build: Build) -> None:
    books = Books()
    async with mcp_server(books) as url:
        world = await build(agent(url), model=large(), tool_policy=(ToolRule("deny", "add", "library"),))
        session = await begun(world, calls(("library__add", {"title": "a"})))
        async with host(world.runtime, world.pod) as one:
            await one.turn()
        assert (await results(world.north, session))[0]["code"] == "tool.denied"
        assert books.calls == []


async def test_a_call_that_a_host_left_running_is_joined_by_the_next(build: Build) -> None:
    books = Books()
    async with mcp_server(books) as url:
        world = await build(agent(url), model=large())
        session = await begun(world, calls(("library__wait", {})))
        async with host(world.runtime, world.pod) as first:
            await first.leave_within(books.began)
        async with host(world.runtime, world.pod) as second:
            again = asyncio.create_task(second.turn())
            books.held.set()
            await again
        assert (await results(world.north, session))[0]["output"] == "waited"
        assert [name for name, _ in books.calls] == ["wait"]


async def test_a_call_that_a_stopped_runtime_left_is_sent_again_and_counted(build: Build) -> None:
    books = Books()
    async with mcp_server(books) as url:
        world = await build(agent(url), model=large())
        session = await begun(world, calls(("library__wait", {})))
        async with host(world.runtime, world.pod) as first:
            await first.leave_within(books.began)
            await world.runtime.stop()
        books.held.set()
        runtime = Runtime(world.config)
        await runtime.start()
        north, pod = North(runtime.north_url), Pod(runtime.status())
        try:
            async with host(runtime, pod) as second:
                await second.turn()
            assert (await results(north, session))[0]["output"] == "waited"
            (row,) = (await north.get(f"/v1/sessions/{session}/calls/tool"))["calls"]
            assert row["attempts"] == 2
            keys = {meta["nylorun/idempotency-key"] for meta in books.metas}
            assert (len(books.metas), len(keys)) == (2, 1), "the tool is told the same key, so that it may act once"
        finally:
            await north.close()
            await pod.close()
            await runtime.stop()
