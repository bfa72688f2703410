"""The gates: tokens, keys, joins of a running call, cancels, media, bodies."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from pod_host.contract.turn_start import HarnessLimits
from pod_host.dev.config import Times
from tests.dev.conftest import Build, World
from tests.dev.harness import WAIT, Json, JsonObject, Run
from tests.dev.test_journal import AGENT, HTTP, MCP, SNAPSHOT
from tests.dev.test_leases import begun


async def post(
    world: World, run: Run, route: str, body: Json, *, key: str | None = None, token: str | None = None, **headers: str
) -> httpx.Response:
    sent = {"Authorization": f"Bearer {token or run.grant['token']}", **headers}
    if key is not None:
        sent["Idempotency-Key"] = key
    return await world.pod.http.post(f"{world.runtime.gates_url}/nylorun/v1/{route}", json=body, headers=sent)


async def journaled(run: Run, step: str = "step-1", text: str = "hello") -> JsonObject:
    """A model intent that was answered execute: the body of its call."""
    effect, call = run.model_intent(step), run.model_call(text)
    await run.intent(effect, call=call)
    return {"effectId": effect["effectId"], "invocationId": step, "call": call}


async def model(world: World, run: Run, body: JsonObject) -> httpx.Response:
    return await post(world, run, "model-calls", body, key=body["effectId"])


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_tokens_of_other_kinds_and_ended_runs_are_refused(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        body = await journaled(run)
        for token in ("junk", world.pod.host_token, world.pod.egress_token):
            response = await post(world, run, "model-calls", body, key=body["effectId"], token=token)
            assert error_of(response) == (401, "gate_unauthorized")
        await run.ask("lease.release", reason="shutdown")
        assert error_of(await model(world, run, body)) == (409, "run_stale")
        again = await channel.lease()
        assert again.id != run.id


async def test_a_cancelled_turns_calls_are_stale(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        body = await journaled(run)
        await world.north.post(f"/v1/sessions/{run.session_id}/cancel")
        assert error_of(await model(world, run, body)) == (409, "run_stale")


async def test_a_call_needs_its_key_and_its_intent(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        body = await journaled(run)
        assert error_of(await post(world, run, "model-calls", body)) == (400, "key_required")
        assert error_of(await post(world, run, "model-calls", body, key="other")) == (400, "invalid_request")
        unknown = {**body, "effectId": f"{run.turn_id}:0:model:never"}
        assert error_of(await model(world, run, unknown)) == (409, "effect_not_journaled")
        await run.outcome({"effectId": body["effectId"]}, "done already")
        assert error_of(await model(world, run, body)) == (409, "effect_not_journaled")
        assert world.model.calls == []


async def test_another_sessions_call_is_forbidden(world: World) -> None:
    async with world.pod.connected() as channel:
        run, other = await begun(world, channel), await begun(world, channel)
        body, others = await journaled(run), await journaled(other)
        assert error_of(await model(world, run, others)) == (403, "gate_forbidden")
        named = {**body, "call": {**body["call"], "executionId": other.session_id}}
        assert error_of(await model(world, run, named)) == (403, "gate_forbidden")


@pytest.mark.parametrize(
    "change",
    [
        {"sessionId": "s"},
        {"call": None},
        {"call": {"prompt": [], "tools": []}},
        {"call": {"prompt": [{"kind": "message", "role": "system", "content": []}], "tools": [], "executionId": "e"}},
        {"call": {"prompt": [], "tools": [], "executionId": "e", "outputSchema": {}}},
        {"call": {"prompt": [], "tools": [{"name": "x" * 65, "inputSchema": {}}], "executionId": "e"}},
    ],
)
async def test_a_body_outside_its_schema_is_an_invalid_request(world: World, change: JsonObject) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        body = await journaled(run)
        assert error_of(await model(world, run, {**body, **change})) == (400, "invalid_request")


async def test_bodies_over_the_cap_and_foreign_hosts_and_unknown_routes(build: Build) -> None:
    world = await build(limits=HarnessLimits(model_call_bytes=1000))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        body = await journaled(run, text="x" * 1000)
        assert error_of(await model(world, run, body)) == (400, "invalid_request")
        refused = await post(world, run, "model-calls", body, Host="elsewhere:4100")
        assert error_of(refused) == (421, "host_rejected")
        assert (await post(world, run, "nothing", {})).status_code == 404
        got = await world.pod.http.get(f"{world.runtime.gates_url}/nylorun/v1/model-calls")
        assert (got.status_code, got.headers["Allow"]) == (405, "POST")


async def test_a_call_that_is_sent_again_joins_the_one_that_runs(world: World) -> None:
    world.model.held = asyncio.Event()
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        body = await journaled(run)
        first = asyncio.create_task(model(world, run, body))
        await asyncio.wait_for(world.model.called.wait(), WAIT)
        first.cancel()  # the client leaves; the call goes on
        await run.ask("lease.release", reason="shutdown")
        again = await channel.lease()
        effect = again.model_intent()
        assert await again.intent(effect, call=body["call"]) == {"status": "execute", "rejoin": True}
        second = asyncio.create_task(model(world, again, body))
        third = asyncio.create_task(model(world, again, {"call": body["call"], **body}))
        world.model.held.set()
        answers = [(await task).json() for task in (second, third)]
        assert answers[0] == answers[1]
        assert (await model(world, again, body)).json() == answers[0]  # kept after it settled
        other = {**body, "call": again.model_call("something else")}
        assert error_of(await model(world, again, other)) == (409, "gate_conflict")
    assert len(world.model.calls) == 1
    usage = (await world.north.get(f"/v1/sessions/{run.session_id}/calls/model"))["calls"]
    assert [row["effectId"] for row in usage] == [body["effectId"]]
    assert usage[0]["usage"] == {"inputTokens": 3}


async def test_a_kept_outcome_is_forgotten_after_its_time(build: Build) -> None:
    world = await build(times=Times(outcome=0))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        body = await journaled(run)
        await model(world, run, body)
        assert (await run.intent(run.model_intent(), call=body["call"])) == {"status": "execute"}
        await model(world, run, body)
    assert len(world.model.calls) == 2


async def test_a_cancel_ends_the_call_and_answers_204_whether_or_not_it_is_there(world: World) -> None:
    world.model.held = asyncio.Event()
    async with world.pod.connected() as channel:
        run, other = await begun(world, channel), await begun(world, channel)
        body = await journaled(run)
        key = body["effectId"].replace(":", "%3A")
        calling = asyncio.create_task(model(world, run, body))
        await asyncio.wait_for(world.model.called.wait(), WAIT)
        assert error_of(await post(world, other, f"model-calls/{key}/cancel", {})) == (403, "gate_forbidden")
        await world.north.post(f"/v1/sessions/{run.session_id}/cancel")
        assert (await post(world, run, f"model-calls/{key}/cancel", {})).status_code == 204  # of a run that is over
        outcome = (await calling).json()["outcome"]
        assert (outcome["kind"], outcome["code"], outcome["retryable"]) == ("failed", "transient", False)
        assert (await post(world, run, f"model-calls/{key}/cancel", {})).status_code == 204
        assert (await post(world, run, "tool-calls/none/cancel", {})).status_code == 204


async def test_a_broken_model_is_a_failed_call(world: World) -> None:
    world.model.answers = [{"nonsense": 1}]
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        outcome = (await model(world, run, await journaled(run))).json()["outcome"]
        assert (outcome["kind"], outcome["code"]) == ("failed", "invalid_output")


@pytest.mark.parametrize(
    ("media_type", "code"),
    [("text/plain", "unsupported_input"), ("application/pdf", "unsupported_input"), ("image/png", "invalid_request")],
)
async def test_media_that_cannot_go_is_refused_before_anything_is_sent(
    world: World, media_type: str, code: str
) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect, call = run.model_intent(), run.model_call()
        reference = {"artifactId": "af_none", "version": 1}
        call["prompt"][0]["content"].append({"type": "media", "mediaType": media_type, "reference": reference})
        await run.intent(effect, call=call)
        body = {"effectId": effect["effectId"], "invocationId": "step-1", "call": call}
        outcome = (await model(world, run, body)).json()["outcome"]
        assert (outcome["kind"], outcome["code"], outcome["retryable"]) == ("failed", code, False)
    assert world.model.calls == []


async def test_a_hash_that_was_made_without_the_call_is_warned_of(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect = run.model_intent()
        await run.intent(effect)  # hashed without input
        body = {"effectId": effect["effectId"], "invocationId": "other", "call": run.model_call()}
        assert (await model(world, run, body)).status_code == 200
    texts = " ".join(warning["text"] for warning in (await world.north.get("/v1/warnings"))["warnings"])
    assert "requestHash" in texts
    assert "invocationId" in texts


async def test_tool_routes_know_the_declared_servers_and_the_journal(build: Build) -> None:
    world = await build(AGENT)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        docs: dict[str, Any] = {"server": {"serverName": "docs"}}
        assert error_of(await post(world, run, "mcp/connect", {"server": {"serverName": "no"}})) == (
            400,
            "invalid_request",
        )
        assert error_of(await post(world, run, "mcp/list", {**docs, "url": "http://x"})) == (400, "invalid_request")
        assert (await post(world, run, "mcp/close", docs)).status_code == 204
        effect_id = f"{run.turn_id}:0:tool:a"
        call = {**docs, "effectId": effect_id, "name": "search", "arguments": {}}
        assert error_of(await post(world, run, "tool-calls", call)) == (400, "key_required")
        assert error_of(await post(world, run, "tool-calls", call, key=effect_id)) == (409, "effect_not_journaled")
        await run.ask("session.mcp", snapshot=SNAPSHOT, diagnostics=[])
        effect = run.tool_intent("s", MCP, {}, at="a")
        await run.intent(effect)
        other = {**call, "name": "drop"}
        assert error_of(await post(world, run, "tool-calls", other, key=effect_id)) == (409, "effect_not_journaled")
        answer = (await post(world, run, "tool-calls", call, key=effect_id)).json()
        assert (answer["ok"], answer["error"]["failure"]["code"]) == (False, "mcp.unreachable")
        http = run.tool_intent("post", HTTP, {}, at="b")
        await run.intent(http)
        body = {"tool": {"toolName": "post"}, "effectId": http["effectId"], "input": {}}
        assert (await post(world, run, "http-calls", body, key=http["effectId"])).json()["ok"] is True
