"""MCP tools: which are offered, what their calls send, and what becomes of every kind of answer (v5, sections 3 to 5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.model_call import TOOL_CALLS_PATH
from pod_host.contract.turn_start import McpFacts
from pod_host.turn import Reported
from pod_host.turn.journal import Again, Known, Unknown
from pod_host.turn.mcp_results import mcp_fate
from pod_host.turn.mcp_tools import McpTools
from pod_host.turn.stop import Stop
from pod_host.turn.tool_gate import ToolGate
from pod_host.turn.tool_search import with_search
from pod_host.turn.toolset import Toolset
from tests.turn.double import AGENT, TURN, Runtime, calls, script, text
from tests.turn.json_values import crossed, values
from tests.turn.json_values import texts as texts_of
from tests.turn.sandbox_double import Sandbox
from tests.turn.tool_gate_double import tool

CALL_ID = f"{TURN}:0:tool:step-1/0"


def facts(*tools: JsonObject, name: str = "docs", **members: Json) -> JsonObject:
    return {"servers": [{"name": name, "tools": list(tools), **members}]}


def runtime_of(mcp: JsonObject, *answers: JsonObject, **members: Any) -> Runtime:
    runtime = Runtime(script(*(answers or (text("Done."),))), **members)
    runtime.members = {"mcp": mcp}
    return runtime


async def run(runtime: Runtime, sandbox: Sandbox | None = None) -> None:
    assert await runtime.turn(sandbox).run() == Reported("completed")


def offered(runtime: Runtime) -> dict[str, JsonObject]:
    return {one["name"]: one for one in runtime.model_calls[0]["tools"] if "__" in one["name"]}


async def results_of(mcp: JsonObject, answer: JsonObject, **members: Any) -> tuple[list[JsonObject], Runtime]:
    runtime = runtime_of(mcp, answer, text("Done."), **members)
    await run(runtime)
    return runtime.transcript[2]["results"], runtime


async def test_tools_are_offered_with_their_schemas_under_their_names() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    runtime = runtime_of(facts(tool("search", description="Finds.", inputSchema=schema), tool("get page")))
    await run(runtime)
    assert offered(runtime) == {
        "docs__search": {"name": "docs__search", "description": "Finds.", "inputSchema": schema},
        "docs__get_page": {"name": "docs__get_page", "inputSchema": {"type": "object"}},
    }


async def test_disabled_tools_those_of_used_agents_and_unusable_ones_are_not_offered() -> None:
    mcp = facts(tool("off", enabled=False), tool("on", enabled=True), {"name": "odd", "inputSchema": {}})
    mcp["servers"].append({"agentId": "other", "name": "docs", "tools": [tool("theirs")]})
    mcp["servers"].append({"agentId": AGENT, "name": "own", "tools": [tool("a")]})
    runtime = runtime_of(mcp)
    await run(runtime)
    assert list(offered(runtime)) == ["docs__on", "own__a"]


async def test_a_name_of_a_declared_tool_is_the_declared_tools(caplog: pytest.LogCaptureFixture) -> None:
    manifest = {"id": AGENT, "tools": [{"name": "docs__search", "description": "HTTP.", "http": {"url": "http://x/"}}]}
    runtime = runtime_of(facts(tool("search")), manifest=manifest)
    await run(runtime)
    assert offered(runtime)["docs__search"]["description"] == "HTTP."
    assert "tool.left_out" in caplog.text


async def test_servers_say_of_themselves_in_the_prompt_within_bounds() -> None:
    mcp = facts(tool("a"), instructions="Read first.\ud83d")
    mcp["servers"] += facts(tool("a"), name="long", instructions="x" * 99_999)["servers"]
    mcp["servers"] += facts(tool("a", enabled=False), name="off", instructions="Not said.")["servers"]
    runtime = runtime_of(mcp)
    await run(runtime)
    system = runtime.model_calls[0]["prompt"][0]["content"][0]["text"]
    assert "## docs\nRead first.\\ud83d" in system
    assert len(system) < limits.MCP_INSTRUCTIONS_CHARACTERS + 2000
    assert "Not said." not in system


async def test_a_call_goes_to_the_gate_under_its_effect_id_with_its_identity_as_target() -> None:
    results, runtime = await results_of(facts(tool("get page")), calls(("docs__get_page", {"p": 1})))
    assert results == [{"callId": "c0", "toolName": "docs__get_page", "kind": "completed", "output": "done"}]
    assert runtime.tools.asked == [
        (
            TOOL_CALLS_PATH,
            CALL_ID,
            {"server": {"serverName": "docs"}, "effectId": CALL_ID, "name": "get page", "arguments": {"p": 1}},
        )
    ]
    intent = runtime.journal[CALL_ID].intent
    assert (intent["toolName"], intent["target"]) == (
        "docs__get_page",
        {"kind": "mcp", "server": "docs", "tool": "get page"},
    )


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


async def test_arguments_that_do_not_fit_are_told_with_their_paths_and_are_no_effect() -> None:
    results, runtime = await results_of(
        facts(tool("add", inputSchema=SCHEMA)), calls(("docs__add", {"n": "x", "m": 1}))
    )
    assert results[0]["code"] == "tool.invalid-input"
    assert ["n"] in [issue["path"] for issue in results[0]["details"]["issues"]]
    assert runtime.tools.asked == []


BILLIONS = {
    **{f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(40)},
    "a40": {"type": "string"},
}


@pytest.mark.parametrize(
    "broken",
    [
        {"properties": {"n": {"type": "whole number"}}},
        {"properties": {"n": {"$ref": "https://schemas.invalid/n.json"}}},
        {"properties": {"n": {"$ref": "#/$defs/none"}}},
        {"$ref": "#"},
        {"properties": {"n": {"$ref": "#/$defs/a0"}}, "$defs": BILLIONS},
        {"properties": {"n": {"pattern": "a{99999999999}"}}},
        {"$id": "http://[::1", "properties": {"n": {"$ref": "x"}}},
    ],
)
async def test_a_broken_schema_checks_nothing_fetches_nothing_and_is_logged(
    broken: JsonObject, caplog: pytest.LogCaptureFixture
) -> None:
    schema = {"type": "object", **broken}
    results, runtime = await results_of(facts(tool("add", inputSchema=schema)), calls(("docs__add", {"n": "x"})))
    assert results[0]["output"] == "done"
    assert offered(runtime)["docs__add"]["inputSchema"] == schema
    assert "tool.schema_broken" in caplog.text


async def test_a_servers_regular_expression_does_not_hold_up_the_host() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "string", "pattern": "^(a+)+$"}},
        "patternProperties": {"^(b+)+$": {"type": "integer"}},
        "additionalProperties": False,
    }
    arguments = {"n": "a" * 64 + "!", "b" * 64 + "!": 1}
    results, _ = await results_of(facts(tool("add", inputSchema=schema)), calls(("docs__add", arguments)))
    assert results[0]["output"] == "done"


IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a"}


def texts(*said: str) -> list[JsonObject]:
    return [{"type": "text", "text": one} for one in said]


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"content": texts("one", "two")}, {"kind": "completed", "output": "one\ntwo"}),
        ({"content": []}, {"kind": "completed", "output": ""}),
        ({"content": texts("{}"), "structuredContent": {"n": 1}}, {"kind": "completed", "output": {"n": 1}}),
        ({"content": texts("0"), "structuredContent": 0}, {"kind": "completed", "output": 0}),
        (
            {"content": [*texts("x"), IMAGE], "structuredContent": {"n": 1}},
            {"kind": "completed", "output": {"structuredContent": {"n": 1}, "content": [IMAGE]}},
        ),
        ({"content": [*texts("x"), IMAGE]}, {"kind": "completed", "output": [*texts("x"), IMAGE]}),
        ({"content": [LINK]}, {"kind": "completed", "output": [LINK]}),
        ({"content": [7, {"type": "text"}]}, {"kind": "completed", "output": [7, {"type": "text"}]}),
        ({"toolResult": 1, "isError": False}, {"kind": "completed", "output": {"toolResult": 1}}),
        (None, {"kind": "completed", "output": None}),
        ("text", {"kind": "completed", "output": "text"}),
        (
            {"content": texts("no", "such book"), "isError": True},
            {"kind": "failed", "code": "mcp.tool", "message": "no\nsuch book"},
        ),
        ({"content": [IMAGE], "isError": True}, {"kind": "failed", "code": "mcp.tool", "message": "MCP tool failed"}),
    ],
)
def test_every_form_of_result_is_an_outcome(result: Json, value: JsonObject) -> None:
    assert mcp_fate({"ok": True, "result": result}, repeatable=False, asked=1) == Known(value)
    redacted = mcp_fate({"ok": True, "result": result, "redacted": 2}, repeatable=False, asked=1)
    assert redacted == Known({**value, "redacted": 2})


LOST = {"message": "gone", "failure": {"code": "mcp.lost", "message": "The answer was lost", "sent": True}}
UNCERTAIN = {"message": "who knows", "uncertain": True}


@pytest.mark.parametrize(
    ("error", "repeatable", "asked", "fate"),
    [
        (LOST, False, 1, Unknown("The answer was lost")),
        (LOST, True, 1, Again()),
        (LOST, True, 2, Known({"kind": "failed", "code": "mcp.lost", "message": "The answer was lost"})),
        (UNCERTAIN, False, 1, Unknown("who knows")),
        (UNCERTAIN, True, 1, Again()),
        (UNCERTAIN, True, 2, Known({"kind": "failed", "code": "mcp.lost", "message": "who knows"})),
        (
            {
                "message": "x",
                "failure": {"code": "mcp.unreachable", "message": "down", "retryable": True, "server": "d"},
            },
            False,
            1,
            Known({"kind": "failed", "code": "mcp.unreachable", "message": "down", "retryable": True, "server": "d"}),
        ),
        (
            {"message": "Unknown tool", "code": -32602},
            False,
            1,
            Known({"kind": "failed", "code": "mcp.error", "message": "Unknown tool"}),
        ),
        ({}, False, 1, Known({"kind": "failed", "code": "mcp.error", "message": "The MCP call failed"})),
        (
            {"message": 7, "failure": "odd"},
            False,
            1,
            Known({"kind": "failed", "code": "mcp.error", "message": "The MCP call failed"}),
        ),
    ],
)
def test_every_failure_is_a_failed_outcome_an_unknown_fate_or_sent_again(
    error: JsonObject, repeatable: bool, asked: int, fate: Any
) -> None:
    assert mcp_fate({"ok": False, "error": error}, repeatable=repeatable, asked=asked) == fate


def test_an_answer_that_is_none_leaves_the_fate_unknown() -> None:
    assert isinstance(mcp_fate({"fine": True}, repeatable=True, asked=1), Unknown)


@pytest.mark.parametrize(
    ("annotations", "times"),
    [({"readOnlyHint": True}, 2), ({"idempotentHint": True}, 2), ({"destructiveHint": False}, 1), (None, 1)],
)
async def test_annotations_decide_whether_a_lost_call_is_sent_again(annotations: Json, times: int) -> None:
    listed = tool("add", **({"annotations": annotations} if annotations else {}))
    runtime = runtime_of(facts(listed), calls(("docs__add", {})), text("Done."))

    def lost(path: str, body: JsonObject) -> Json:
        runtime.tools.kept.pop(CALL_ID, None)
        return {"ok": False, "error": LOST}

    def forget(path: str, body: JsonObject) -> None:
        runtime.tools.kept.pop(CALL_ID, None)

    runtime.tools.answers, runtime.tools.before = lost, forget
    await run(runtime)
    assert len(runtime.tools.ran) == times
    (outcome,) = [params for params in runtime.asked("effect.outcome") if params["effectId"] == CALL_ID]
    assert ("error" in outcome) == (times == 1)
    assert runtime.transcript[2]["results"][0]["code"] == ("tool.lost" if times == 1 else "mcp.lost")


listed = st.builds(
    lambda name, schema, more: {"name": name, "inputSchema": {**schema, "type": "object"}, **more},
    st.text(min_size=1, max_size=70),
    st.dictionaries(texts_of, values, max_size=3),
    st.fixed_dictionaries({}, optional={"description": texts_of, "enabled": st.booleans(), "deferred": st.booleans()}),
)


@given(
    st.lists(st.tuples(st.sampled_from(["docs", "my docs"]), st.lists(listed, max_size=8)), max_size=3),
    st.integers(0, 9),
)
def test_the_same_facts_offer_the_same_tools_byte_for_byte(given_servers: Any, seed: int) -> None:
    servers = [{"name": name, "instructions": "Read.", "tools": tools} for name, tools in given_servers]

    def offered_bytes(facts: JsonObject) -> tuple[bytes, str]:
        gate = ToolGate(
            gates=Runtime(script()), run=Runtime(script()).lease(), stop=Stop(), traceparent=None, body_bytes=1
        )
        tools = McpTools(McpFacts.read(facts), AGENT, gate)
        return with_search(Toolset([tools]), None, [], 10**6).definitions(), tools.section()

    assert offered_bytes({"servers": servers}) == offered_bytes(crossed({"servers": servers}, seed))
