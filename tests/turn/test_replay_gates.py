"""A host that dies at any point of a turn with MCP and HTTP calls: the next one ends the turn as it would have ended, and
what a gate has run it does not run again (v5, sections 4 and 5)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pod_host.contract.base import Json, JsonObject
from pod_host.turn import Reported
from tests.turn.double import AGENT, TOOL_ATTEMPTS, TURN, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_replay import until_killed
from tests.turn.tool_gate_double import Server, ToolGate, tool

MANIFEST = {
    "id": AGENT,
    "mcpServers": [{"name": "docs", "url": "http://x/"}, {"name": "down", "url": "http://x/"}],
    "tools": [{"name": "order", "http": {"url": "http://x/"}}],
}
SCRIPT = script(
    calls(("docs__search", {"q": "a"}), ("order", {"what": "b"}), ("tool_search", {"query": "hidden"})),
    calls(("docs__hidden", {})),
    text("Done."),
)
RAN = [f"{TURN}:0:tool:{at}" for at in ("step-1/0", "step-1/1", "step-2/0")]
MOST_POINTS = 56


def answer(path: str, body: JsonObject) -> Json:
    if "tool" in body:
        return {"ok": True, "result": {"kind": "completed", "output": body["input"]}}
    return {"ok": True, "result": {"content": [{"type": "text", "text": body["name"]}]}}


def fresh(*, forgets: bool = False) -> Runtime:
    hidden = {**tool("hidden"), "deferred": True}
    servers = {"docs": Server([[tool("search")], [hidden]], "Search."), "down": Server(failure={"message": "down"})}
    gate = ToolGate(servers=servers, answers=answer, forgets=forgets)
    gate.facts = lambda snapshot: {
        "servers": [
            {**server, "tools": [{**one, "deferred": one["name"] == "hidden"} for one in server["tools"]]}
            for server in snapshot["servers"]
        ]
    }
    return Runtime(SCRIPT, manifest=MANIFEST, tools=gate)


def hashes(runtime: Runtime) -> dict[str, str]:
    return {effect_id: row.request_hash for effect_id, row in runtime.journal.items()}


async def undisturbed() -> Runtime:
    runtime = fresh()
    assert await runtime.turn(Sandbox()).run() == Reported("completed")
    return runtime


async def test_the_undisturbed_turn_passes_fewer_points_than_are_tried() -> None:
    runtime = await undisturbed()
    assert len(runtime.world.points) <= MOST_POINTS
    assert runtime.tools.ran == RAN


def kills() -> Iterator[tuple[int, ...]]:
    yield from ((first,) for first in range(MOST_POINTS))
    yield from ((first, second) for first in range(1, MOST_POINTS, 5) for second in range(2, MOST_POINTS, 5))


@pytest.mark.parametrize("at", list(kills()))
async def test_a_turn_cut_off_at_any_point_runs_each_call_once(at: tuple[int, ...]) -> None:
    expected = hashes(await undisturbed())
    runtime = fresh()
    for point in at:
        if not runtime.outputs:
            await until_killed(runtime, Sandbox(), point)
    if not runtime.outputs:
        assert await runtime.turn(Sandbox()).run() == Reported("completed")
    assert [method for method, _ in runtime.outputs] == ["turn.completed"]
    results = [result for entry in runtime.transcript for result in entry.get("results", [])]
    assert [result.get("output") for result in results[:2]] == ["search", {"what": "b"}]
    search = results[2]
    if search["kind"] == "failed":  # a call that the host ran itself is never run again
        assert search["code"] == "tool.interrupted"
    else:
        assert hashes(runtime) == expected
    assert results[3]["output"] == "hidden"
    assert sorted(runtime.tools.ran) == RAN


@pytest.mark.parametrize("at", range(0, MOST_POINTS, 2))
async def test_a_gate_that_lost_its_answers_is_sent_to_again_and_a_completed_call_is_not(at: int) -> None:
    runtime = fresh(forgets=True)
    await until_killed(runtime, Sandbox(), at)
    completed = {effect_id for effect_id, row in runtime.journal.items() if row.status == "completed"}
    before = list(runtime.tools.ran)
    if not runtime.outputs:
        assert await runtime.turn(Sandbox()).run() == Reported("completed")
    again = set(runtime.tools.ran[len(before) :])
    assert not again & completed
    assert set(runtime.tools.ran) == set(RAN)
    assert max(runtime.tools.ran.count(key) for key in RAN) <= 2


async def test_a_call_in_which_host_after_host_dies_is_given_up_by_core() -> None:
    runtime = fresh(forgets=True)
    for _ in range(TOOL_ATTEMPTS):
        asked = asyncio.Event()

        def hang(path: str, body: JsonObject, asked: asyncio.Event = asked) -> Any:
            if body.get("name") != "search":
                return None
            asked.set()
            return asyncio.Event().wait()

        runtime.tools.before = hang
        running = asyncio.create_task(runtime.turn(Sandbox()).run())
        await asyncio.wait_for(asked.wait(), 10)
        running.cancel()
        await asyncio.wait({running})
    runtime.tools.before = None
    assert await runtime.turn(Sandbox()).run() == Reported("completed")
    assert runtime.transcript[2]["results"][0]["code"] == "tool.interrupted"
    assert RAN[0] not in runtime.tools.ran
