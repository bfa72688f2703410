"""Agents used as tools: each runs a loop of its own within the turn (Harness API v5, sections 3 and 4)."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import pytest

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.model_call import HTTP_CALLS_PATH, TOOL_CALLS_PATH
from pod_host.turn import Reported
from tests.turn.double import AGENT, TURN, Model, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.tool_gate_double import Server, ToolGate, tool

HELPER: JsonObject = {
    "name": "helper",
    "description": "Helps.",
    "agent": {"id": "the-helper", "instructions": "You are HELPER."},
}
CALL = f"{TURN}:0:tool:step-1/0"


def told(call: JsonObject) -> str:
    """The system text of a model call."""
    head = call["prompt"][0]
    return str(head["content"][0]["text"]) if head["kind"] == "instructions" else ""


def cast(own: Model, **others: Model) -> Model:
    """Answers by who is asked: an agent's instructions hold its name in capitals."""

    def model(call: JsonObject, effect_id: str) -> Json:
        for name, answers in others.items():
            if name.upper() in told(call):
                return answers(call, effect_id)
        return own(call, effect_id)

    return model


def manifest(*tools: JsonObject, **members: Json) -> JsonObject:
    return {"id": AGENT, "instructions": "You are the first.", "tools": list(tools), **members}


def helped(*answers: Json, own: Json = None, used: JsonObject | None = None, **members: Any) -> Runtime:
    """A turn that calls ``helper`` with a message, which gives ``answers``; then it is done."""
    first = own or calls(("helper", {"message": "Look."}))
    model = cast(script(first, text("Done.")), helper=script(*answers))
    agent = {**HELPER["agent"], **(used or {})}
    return Runtime(model, manifest=manifest({**HELPER, "agent": agent}), **members)


async def run(runtime: Runtime, sandbox: Sandbox | None = None, **members: Any) -> Runtime:
    assert await runtime.turn(sandbox or Sandbox(), **members).run() == Reported("completed")
    return runtime


def results(runtime: Runtime) -> list[JsonObject]:
    return [result for entry in runtime.transcript for result in entry.get("results", [])]


def helper_calls(runtime: Runtime) -> list[JsonObject]:
    return [call for call in runtime.model_calls if "HELPER" in told(call)]


def offered(call: JsonObject) -> list[str]:
    return [one["name"] for one in call["tools"]]


async def test_its_last_answer_is_the_calls_result_and_its_effects_lie_within_the_call() -> None:
    runtime = helped(calls(("bash", {"command": "ls"})), text("Two files."))
    sandbox = Sandbox()
    await run(runtime, sandbox)
    assert results(runtime) == [{"callId": "c0", "toolName": "helper", "kind": "completed", "output": "Two files."}]
    assert list(runtime.journal) == [
        f"{TURN}:0:model:step-1",
        f"{TURN}:0:model:step-1/0/step-1",
        f"{TURN}:0:tool:step-1/0/step-1/0",
        f"{TURN}:0:model:step-1/0/step-2",
        CALL,
        f"{TURN}:0:model:step-2",
    ]
    for row in runtime.journal.values():
        assert row.intent["agentId"] == AGENT
        assert "agent" not in row.intent
    inner = runtime.journal[f"{TURN}:0:tool:step-1/0/step-1/0"].intent["context"]
    assert inner == {
        "callId": "c0",
        "invocationId": f"{TURN}.0.step-1/0/step-1.0",
        "stepId": f"{TURN}.step-1/0/step-1",
    }
    assert runtime.journal[CALL].intent["target"] == {"kind": "harness"}
    assert sandbox.started == [("bash", {"command": "ls"})]
    assert [entry["kind"] for entry in runtime.transcript] == [
        "input",
        "candidate",
        "tool-results",
        "candidate",
        "final",
    ]
    assert runtime.state["steps"] == 2


async def test_it_is_told_its_task_and_nothing_of_the_conversation() -> None:
    runtime = await run(helped(text("Yes.")))
    (call,) = helper_calls(runtime)
    assert told(call).startswith("You are HELPER.\n\n# Sandbox")
    assert "Another agent calls you as its tool." in told(call)
    assert [item["content"][0]["text"] for item in call["prompt"][1:]] == ["Look."]
    assert "model" not in call
    first = runtime.model_calls[0]
    assert "Another agent" not in told(first)
    (declared,) = [one for one in first["tools"] if one["name"] == "helper"]
    assert declared["description"] == "Helps."
    assert declared["inputSchema"]["required"] == ["message"]
    assert "helper" not in offered(call)


async def test_a_tool_of_its_own_shape_gives_its_arguments_as_json() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["a"]}
    runtime = helped(text("Yes."), own=calls(("helper", {"b": 1, "a": "x"}), ("helper", {"b": 1})))
    runtime.manifest["tools"][0]["inputSchema"] = schema
    await run(runtime)
    (call,) = helper_calls(runtime)
    assert call["prompt"][-1]["content"][0]["text"] == '{"a":"x","b":1}'
    assert [result.get("code") for result in results(runtime)] == [None, "tool.invalid-input"]


async def test_its_answer_fits_its_own_output_schema_after_corrections() -> None:
    schema = {"type": "object", "required": ["files"]}
    runtime = await run(helped(text("Two."), text('{"files": 2}'), used={"outputSchema": schema}))
    assert results(runtime)[0]["output"] == {"files": 2}
    assert "# Output" in told(helper_calls(runtime)[0])
    assert [entry["kind"] for entry in runtime.transcript].count("input") == 1


async def test_it_may_name_a_model_of_its_own() -> None:
    model = {"id": "small", "controls": {"temperature": 0}, "provider": "any"}
    runtime = await run(helped(text("Yes."), used={"model": model}))
    assert helper_calls(runtime)[0]["model"] == {"id": "small", "controls": {"temperature": 0}}
    assert "model" not in runtime.model_calls[0]


async def test_memory_is_shown_to_it_and_only_to_be_viewed_and_it_sets_no_wakes() -> None:
    memory = {"access": "read_write", "index": "- /memories/a", "instructions": "Write all down."}
    agent = {"id": AGENT, "kind": "pod", "sandbox": {"workspace": "/workspace"}, "selfWake": True}
    runtime = helped(calls(("memory", {"command": "delete", "path": "/memories/a"})), text("Yes."))
    await run(runtime, memory=memory, agent=agent)
    first, call = runtime.model_calls[0], helper_calls(runtime)[0]
    (viewing,) = [one for one in call["tools"] if one["name"] == "memory"]
    assert viewing["inputSchema"]["properties"]["command"] == {"enum": ["view"]}
    assert "schedule_wake" in offered(first)
    assert "schedule_wake" not in offered(call)
    assert "Write all down." not in told(call)
    assert "/memories/a" in call["prompt"][1]["content"][0]["text"]
    refusal = helper_calls(runtime)[1]["prompt"][-1]["content"][0]["text"]
    assert "tool.invalid-input" in refusal
    assert not any(row.intent.get("target", {}).get("kind") == "runtime" for row in runtime.journal.values())


async def test_its_skills_are_its_own() -> None:
    skill = b"# How"
    name = f"sha256:{hashlib.sha256(skill).hexdigest()}"
    skills = [{"name": "how", "description": "How.", "files": {"SKILL.md": name}}]
    runtime = helped(
        calls(("load_skill", {"name": "how"}), ("bash", {"command": "ls"})),
        text("Yes."),
        used={"skills": skills},
        files={name: skill},
    )
    sandbox = Sandbox()
    await run(runtime, sandbox)
    assert "load_skill" not in offered(runtime.model_calls[0])
    assert "how: How." in told(helper_calls(runtime)[0])
    assert list(sandbox.skills.values()) == [{"SKILL.md": skill}]
    assert runtime.journal[f"{TURN}:0:tool:step-1/0/step-1/0"].intent["skill"] == "how"


async def test_agents_beside_one_another_mount_a_skill_that_they_share_once() -> None:
    name = f"sha256:{hashlib.sha256(b'# How').hexdigest()}"
    skills = [{"name": "how", "description": "How.", "files": {"SKILL.md": name}}]
    own = calls(("helper", {"message": "One."}), ("helper", {"message": "Two."}))
    runtime = helped(
        calls(("bash", {"command": "ls"})), text("Yes."), own=own, used={"skills": skills}, files={name: b"# How"}
    )
    sandbox = Sandbox(world=runtime.world)  # which refuses a folder that is there
    await run(runtime, sandbox)
    assert runtime.world.points.count("skill mounted") == 1
    assert [result["output"] for result in results(runtime)] == ["Yes.", "Yes."]


# --- Servers and HTTP tools --------------------------------------------------------------------------------------------


async def test_its_servers_and_http_tools_are_found_and_called_under_its_id() -> None:
    used = {
        "mcpServers": [{"name": "docs", "url": "http://x/"}],
        "tools": [{"name": "order", "http": {"url": "http://x/"}}],
    }
    runtime = helped(calls(("docs__a", {}), ("order", {"n": 1})), text("Yes."), used=used)
    runtime.tools = ToolGate(servers={"docs": Server([[tool("a")]], "Read first.")})
    await run(runtime)
    (recorded,) = runtime.tools.recorded
    assert recorded["snapshot"]["servers"] == [
        {"agentId": "the-helper", "name": "docs", "instructions": "Read first.", "tools": [tool("a")]}
    ]
    assert recorded["diagnostics"] == [
        {"agentId": "the-helper", "serverName": "docs", "outcome": "connected", "message": "1 tools"}
    ]
    assert "docs__a" not in offered(runtime.model_calls[0])
    assert "order" not in offered(runtime.model_calls[0])
    assert "Read first." in told(helper_calls(runtime)[0])
    named = {path: body for path, _, body in runtime.tools.asked}
    assert named[TOOL_CALLS_PATH]["server"] == {"agentId": "the-helper", "serverName": "docs"}
    assert named[HTTP_CALLS_PATH]["tool"] == {"agentId": "the-helper", "toolName": "order"}
    runtime.model = lambda call, effect_id: text("Again.")
    await run(runtime, turn_id="turn_2")
    assert len(runtime.tools.recorded) == 1


async def test_servers_of_one_name_are_each_agents_own() -> None:
    declared = [{"name": "docs", "url": "http://x/"}]
    runtime = helped(calls(("docs__a", {})), text("Yes."), own=calls(("docs__a", {}), ("helper", {"message": "Look."})))
    runtime.manifest["mcpServers"] = declared
    runtime.manifest["tools"][0]["agent"]["mcpServers"] = declared
    runtime.tools = ToolGate(servers={"docs": Server([[tool("a")]])})
    await run(runtime)
    servers = [body["server"] for path, _, body in runtime.tools.asked if path == TOOL_CALLS_PATH]
    assert servers == [{"serverName": "docs"}, {"agentId": "the-helper", "serverName": "docs"}]


# --- Definitions -------------------------------------------------------------------------------------------------------

DEFINED = {"instructions": "You are HELPER."}


@pytest.mark.parametrize(
    ("agent", "members"),
    [
        ({"harness": DEFINED}, {}),
        ({"manifest": DEFINED}, {}),
        ("x", {"agents": {"x": DEFINED}}),
        ("x", {"agents": [{"name": "x", **DEFINED}]}),
        ({"ref": "x"}, {"agents": [{"id": "x", "harness": DEFINED}]}),
        ({"name": "x"}, {"harness": {"agents": {"x": DEFINED}}}),
    ],
)
@pytest.mark.parametrize("where", ["manifest", "rootManifest"])
async def test_a_definition_may_be_there_or_be_named(agent: Json, members: JsonObject, where: str) -> None:
    runtime = helped(text("Yes."))
    runtime.manifest["tools"][0]["agent"] = agent
    routing: JsonObject = {"sandbox": {"ownerId": "s"}}
    if where == "manifest":
        runtime.manifest.update(members)
    else:
        routing["rootManifest"] = members
    await run(runtime, routing=routing)
    assert results(runtime)[0]["output"] == "Yes."


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        (7, "its agent is not defined by"),
        ([DEFINED], "its agent is not defined by"),
        ({}, "its agent is not defined by"),
        ("x", "no agent x is defined"),
        ({"instructions": 7}, "its agent's instructions is a number"),
        ({**DEFINED, "tools": "all"}, "its agent's tools is a text"),
        ({**DEFINED, "model": 7}, "its agent's model is a number"),
        ({**DEFINED, "model": {"controls": {"temperature": "hot"}}}, "its agent's model"),
        ({**DEFINED, "model": {"name": "small"}}, "its agent's model has no id"),
        ({**DEFINED, "id": AGENT}, f"another agent has the id {AGENT}"),
    ],
)
async def test_a_definition_that_cannot_be_read_is_not_offered_and_logged(
    agent: Json, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(script(text("Done.")), manifest=manifest({"name": "helper", "agent": agent}))
    with caplog.at_level(logging.WARNING):
        await run(runtime)
    assert "helper" not in offered(runtime.model_calls[0])
    (left_out,) = [record for record in caplog.records if vars(record).get("event") == "tool.left_out"]
    assert vars(left_out)["fields"]["tool"] == "helper"
    assert why in vars(left_out)["fields"]["why"]


def nested(depth: int) -> JsonObject:
    """An agent that has ``depth`` others within it, one in another."""
    tools = [{"name": f"deep{depth}", "agent": nested(depth - 1)}] if depth else []
    return {"id": f"deep-{depth}", "instructions": f"You are DEEP{depth}.", "tools": tools}


async def test_agents_use_agents_two_deep_at_most() -> None:
    def ask(name: str) -> Model:
        return script(calls((name, {"message": "Go on."})), text(f"{name} is done."))

    model = cast(ask("deep3"), deep2=ask("deep2"), deep1=script(text("At the bottom.")))
    runtime = await run(Runtime(model, manifest=nested(3) | {"id": AGENT, "instructions": "First."}))
    assert results(runtime)[0]["output"] == "deep2 is done."
    assert f"{TURN}:0:model:step-1/0/step-1/0/step-1" in runtime.journal
    (bottom,) = [call for call in runtime.model_calls if "DEEP1" in told(call)]
    assert "deep1" not in offered(bottom)
