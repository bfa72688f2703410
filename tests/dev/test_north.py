"""The north API: sessions, events, the sandbox, and what a browser may not do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.dev.conftest import World
from tests.dev.harness import WAIT, Channel
from tests.dev.test_leases import begun, code_of


async def test_the_status_names_everything_that_a_host_needs(world: World) -> None:
    status = await world.north.get("/v1/status")
    assert set(status) == {"tenantId", "sandboxId", "harnessId", "host", "model", "urls", "joinFile"}
    assert status["host"] == {"joined": False, "connected": False, "epoch": 0, "podUid": None}
    assert set(status["urls"]) == {"harness", "gates", "egress", "north"}
    async with world.pod.connected():
        assert (await world.north.get("/v1/status"))["host"] == {
            "joined": True,
            "connected": True,
            "epoch": 1,
            "podUid": "pod-1",
        }


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_a_web_page_is_refused(world: World, headers: dict[str, str], status: int) -> None:
    response = await world.north.http.post("/v1/sessions", json={}, headers=headers)
    assert response.status_code == status
    assert (await world.north.get("/v1/sessions"))["sessions"] == []


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/sessions/none/messages", {"input": "x"}, 404),
        ("/v1/sessions/{}/messages", {"input": 1}, 400),
        ("/v1/sessions/{}/messages", {"input": {"text": "x", "content": []}}, 400),
        ("/v1/sessions/{}/messages", {"input": {"content": [{"type": "audio"}]}}, 400),
        ("/v1/sessions/{}/messages", {"input": "x", "more": 1}, 400),
        ("/v1/sessions/{}/cancel", {"reason": "bored"}, 400),
        ("/v1/sessions/{}/interactions/none", {"approved": True}, 404),
        ("/v1/sessions/{}/interactions/none", {"approved": "yes"}, 400),
        ("/v1/sessions/{}/sandbox/exec", {"tool": "read", "input": {}}, 400),
        ("/v1/sessions/{}/sandbox/dance", {}, 404),
        ("/v1/nothing", {}, 404),
    ],
)
async def test_a_request_that_cannot_be_served_says_why(
    world: World, path: str, body: dict[str, Any], status: int
) -> None:
    session = await world.north.session()
    response = await world.north.http.post(path.format(session), json=body)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"code", "message"}


async def test_a_body_that_is_no_json_object_is_refused(world: World) -> None:
    for content in (b"[", b"[]", b"1"):
        assert (await world.north.http.post("/v1/sessions", content=content)).status_code == 400


@pytest.mark.parametrize(
    "given", ["text", {"text": "a", "metadata": {"b": 1}}, {"content": [{"type": "text", "text": "c"}]}]
)
async def test_an_input_reaches_the_harness_as_it_came(world: World, given: Any) -> None:
    session = await world.north.session()
    answer = await world.north.say(session, given)
    assert set(answer) == {"messageId", "turnId"}
    assert set(await world.north.say(session, "later")) == {"messageId"}
    async with world.pod.connected() as channel:
        assert (await channel.lease()).checkpoint["input"] == given


async def test_events_are_followed_live_from_where_a_reader_stopped(world: World) -> None:
    session = await world.north.session()
    await world.north.say(session, "a")
    first = (await world.north.events(session))[0]
    heard: list[dict[str, Any]] = []

    async def follow() -> None:
        async with world.north.http.stream(
            "GET", f"/v1/sessions/{session}/events", params={"after": first["seq"], "follow": 1}
        ) as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            async for line in response.aiter_lines():
                heard.append(json.loads(line))
                if heard[-1]["type"] == "turn.completed":
                    return

    following = asyncio.create_task(follow())
    async with world.pod.connected() as channel:
        await (await channel.lease()).complete()
    await asyncio.wait_for(following, WAIT)
    assert [event["type"] for event in heard] == ["run.leased", "turn.started", "turn.completed"]
    assert [event["seq"] for event in heard] == sorted(event["seq"] for event in heard)
    everything = {event["type"] for event in await world.north.events()}
    assert {"host.joined", "host.connected", "turn.completed"} <= everything


async def test_a_stop_ends_every_reader(world: World) -> None:
    async with world.north.http.stream("GET", "/v1/events", params={"follow": 1}) as response:
        await world.runtime.stop()
        assert [line async for line in response.aiter_lines()] == []


async def test_more_events_than_a_page_are_all_read(world: World) -> None:
    session = await world.north.session()
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        for number in range(600):
            await run.ask("event", sessionId=run.session_id, turnId=None, type="sandbox.exec", payload={"n": number})
    events = await world.north.events(run.session_id)
    assert [event["n"] for event in events if event["type"] == "sandbox.exec"] == list(range(600))
    assert session != run.session_id


async def test_a_sandbox_call_goes_to_the_host_and_its_answer_back(world: World) -> None:
    session = await world.north.session()
    async with world.pod.connected() as channel:
        asking = asyncio.create_task(
            world.north.post(f"/v1/sessions/{session}/sandbox/exec", {"tool": "bash", "input": {"command": "ls"}})
        )
        asked = await channel.request()
        assert asked["m"] == "workspace.exec"
        assert asked["p"]["session"]["ownerId"] == session
        assert asked["p"]["session"]["activeTurnId"] is None
        assert (asked["p"]["tool"], asked["p"]["input"]) == ("bash", {"command": "ls"})
        # While it acts for the session, the host may claim what happened there.
        claim = {"sessionId": session, "turnId": None, "type": "sandbox.exec", "payload": {"tool": "bash"}}
        assert await channel.ask("event", claim) == {}
        await channel.answer(asked["id"], {"kind": "completed", "output": {"stdout": world.pod.egress_token}})
        assert await asking == {"kind": "completed", "output": {"stdout": "[nylorun token redacted]"}}


@pytest.mark.parametrize("what", ["report", "sweep", "remove"])
async def test_the_pods_own_requests_reach_the_host(world: World, what: str) -> None:
    async with world.pod.connected() as channel:
        asking = asyncio.create_task(world.north.post(f"/v1/sandbox/{what}"))
        asked = await channel.request()
        assert (asked["m"], asked["p"]) == (f"workspace.{what}", {})
        await channel.answer(asked["id"], {"a": 1})
        assert await asking == {"a": 1}


async def test_a_client_that_leaves_aborts_its_sandbox_call(world: World) -> None:
    session = await world.north.session()
    async with world.pod.connected() as channel:
        asking = asyncio.create_task(
            world.north.post(f"/v1/sessions/{session}/sandbox/read", {"tool": "read", "input": {"path": "a"}})
        )
        asked = await channel.request()
        asking.cancel()
        assert await asyncio.wait_for(channel.aborts.get(), WAIT) == asked["id"]
        await channel.answer(asked["id"], {})  # late, and ignored
        assert (await world.north.get(f"/v1/sessions/{session}"))["state"] == "idle"


async def test_a_sandbox_call_needs_a_host_with_the_feature_and_an_idle_session(world: World) -> None:
    session = await world.north.session()
    path, body = f"/v1/sessions/{session}/sandbox/exec", {"tool": "bash", "input": {}}
    assert (await world.north.http.post(path, json=body)).status_code == 503
    async with world.pod.connected(features={}):
        assert (await world.north.http.post(path, json=body)).status_code == 503
    async with world.pod.connected():
        await world.north.say(session)
        assert (await world.north.http.post(path, json=body)).status_code == 409


async def refused_with(channel: Channel, world: World, answer: dict[str, Any]) -> int:
    session = await world.north.session()
    asking = asyncio.create_task(
        world.north.http.post(f"/v1/sessions/{session}/sandbox/exec", json={"tool": "bash", "input": {}})
    )
    asked = await channel.request()
    await channel.send({"t": "res", "id": asked["id"], **answer})
    return (await asking).status_code


async def test_a_host_that_refuses_or_goes_is_told_to_the_client(world: World) -> None:
    async with world.pod.connected() as channel:
        refusal = {"ok": False, "e": {"code": "internal", "message": "x"}}
        assert await refused_with(channel, world, refusal) == 502
        assert await refused_with(channel, world, {"ok": True, "r": "no object"}) == 400
        session = await world.north.session()
        asking = asyncio.create_task(
            world.north.http.post(f"/v1/sessions/{session}/sandbox/exec", json={"tool": "bash", "input": {}})
        )
        await channel.request()
        await channel.drop()
        assert (await asking).status_code == 503


async def test_claims_need_a_run_or_a_request_that_acts_for_the_session(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        claim = {
            "sessionId": run.session_id,
            "turnId": run.turn_id,
            "type": "sandbox.state",
            "payload": {"state": "running"},
        }
        assert await code_of(channel.ask("event", claim)) == "run_not_held"
        assert await code_of(run.ask("event", **{**claim, "sessionId": "other"})) == "run_not_held"
        assert await code_of(run.ask("event", **{**claim, "type": "turn.completed"})) == "invalid"
        record = {"key": "k", "sessionId": run.session_id, "backend": "local", "image": "i", "state": "running"}
        times = {"createdAt": "t", "updatedAt": "t"}
        assert await code_of(run.ask("event", **claim, record={**record, **times})) == "invalid"
        forged = {**claim, "payload": {"state": "running", "type": "turn.completed", "seq": 1}}
        assert await run.ask("event", **forged) == {}
    state = await world.north.until("sandbox.state", run.session_id)
    assert (state["state"], state["runId"]) == ("running", run.id)
