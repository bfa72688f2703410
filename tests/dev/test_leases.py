"""Runs: who gets them, how long they are held, and what ends them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import jwt
import pytest

from pod_host.dev.agent import Agent, EnvironmentSecret
from pod_host.dev.config import Times
from tests.dev.conftest import Build, World
from tests.dev.harness import WAIT, Channel, Refused, Run


async def begun(world: World, channel: Channel, text: str = "hi") -> Run:
    """A new session's first turn, leased."""
    await world.north.say(await world.north.session(), text)
    return await channel.lease()


async def code_of(request: Any) -> str:
    with pytest.raises(Refused) as refused:
        await request
    return refused.value.code


async def test_a_grant_has_a_run_token_of_its_own_kind(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
    assert set(run.grant) == {"runId", "sessionId", "turnId", "epoch", "token", "tokenExpiresAt"}
    assert jwt.get_unverified_header(run.grant["token"])["typ"] == "nylorun-run+jwt"
    claims = jwt.decode(run.grant["token"], options={"verify_signature": False})
    assert (claims["aud"], claims["run"], claims["ses"]) == ("nylorun-gates", run.id, run.session_id)


async def test_a_turn_start_is_complete(build: Build) -> None:
    agent = Agent(
        name="whole",
        instructions="Be brief",
        environment={"A": "1"},
        environment_secrets={"TOKEN": EnvironmentSecret()},
        memory={"access": "read_only", "instructions": "m"},
        self_wake=True,
        network_allow=("example.com",),
        loop={"x": 1},
    )
    world = await build(agent)
    async with world.pod.connected() as channel:
        run = await begun(world, channel, "hello")
    start = run.start
    assert set(start) == {
        "type", "engine", "manifest", "definition", "loop", "memory", "checkpoint", "outcomes", "transcript",
        "routing", "agent", "options", "trace", "limits", "model",
    }  # fmt: skip
    assert start["type"] == "turn.start"
    assert start["manifest"]["id"] == "whole"
    assert start["memory"] == {"access": "read_only", "instructions": "m", "index": ""}
    assert set(start["checkpoint"]) == {"sessionId", "turnId", "segment", "manifestHash", "input"}
    assert start["routing"]["sandbox"]["environment"] == {"A": "1", "TOKEN": "nylorun_managed"}
    assert start["routing"]["sandbox"]["spec"]["network"]["allow"] == ["example.com"]
    assert start["agent"]["selfWake"] is True
    assert start["agent"]["sandbox"] == {"workspace": "/workspace"}
    assert set(start["limits"]) == {
        "recordEntryBytes", "modelCallBytes", "modelFileBytes", "toolAnswerBytes", "harnessStateBytes", "chunkBytes",
        "folderEntries",
    }  # fmt: skip
    assert start["model"]["contextWindow"] == 1000
    assert start["options"] == {"fixtureModel": True}


async def test_sessions_run_side_by_side_and_one_session_never_twice(world: World) -> None:
    async with world.pod.connected() as channel:
        first = await begun(world, channel)
        second = await begun(world, channel)
        assert first.session_id != second.session_id
        _, waiting = await channel.start("lease", {})
        await world.north.say(first.session_id, "more")
        await world.north.say(first.session_id, {"text": "and more"})
        await second.complete()
        assert not waiting.done()
        await first.complete()
        third = Run(channel, await asyncio.wait_for(waiting, WAIT))
        assert third.session_id == first.session_id
        assert third.checkpoint["input"] == {"kind": "messages", "messages": ["more", {"text": "and more"}]}
        assert third.checkpoint["state"] == {"v": 1}


async def test_offers_go_to_the_waiting_leases_in_order(world: World) -> None:
    async with world.pod.connected() as channel:
        waiting = [(await channel.start("lease", {}))[1] for _ in range(3)]
        for text in ("a", "b", "c"):
            await world.north.say(await world.north.session(), text)
        runs = [Run(channel, await asyncio.wait_for(lease, WAIT)) for lease in waiting]
        assert [run.checkpoint["input"] for run in runs] == ["a", "b", "c"]


async def test_another_connection_does_not_hold_the_run(world: World) -> None:
    async with world.pod.connected() as channel, world.pod.connected() as other:
        run = await begun(world, channel)
        assert await code_of(other.ask("lease.renew", {"runId": run.id})) == "run_not_held"
        assert await code_of(other.ask("transcript.read", {"runId": run.id})) == "run_not_held"


async def test_a_run_token_is_minted_anew_when_little_is_left(build: Build) -> None:
    world = await build(times=Times(token=2, token_early=2, lease=30))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        async with asyncio.timeout(WAIT):
            while True:
                renewed = await run.ask("lease.renew")
                assert renewed["ok"] is True
                if "token" in renewed:
                    break
                await asyncio.sleep(0.05)
        assert renewed["token"] != run.grant["token"]
        assert renewed["tokenExpiresAt"] > run.grant["tokenExpiresAt"]


async def test_a_fresh_token_is_not_minted_anew(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        assert await run.ask("lease.renew") == {"ok": True}


async def test_a_run_that_is_not_renewed_is_lost_and_offered_again(build: Build) -> None:
    world = await build(times=Times(lease=0.4))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        tool = run.tool_intent("bash", {"kind": "sandbox"}, {"command": "x"})
        await run.intent(tool)
        again = await channel.lease()
        assert (again.turn_id, again.segment) == (run.turn_id, run.segment)
        assert (await channel.message())["p"] == {"runId": run.id, "reason": "ownership.lost"}
        assert await code_of(run.outcome(tool, "late")) == "ownership_lost"
        assert await run.ask("lease.renew") == {"ok": False}
        assert await run.ask("lease.release", reason="ownership.lost") == {}
        assert again.grant["epoch"] == run.grant["epoch"] + 1
    lost = await world.north.until("run.lost")
    assert (lost["runId"], lost["reason"]) == (run.id, "ownership.lost")


async def test_a_released_run_is_offered_at_once(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        assert await run.ask("lease.release", reason="shutdown") == {}
        assert await code_of(run.ask("transcript.read")) == "run_not_held"
        again = await channel.lease()
        assert again.checkpoint == run.checkpoint
    kinds = [event["type"] for event in await world.north.events(run.session_id)]
    assert kinds[:5] == ["turn.queued", "run.leased", "turn.started", "run.released", "run.leased"]
    assert kinds.count("turn.started") == 1


async def test_a_lost_connections_run_waits_for_its_lease_to_lapse(build: Build) -> None:
    world = await build(times=Times(lease=1.0))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        model = run.model_intent()
        await run.intent(model, call=run.model_call())
        value = {"output": [{"type": "text", "text": "kept"}]}
        await run.outcome(model, value)
        await channel.drop()
    lost = await world.north.until("run.lost", run.session_id)
    assert lost["reason"] == "connection.lost"
    async with world.pod.connected() as channel:
        again = await channel.lease()
        assert [outcome["effectId"] for outcome in again.start["outcomes"]] == [model["effectId"]]
        assert again.start["outcomes"][0]["outcome"] == {"value": value}
        leased = [event for event in await world.north.events(run.session_id) if event["type"] == "run.leased"]
        assert len(leased) == 2


async def test_a_cancelled_turn_tells_the_run_and_keeps_nothing_of_it(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        tool = run.tool_intent("bash", {"kind": "sandbox"}, {"command": "x"})
        await run.intent(tool)
        await world.north.post(f"/v1/sessions/{run.session_id}/cancel")
        assert (await channel.message())["p"] == {"runId": run.id, "reason": "cancel"}
        assert (await world.north.turn(run.session_id))["status"] == "cancelled"
        assert await code_of(run.outcome(tool, "late")) == "turn_cancelled"
        assert await code_of(run.intent(run.model_intent(), call=run.model_call())) == "turn_cancelled"
        assert await code_of(run.complete()) == "turn_cancelled"
        assert await run.ask("lease.renew") == {"ok": True}
        # The next turn waits until this run is given up.
        await world.north.say(run.session_id, "next")
        _, waiting = await channel.start("lease", {})
        assert await run.ask("turn.failed", status="cancelled") == {"cursor": -1}
        following = Run(channel, await asyncio.wait_for(waiting, WAIT))
        assert following.checkpoint["input"] == "next"
        assert "state" not in following.checkpoint


async def test_a_cancelled_run_that_does_not_stop_is_lost_with_its_lease(build: Build) -> None:
    world = await build(times=Times(lease=0.5))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        await world.north.post(f"/v1/sessions/{run.session_id}/cancel")
        await world.north.say(run.session_id, "next")
        waiting = asyncio.create_task(channel.lease())
        while not waiting.done():
            assert (await run.ask("lease.renew"))["ok"] in (True, False)
            await asyncio.sleep(0.05)
        assert (await waiting).checkpoint["input"] == "next"


async def test_a_segment_that_passes_its_deadline_is_cancelled_and_fails(build: Build) -> None:
    world = await build(times=Times(advance=0.3))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        tool = run.tool_intent("bash", {"kind": "sandbox"}, {"command": "x"})
        await run.intent(tool)
        told = (await channel.message())["p"]
        assert (told["reason"], told["runId"]) == ("deadline", run.id)
        assert (await run.outcome(tool, {"kind": "completed", "output": 1}))["status"] == "completed"
        assert await code_of(run.intent(run.model_intent(), call=run.model_call())) == "turn_cancelled"
        await run.ask("turn.failed", status="cancelled")
    turn = await world.north.turn(run.session_id)
    assert (turn["status"], turn["error"]["code"]) == ("failed", "turn.deadline")


async def test_a_client_may_let_the_deadline_pass(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        await world.north.post(f"/v1/sessions/{run.session_id}/cancel", {"reason": "deadline"})
        assert (await channel.message())["p"]["reason"] == "deadline"
        await run.ask("lease.release", reason="shutdown")
    assert (await world.north.turn(run.session_id))["error"]["code"] == "turn.deadline"


async def test_a_turn_that_no_host_took_yet_is_cancelled_without_one(world: World) -> None:
    session = await world.north.session()
    await world.north.say(session, "a")
    await world.north.post(f"/v1/sessions/{session}/cancel")
    assert (await world.north.turn(session))["status"] == "cancelled"
    response = await world.north.http.post(f"/v1/sessions/{session}/cancel", json={})
    assert response.status_code == 409


async def test_an_offer_that_nobody_takes_is_withdrawn_and_made_again(build: Build) -> None:
    world = await build(times=Times(offer=0.2))
    session = await world.north.session()
    turn = (await world.north.say(session))["turnId"]
    first = await world.north.until("run.offer.withdrawn", session)
    assert first["turnId"] == turn
    await world.north.until("run.offer.withdrawn", session, after=first["seq"])
    async with world.pod.connected() as channel:
        assert (await channel.lease()).turn_id == turn


async def test_a_clean_stop_gives_runs_back_to_the_next_runtime(build: Build) -> None:
    world = await build()
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        stopping = asyncio.create_task(world.runtime.stop())
        assert (await channel.message())["p"]["reason"] == "shutdown"
        assert await run.ask("lease.release", reason="shutdown") == {}
        await stopping
    again = await build()
    assert again.runtime.harness_url == world.runtime.harness_url
    async with again.pod.connected() as channel:
        assert (await channel.lease()).turn_id == run.turn_id


async def test_a_fenced_hosts_waiting_lease_takes_no_run(world: World) -> None:
    async with world.pod.connected() as channel:
        _, waiting = await channel.start("lease", {})
        with pytest.raises(Refused):
            await channel.ask("lease.renew", {"runId": "none"})  # a round trip: the lease waits
        other = world.other_pod(pod_uid="pod-2")
        async with other.connected() as newer:
            turn = (await world.north.say(await world.north.session()))["turnId"]
            assert (await newer.lease()).turn_id == turn
        await other.close()
        with pytest.raises(Refused):
            await asyncio.wait_for(waiting, WAIT)
    leased = [event for event in await world.north.events() if event["type"] == "run.leased"]
    assert len(leased) == 1


async def test_a_persons_cancel_comes_before_a_deadline(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        for reason in ("deadline", "cancel"):
            await world.north.post(f"/v1/sessions/{run.session_id}/cancel", {"reason": reason})
        assert [(await channel.message())["p"]["reason"] for _ in range(2)] == ["deadline", "cancel"]
        await run.ask("turn.failed", status="cancelled")
    turn = await world.north.turn(run.session_id)
    assert turn["status"] == "cancelled"
    assert "error" not in turn


async def test_a_turn_that_cannot_start_fails_and_holds_up_no_other(world: World) -> None:
    async with world.pod.connected() as channel:
        described = world.model.descriptor
        del world.model.descriptor
        _, waiting = await channel.start("lease", {})
        broken, other = await world.north.session(), await world.north.session()
        await world.north.say(broken)
        failed = await world.north.until("turn.failed", broken)
        assert failed["error"]["code"] == "internal"
        world.model.descriptor = described
        await world.north.say(other)
        assert Run(channel, await asyncio.wait_for(waiting, WAIT)).session_id == other


def set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Runtime's clock, by two hours."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 7200)


async def test_a_clock_that_is_set_back_gives_a_run_a_token_that_is_good_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        assert await run.ask("lease.renew") == {"ok": True}
        set_back(monkeypatch)
        renewed = await run.ask("lease.renew")
        claims = jwt.decode(renewed["token"], options={"verify_signature": False})
        assert claims["iat"] <= time.time() < claims["exp"]
        assert await run.ask("lease.renew") == {"ok": True}


async def test_a_clock_that_is_set_back_keeps_no_session_from_its_next_run(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await build(times=Times(lease=0.3))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        set_back(monkeypatch)
    async with world.pod.connected() as channel:
        assert (await channel.lease()).turn_id == run.turn_id
