"""Discovery of the session's MCP servers: what is recorded, what the turn runs with, what a failing server does (v5, 3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.model_call import MCP_CONNECT_PATH, MCP_LIST_PATH
from pod_host.errors import GateRefusal, GateUnavailable, RuntimeRefusal
from pod_host.turn import Released, Reported
from tests.turn.double import AGENT, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.tool_gate_double import Server, ToolGate, tool


def runtime_of(servers: dict[str, Server], declared: Json = None, *answers: Json, **members: Any) -> Runtime:
    manifest = {"id": AGENT, "mcpServers": declared or [{"name": name, "url": "http://x/"} for name in servers]}
    model = script(*(answers or (text("Done."),)))
    return Runtime(model, manifest=manifest, tools=ToolGate(servers=servers), **members)


def offered(runtime: Runtime, call: int = 0) -> list[str]:
    """The names of the tools of the model call ``call``, without those that every turn has."""
    return [one["name"] for one in runtime.model_calls[call]["tools"] if "__" in one["name"]]


def nested(levels: int) -> JsonObject:
    value: JsonObject = {}
    for _ in range(levels):
        value = {"not": value}
    return value


async def run(runtime: Runtime, **members: Any) -> None:
    assert await runtime.turn(**members).run() == Reported("completed")


async def test_servers_are_connected_and_listed_to_the_last_page_and_recorded() -> None:
    pages = [[tool("a", description="A.")], [tool("b", annotations={"readOnlyHint": True})], [tool("c")]]
    runtime = runtime_of({"docs": Server(pages, "Read first."), "other": Server([[tool("a")]])})
    await run(runtime)
    assert offered(runtime) == ["docs__a", "docs__b", "docs__c", "other__a"]
    (recorded,) = runtime.tools.recorded
    assert recorded["snapshot"] == {
        "snapshotSchemaVersion": 2,
        "servers": [
            {"name": "docs", "instructions": "Read first.", "tools": [one for page in pages for one in page]},
            {"name": "other", "tools": [tool("a")]},
        ],
    }
    assert recorded["diagnostics"] == [
        {"serverName": "docs", "outcome": "connected", "message": "3 tools"},
        {"serverName": "other", "outcome": "connected", "message": "1 tools"},
    ]


async def test_servers_may_be_declared_by_name() -> None:
    runtime = runtime_of({"docs": Server([[tool("a")]])}, {"docs": {"url": "http://x/"}, "broken": 7})
    await run(runtime)
    assert offered(runtime) == ["docs__a"]


async def test_a_later_turn_uses_the_facts_and_connects_to_nothing() -> None:
    runtime = runtime_of({"docs": Server([[tool("a")]])}, None, text("One."), text("Two."))
    await run(runtime)
    asked = len(runtime.tools.asked)
    await run(runtime, turn_id="turn_2")
    assert len(runtime.tools.asked) == asked
    assert offered(runtime, 1) == ["docs__a"]
    assert len(runtime.tools.recorded) == 1


async def test_what_core_answers_is_what_the_turn_runs_with() -> None:
    runtime = runtime_of({"docs": Server([[tool("a")]])})
    runtime.tools.facts = lambda snapshot: {
        "servers": [{"name": "docs", "tools": [{**tool("earlier"), "enabled": True}]}]
    }
    await run(runtime)
    assert offered(runtime) == ["docs__earlier"]


@pytest.mark.parametrize("answer", [None, {"servers": "none"}])
async def test_without_facts_in_the_answer_the_turn_runs_with_its_own(answer: Json) -> None:
    settings = {"*": {"deferred": True}, "a": {"deferred": False}, "b": {"enabled": False}}
    runtime = runtime_of(
        {"docs": Server([[tool("a"), tool("b"), tool("c")]])}, [{"name": "docs", "url": "x", "tools": settings}]
    )
    runtime.tools.facts = lambda snapshot: answer
    await run(runtime, mcp=None)
    assert offered(runtime) == ["docs__a"]
    assert "tool_search" in [one["name"] for one in runtime.model_calls[0]["tools"]]


async def test_tools_without_an_object_schema_or_a_usable_name_are_left_out_and_said() -> None:
    bad: list[Any] = [
        {"name": "array", "inputSchema": {"type": "array"}},
        {"name": "none"},
        {"name": "text", "inputSchema": "x"},
        tool(""),
        tool("x" * 300),
        tool("half\ud83d"),
        tool("deep", annotations=nested(200)),
        tool("deeper", inputSchema={"type": "object", "not": nested(200)}),
        tool("good"),
        7,
    ]
    runtime = runtime_of({"docs": Server([[tool("good"), *bad]])})
    await run(runtime)
    assert offered(runtime) == ["docs__good"]
    message = runtime.tools.recorded[0]["diagnostics"][0]["message"]
    assert message.startswith("1 tools; left out: array, none, text, (unnamed), xxx")
    assert message.endswith("half\\ud83d, deep, deeper, good, (unnamed)")


async def test_a_server_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MCP_LIST_PAGES", 3)
    pages = [[tool(f"t{n}")] for n in range(9)]
    runtime = runtime_of({"docs": Server(pages)})
    await run(runtime)
    assert offered(runtime) == ["docs__t0", "docs__t1", "docs__t2"]


async def test_what_one_server_lists_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MCP_SERVER_BYTES", 1000)
    tools = [tool(f"t{n}", description="x" * 400) for n in range(4)]
    runtime = runtime_of({"docs": Server([tools])})
    await run(runtime)
    assert offered(runtime) == ["docs__t0", "docs__t1"]
    assert runtime.tools.recorded[0]["diagnostics"][0]["message"] == "2 tools; left out: t2, t3"


async def test_a_server_that_lists_more_is_not_asked_for_the_next_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MCP_SERVER_BYTES", 1000)
    page = [tool("t", description="x" * 600), tool("u", description="x" * 600)]
    runtime = runtime_of({"docs": Server([page] * 50)})
    await run(runtime)
    assert len([path for path, _, _ in runtime.tools.asked if path == MCP_LIST_PATH]) == 1


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        ({"message": "MCP authorization refused: no credential", "credentialIds": ["c1"]}, "refused"),
        ({"message": "MCP server returned 401"}, "failed"),
        ({"message": "x" * 2000}, "failed"),
        ({}, "failed"),
    ],
)
async def test_a_server_that_fails_leaves_a_diagnostic_and_the_others_their_tools(
    failure: JsonObject, outcome: str
) -> None:
    runtime = runtime_of({"bad": Server(failure=failure), "docs": Server([[tool("a")]])})
    await run(runtime)
    assert offered(runtime) == ["docs__a"]
    diagnostic = runtime.tools.recorded[0]["diagnostics"][0]
    assert (diagnostic["serverName"], diagnostic["outcome"]) == ("bad", outcome)
    assert 0 < len(diagnostic["message"]) <= 500
    assert diagnostic.get("credentialIds") == failure.get("credentialIds")


@pytest.mark.parametrize(
    "fault", [GateRefusal(403, "gate_forbidden", "no"), GateUnavailable("gone"), {"ok": "what"}, {"ok": True}]
)
async def test_a_gate_that_fails_leaves_a_diagnostic(fault: Any) -> None:
    runtime = runtime_of({"docs": Server([[tool("a")]])})

    def answer(path: str, body: JsonObject) -> None:
        if path == MCP_CONNECT_PATH and isinstance(fault, Exception):
            raise fault

    runtime.tools.before = answer
    if not isinstance(fault, Exception):
        runtime.tools._list = lambda body: fault  # type: ignore[method-assign]
    await run(runtime)
    assert offered(runtime) == []
    assert len(runtime.tools.recorded[0]["diagnostics"]) == 1


async def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MCP_DISCOVERY_SECONDS", 0.01)
    runtime = runtime_of({"slow": Server(), "docs": Server([[tool("a")]])})

    def hang(path: str, body: JsonObject) -> Any:
        return asyncio.Event().wait() if body["server"]["serverName"] == "slow" else None

    runtime.tools.before = hang
    await run(runtime)
    assert offered(runtime) == ["docs__a"]
    assert "did not answer" in runtime.tools.recorded[0]["diagnostics"][0]["message"]


async def test_servers_are_connected_beside_one_another() -> None:
    both = asyncio.Barrier(2)
    runtime = runtime_of({"one": Server([[tool("a")]]), "two": Server([[tool("a")]])})
    runtime.tools.before = lambda path, body: both.wait() if path == MCP_CONNECT_PATH else None
    await run(runtime)
    assert offered(runtime) == ["one__a", "two__a"]


async def test_when_no_server_connects_nothing_is_recorded_and_the_next_turn_tries_again() -> None:
    runtime = runtime_of({"docs": Server([[tool("a")]], failure={"message": "down"})}, None, text("1"), text("2"))
    await run(runtime)
    assert "snapshot" not in runtime.tools.recorded[0]
    runtime.tools.servers["docs"].failure = None
    await run(runtime, turn_id="turn_2")
    assert (offered(runtime), offered(runtime, 1)) == ([], ["docs__a"])


async def test_a_segment_that_had_no_facts_has_none_when_it_runs_again() -> None:
    """A server that is back meanwhile must not change what the model is asked."""
    answers = (calls(("bash", {"command": "x"})), text("Done."))
    runtime = runtime_of({"docs": Server([[tool("a")]], failure={"message": "down"})}, None, *answers)
    holding = True
    runtime.hold = lambda intent: "pending" if holding and intent["kind"] == "tool" else None
    assert await runtime.turn(Sandbox()).run() == Reported("waiting")
    holding = False
    runtime.tools.servers["docs"].failure = None
    assert await runtime.turn(Sandbox()).run() == Reported("completed")
    assert offered(runtime, 1) == []


async def test_a_snapshot_that_is_refused_as_invalid_is_tried_in_its_other_form() -> None:
    def refuse(method: str, params: JsonObject) -> None:
        if method == "session.mcp" and "manifestHash" not in params["snapshot"]:
            raise RuntimeRefusal("invalid", "manifestHash is needed")

    runtime = runtime_of({"docs": Server([[tool("a")]])}, intercept=refuse)
    await run(runtime)
    assert offered(runtime) == ["docs__a"]


@pytest.mark.parametrize("code", ["invalid", "limit_exceeded", "internal"])
async def test_a_snapshot_that_cannot_be_recorded_leaves_the_turn_without_its_tools(code: str) -> None:
    def refuse(method: str, params: JsonObject) -> None:
        if method == "session.mcp":
            raise RuntimeRefusal(code, "no")

    runtime = runtime_of({"docs": Server([[tool("a")]])}, intercept=refuse)
    await run(runtime)
    assert offered(runtime) == []


@pytest.mark.parametrize(("most", "names"), [(12_000, ["small", "large", "last"]), (9_000, ["small", "last"])])
async def test_a_snapshot_that_is_too_large_is_recorded_without_what_is_not_needed_and_the_largest_tools(
    most: int, names: list[str]
) -> None:
    def refuse(method: str, params: JsonObject) -> None:
        if method == "session.mcp" and len(str(params)) > most:
            raise RuntimeRefusal("limit_exceeded", f"recordEntryBytes is {most}")

    tools = [
        tool("small", outputSchema={"type": "object", "description": "x" * 10_000}),
        tool("large", description="x" * 5000),
        tool("last"),
    ]
    runtime = runtime_of({"docs": Server([tools])}, intercept=refuse, limits={"recordEntryBytes": most})
    await run(runtime)
    assert offered(runtime) == [f"docs__{name}" for name in names]
    (recorded,) = runtime.tools.recorded
    assert "outputSchema" not in str(recorded["snapshot"])


async def test_a_run_that_is_over_while_servers_are_connected_is_given_back() -> None:
    def stale(path: str, body: JsonObject) -> None:
        raise GateRefusal(409, "run_stale", "over")

    runtime = runtime_of({"docs": Server(), "other": Server()})
    runtime.tools.before = stale
    assert await runtime.turn().run() == Released("ownership.lost")
    assert runtime.tools.recorded == []


async def test_keys_of_one_run_differ_for_every_request() -> None:
    runtime = runtime_of({"docs": Server([[tool("a")], [tool("b")]]), "other": Server()})
    await run(runtime)
    keys = [key for path, key, _ in runtime.tools.asked if path in (MCP_CONNECT_PATH, MCP_LIST_PATH)]
    assert len(keys) == len(set(keys)) == 5
