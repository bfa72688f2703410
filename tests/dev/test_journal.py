"""Intents and outcomes: what runs, what is refused, what happens when a call was cut off."""

from __future__ import annotations

from typing import Any

import pytest

from pod_host.contract.turn_start import HarnessLimits
from pod_host.dev.agent import Agent
from pod_host.dev.config import Times, ToolRule
from tests.dev.conftest import Build, World
from tests.dev.harness import Channel, JsonObject, Refused, Run
from tests.dev.test_leases import begun, code_of

SANDBOX = {"kind": "sandbox"}
HARNESS = {"kind": "harness"}
HTTP = {"kind": "http", "tool": "post"}
MCP = {"kind": "mcp", "server": "docs", "tool": "search"}
AGENT = Agent(
    name="tooled",
    tools=({"name": "post", "inputSchema": {"type": "object"}, "http": {"url": "http://127.0.0.1:1/"}},),
    mcp_servers=(
        {
            "name": "docs",
            "type": "streamable-http",
            "url": "http://127.0.0.1:1/",
            "tools": {"drop": {"enabled": False}},
        },
    ),
)
SNAPSHOT: JsonObject = {
    "snapshotSchemaVersion": 2,
    "servers": [
        {"name": "docs", "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("search", "drop")]}
    ],
}


async def cut_off(channel: Channel, run: Run) -> Run:
    """The run is given back with its calls open, and leased again."""
    await run.ask("lease.release", reason="shutdown")
    return await channel.lease()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sessionId": "other"}, "not of this run's turn"),
        ({"turnId": "other"}, "not of this run's turn"),
        ({"effectId": "x"}, "effectId is not"),
        ({"manifestHash": "sha256:0"}, "manifestHash"),
        ({"agentId": "other"}, "agentId"),
        ({"capabilityId": "c"}, "Unrecognized key"),
        ({"kind": "delegation"}, "kind"),
        ({"context": {"callId": "c"}}, "invocationId"),
        ({"target": {"kind": "sandbox", "x": 1}}, "Unrecognized key"),
        ({"skill": None}, "skill is null"),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
async def test_an_intent_that_breaks_the_contract_is_invalid(
    world: World, change: dict[str, Any], problem: str
) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect = {**run.tool_intent("bash", SANDBOX, {}), **change}
        with pytest.raises(Refused, match=problem) as refused:
            await run.intent(effect)
        assert refused.value.code == "invalid"


@pytest.mark.parametrize("part", ["segment", "kind", "identity"])
async def test_an_effect_id_is_turn_segment_kind_and_identity(world: World, part: str) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect = run.tool_intent("bash", SANDBOX, {})
        wrong = {
            "segment": f"{run.turn_id}:1:tool:x",
            "kind": f"{run.turn_id}:0:model:x",
            "identity": f"{run.turn_id}:0:tool:",
        }
        assert await code_of(run.intent({**effect, "effectId": wrong[part]})) == "invalid"


async def test_the_hash_is_computed_anew_for_a_tool_and_trusted_for_a_model(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        tool = run.tool_intent("bash", SANDBOX, {"command": "ls", "n": 1.0, "é😀": None})
        assert await code_of(run.intent(tool, request_hash="0" * 64)) == "invalid"
        assert (await run.intent(tool))["status"] == "execute"
        assert (await run.intent(run.model_intent(), request_hash="0" * 64))["status"] == "execute"


async def test_the_same_effect_with_another_request_is_drift(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        tool = run.tool_intent("bash", SANDBOX, {"command": "ls"})
        await run.intent(tool)
        assert await code_of(run.intent({**tool, "input": {"command": "rm"}})) == "effect_drift"
        await run.outcome(tool, "x")
        assert await code_of(run.intent({**tool, "target": HARNESS})) == "effect_drift"


@pytest.mark.parametrize(
    ("name", "target", "code"),
    [
        ("x", None, "tool.unavailable"),
        ("python", SANDBOX, "tool.unavailable"),
        ("post", {"kind": "http", "tool": "other"}, "tool.unavailable"),
        ("x", {"kind": "mcp", "server": "other", "tool": "search"}, "tool.unavailable"),
        ("x", {"kind": "mcp", "server": "docs", "tool": "gone"}, "tool.unknown"),
        ("x", {"kind": "mcp", "server": "docs", "tool": "drop"}, "tool.disabled"),
        ("memory", {"kind": "runtime", "operation": "memory"}, "tool.unavailable"),
        ("schedule_wake", {"kind": "runtime", "operation": "schedule_wake"}, "tool.unavailable"),
    ],
)
async def test_a_call_that_may_not_run_is_completed_with_a_failure(
    build: Build, name: str, target: dict[str, str] | None, code: str
) -> None:
    world = await build(AGENT)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        await run.ask("session.mcp", snapshot=SNAPSHOT, diagnostics=[])
        effect = run.tool_intent(name, target, {})
        answer = await run.intent(effect)
        assert answer["status"] == "completed"
        assert (answer["outcome"]["value"]["kind"], answer["outcome"]["value"]["code"]) == ("failed", code)
        assert await run.intent(effect) == answer
        completed = (await world.north.until("tool.completed", run.session_id))["error"]
        assert completed["code"] == code
        assert (await cut_off(channel, run)).start["outcomes"][0]["outcome"] == answer["outcome"]


@pytest.mark.parametrize("target", [HTTP, MCP, SANDBOX, HARNESS], ids=lambda target: str(target["kind"]))
async def test_what_may_run_is_executed_by_the_harness(build: Build, target: dict[str, str]) -> None:
    world = await build(AGENT)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        await run.ask("session.mcp", snapshot=SNAPSHOT, diagnostics=[])
        effect = run.tool_intent("bash", target, {"q": 1})
        assert (await run.intent(effect))["status"] == "execute"
        value = {"kind": "completed", "output": {"a": None}}
        assert await run.outcome(effect, value) == {"status": "completed", "outcome": {"value": value}}
        rows = (await world.north.get(f"/v1/sessions/{run.session_id}/calls/tool"))["calls"]
        assert rows[0]["kind"] == target["kind"]
        assert rows[0]["status"] == "completed"
        assert rows[0]["output"] == {"a": None}
        assert rows[0].get("tool") == target.get("tool")


@pytest.mark.parametrize("target", [SANDBOX, HARNESS], ids=["sandbox", "harness"])
async def test_a_call_of_our_own_that_was_cut_off_is_interrupted_for_good(world: World, target: dict[str, str]) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect = run.tool_intent("bash", target, {"command": "sleep"})
        await run.intent(effect)
        again = await cut_off(channel, run)
        assert again.start["outcomes"] == []
        answer = await again.intent(effect)
        assert answer["outcome"]["value"]["code"] == "tool.interrupted"
        # An outcome that comes all the same changes nothing: the recorded one is answered.
        assert await again.outcome(effect, {"kind": "completed", "output": "late"}) == answer


@pytest.mark.parametrize("target", [HTTP, MCP], ids=["http", "mcp"])
async def test_a_gate_call_is_sent_three_times_and_then_interrupted(build: Build, target: dict[str, str]) -> None:
    world = await build(AGENT)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        await run.ask("session.mcp", snapshot=SNAPSHOT, diagnostics=[])
        effect = run.tool_intent("post", target, {})
        assert [(await run.intent(effect))["status"] for _ in range(3)] == ["execute"] * 3
        answer = await run.intent(effect)
        assert answer["outcome"]["value"]["code"] == "tool.interrupted"


async def test_a_model_call_that_was_cut_off_is_executed_again(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect, call = run.model_intent(), run.model_call()
        await run.intent(effect, call=call)
        again = await cut_off(channel, run)
        assert await again.intent(effect, call=call) == {"status": "execute"}


async def test_a_fate_that_is_unknown_fails_a_tool_and_leaves_a_model_call_uncertain(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        tool, model = run.tool_intent("bash", HARNESS, {}), run.model_intent()
        await run.intent(tool)
        await run.intent(model, call=run.model_call())
        answer = await run.ask("effect.outcome", effectId=tool["effectId"], error="the worker died")
        assert answer["outcome"]["value"] == {
            "kind": "failed",
            "code": "tool.interrupted",
            "message": "the worker died",
        }
        assert await run.ask("effect.outcome", effectId=model["effectId"], error="lost") == {"status": "uncertain"}
        assert await run.intent(model, call=run.model_call()) == {"status": "uncertain"}
        await run.ask("turn.waiting", status="uncertain", effectIds=[model["effectId"]], state={})
        await world.north.post(f"/v1/sessions/{run.session_id}/interactions/{model['effectId']}", {"approved": True})
        again = await channel.lease()
        assert again.start["type"] == "approval.answer"
        assert await again.intent(model, call=run.model_call()) == {"status": "execute"}


async def test_an_outcome_needs_its_intent_and_is_recorded_once(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect = run.tool_intent("bash", SANDBOX, {})
        assert await code_of(run.outcome(effect, 1)) == "invalid"
        await run.intent(effect)
        first = await run.outcome(effect, None)
        assert first == {"status": "completed", "outcome": {"value": None}}
        assert await run.outcome(effect, 2) == first


async def test_an_outcome_over_the_limit_is_refused_and_nothing_is_recorded(build: Build) -> None:
    world = await build(limits=HarnessLimits(record_entry_bytes=100))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect = run.tool_intent("bash", SANDBOX, {})
        await run.intent(effect)
        with pytest.raises(Refused, match="recordEntryBytes is 100") as refused:
            await run.outcome(effect, "é" * 50)
        assert refused.value.code == "limit_exceeded"
        assert (await run.outcome(effect, "é" * 49))["status"] == "completed"


async def test_our_own_tokens_are_redacted_wherever_they_stand(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect = run.tool_intent("bash", SANDBOX, {"command": f"echo {world.pod.egress_token}"})
        assert (await run.intent(effect))["status"] == "execute"
        proxy = f"HTTPS_PROXY=http://nylorun:{world.pod.egress_token}@h:1"
        foreign = "eyJhbGciOiJIUzI1NiJ9.e30.c2ln"
        answer = await run.outcome(effect, {"out": [proxy, {run.grant["token"]: foreign}]})
        assert answer["outcome"]["value"] == {
            "out": ["HTTPS_PROXY=http://nylorun:[nylorun token redacted]@h:1", {"[nylorun token redacted]": foreign}]
        }
        entry = run.input_entry(world.pod.host_token)
        await run.complete(world.pod.host_token, transcript=[{"keep": 0, "entries": [entry], "length": 1}])
    assert (await world.north.turn(run.session_id))["output"] == "[nylorun token redacted]"
    transcript = (await world.north.get(f"/v1/sessions/{run.session_id}/transcript"))["entries"]
    assert transcript[0]["event"]["text"] == "[nylorun token redacted]"
    assert b"eyJ" not in str(await world.north.events()).encode().replace(foreign.encode(), b"")


async def test_a_tool_that_the_policy_holds_waits_for_a_person_and_runs_when_approved(build: Build) -> None:
    world = await build(AGENT, tool_policy=(ToolRule("ask", "po*"),))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        held, free = run.tool_intent("post", HTTP, {"a": 1}), run.tool_intent("bash", SANDBOX, {}, at="step-1/1")
        assert await run.intent(held) == {"status": "pending"}
        assert await run.intent(held) == {"status": "pending"}
        await run.intent(free)
        await run.outcome(free, "x")
        assert await run.ask("turn.waiting", status="waiting", effectIds=[held["effectId"]], state={}) == {"cursor": -1}
        waiting = await world.north.until("turn.waiting", run.session_id)
        assert waiting["interactions"][0] == {
            "id": held["effectId"],
            "kind": "approval",
            "tool": "post",
            "toolName": "post",
            "input": {"a": 1},
            "prompt": "Approve post?",
        }
        session = await world.north.get(f"/v1/sessions/{run.session_id}")
        assert (session["state"], len(session["interactions"])) == ("waiting", 1)
        path = f"/v1/sessions/{run.session_id}/interactions/{held['effectId']}"
        await world.north.post(path, {"approved": True})
        assert (await world.north.http.post(path, json={"approved": True})).status_code == 409
        again = await channel.lease()
        assert (again.start["type"], again.segment) == ("approval.answer", 0)
        assert [outcome["effectId"] for outcome in again.start["outcomes"]] == [free["effectId"]]
        assert (await again.intent(held))["status"] == "execute"


async def test_a_tool_that_a_person_denies_or_the_policy_forbids_fails_to_the_model(build: Build) -> None:
    world = await build(AGENT, tool_policy=(ToolRule("deny", "search", server="docs"), ToolRule("ask")))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        await run.ask("session.mcp", snapshot=SNAPSHOT, diagnostics=[])
        forbidden = await run.intent(run.tool_intent("s", MCP, {}, at="step-1/1"))
        assert forbidden["outcome"]["value"]["code"] == "tool.denied"
        held = run.tool_intent("post", HTTP, {})
        await run.intent(held)
        await run.ask("turn.waiting", status="waiting", effectIds=[held["effectId"]], state={})
        await world.north.post(f"/v1/sessions/{run.session_id}/interactions/{held['effectId']}", {"approved": False})
        again = await channel.lease()
        answer = await again.intent(held)
        assert answer["outcome"]["value"]["code"] == "tool.denied"


async def test_the_manifests_own_approval_holds_a_tool(build: Build) -> None:
    tool = {
        "name": "post",
        "inputSchema": {"type": "object"},
        "http": {"url": "http://127.0.0.1:1/"},
        "approval": "always",
    }
    world = await build(Agent(name="careful", tools=(tool,)))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        assert await run.intent(run.tool_intent("post", HTTP, {})) == {"status": "pending"}


async def test_the_first_snapshot_of_a_session_wins_and_carries_the_manifests_settings(build: Build) -> None:
    world = await build(AGENT)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        assert await run.ask("session.mcp", diagnostics=[]) == {}
        first = await run.ask("session.mcp", snapshot=SNAPSHOT, diagnostics=[])
        tools = first["mcp"]["servers"][0]["tools"]
        assert [(tool["name"], tool["enabled"]) for tool in tools] == [("search", True), ("drop", False)]
        other = {"snapshotSchemaVersion": 2, "servers": []}
        assert await run.ask("session.mcp", snapshot=other, diagnostics=[]) == first
        wrongs: list[dict[str, Any]] = [{"servers": []}, {**other, "snapshotSchemaVersion": 1}, {**other, "x": 1}]
        for wrong in wrongs:
            assert await code_of(run.ask("session.mcp", snapshot=wrong, diagnostics=[])) == "invalid"
        more = {
            **SNAPSHOT["servers"][0],
            "title": "Docs",
            "tools": [{**SNAPSHOT["servers"][0]["tools"][0], "title": "S"}],
        }
        assert await run.ask("session.mcp", snapshot={**other, "servers": [more]}, diagnostics=[{"x": 1}]) == first
        texts = " ".join(warning["text"] for warning in (await world.north.get("/v1/warnings"))["warnings"])
        assert "title is no member of a server" in texts
        assert "title is no member of a tool" in texts
        assert "diagnostics" in texts
        undeclared = {"snapshotSchemaVersion": 2, "servers": [{"name": "no", "tools": []}]}
        assert await code_of(run.ask("session.mcp", snapshot=undeclared, diagnostics=[])) == "invalid"
        assert (await cut_off(channel, run)).start["mcp"] == first["mcp"]


async def test_a_value_of_no_known_shape_is_taken_with_a_warning(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect, model = run.tool_intent("bash", SANDBOX, {}), run.model_intent()
        await run.intent(effect)
        await run.intent(model, call=run.model_call())
        await run.outcome(effect, {"kind": "failed", "message": "no code"})
        await run.outcome(model, {"text": "no output"})
    texts = [warning["text"] for warning in (await world.north.get("/v1/warnings"))["warnings"]]
    assert any("code" in text for text in texts)
    assert any("output" in text for text in texts)


async def test_events_are_derived_from_outcomes_but_not_from_a_summarys(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        summary, failing, speaking = (
            run.model_intent("s1", purpose="summary"),
            run.model_intent("s2"),
            run.model_intent("s3"),
        )
        for effect in (summary, failing, speaking):
            await run.intent(effect, call=run.model_call())
        block = {"type": "tool-call", "id": "c", "name": "bash", "args": {"command": "ls"}}
        await run.outcome(summary, {"output": [{"type": "text", "text": "the story so far"}]})
        await run.outcome(failing, {"kind": "failed", "code": "overloaded", "message": "later", "retryable": True})
        await run.outcome(speaking, {"output": [{"type": "text", "text": "hm"}, block], "finishReason": "tool-calls"})
    events = {event["type"]: event for event in await world.north.events(run.session_id)}
    assert (events["model.failed"]["code"], events["model.failed"]["effectId"]) == ("overloaded", failing["effectId"])
    assert events["message.assistant"]["text"] == "hm"
    assert events["message.assistant"]["toolCalls"] == [{"id": "c", "name": "bash", "args": {"command": "ls"}}]
    assert events["message.assistant"]["finishReason"] == "tool-calls"


async def test_a_lease_that_lapsed_leaves_the_journal_to_the_next_owner(build: Build) -> None:
    world = await build(times=Times(lease=0.3))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect = run.tool_intent("bash", SANDBOX, {})
        await run.intent(effect)
        again = await channel.lease()
        assert (await again.intent(effect))["outcome"]["value"]["code"] == "tool.interrupted"
        assert await code_of(run.outcome(effect, 1)) == "ownership_lost"
