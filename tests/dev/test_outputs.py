"""How a segment ends, and what stays of it."""

from __future__ import annotations

from typing import Any

import pytest

from pod_host.contract.turn_start import HarnessLimits
from tests.dev.conftest import Build, World
from tests.dev.harness import Json, Run
from tests.dev.test_leases import begun, code_of


def edit(run: Run, keep: int, texts: list[str]) -> dict[str, Json]:
    return {"keep": keep, "entries": [run.input_entry(text) for text in texts], "length": keep + len(texts)}


async def transcript(world: World, session_id: str) -> list[str]:
    answer = await world.north.get(f"/v1/sessions/{session_id}/transcript")
    return [entry["event"]["text"] for entry in answer["entries"]]


async def test_an_output_that_is_asked_twice_gets_the_same_answer(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        first = await run.complete(transcript=[edit(run, 0, ["a"])])
        assert await run.complete(transcript=[edit(run, 0, ["a"])]) == first
        assert await code_of(run.ask("turn.failed", status="cancelled")) == "run_not_held"
    kinds = [event["type"] for event in await world.north.events(run.session_id)]
    assert kinds.count("turn.completed") == 1


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("turn.completed", {"status": "failed", "error": {"code": "a", "message": "b"}}),
        ("turn.failed", {"status": "completed"}),
        ("turn.failed", {"status": "failed"}),
        ("turn.failed", {}),
        ("turn.paused", {"status": "paused"}),
        ("checkpoint", {"status": "waiting"}),
        ("turn.waiting", {"status": "waiting", "state": {}}),
        ("turn.waiting", {"status": "waiting", "state": {}, "effectIds": ["x"]}),
        ("turn.completed", {"status": "completed", "error": None}),
        (
            "turn.completed",
            {"status": "completed", "transcript": [{"keep": 0, "entries": [{"kind": []}], "length": 1}]},
        ),
        (
            "turn.completed",
            {"status": "completed", "transcript": [{"keep": 0, "entries": [{"kind": "x"}], "length": 1}]},
        ),
    ],
)
async def test_an_output_that_breaks_the_contract_is_invalid_and_ends_nothing(
    world: World, method: str, params: dict[str, Any]
) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        assert await code_of(run.ask(method, **params)) == "invalid"
        assert (await run.complete())["cursor"] == -1


async def test_a_yielded_turn_goes_on_in_the_next_segment(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect = run.model_intent()
        await run.intent(effect, call=run.model_call())
        await run.outcome(effect, "x")
        answer = await run.ask("checkpoint", status="yielded", state={"n": 1}, transcript=[edit(run, 0, ["a"])])
        again = await channel.lease()
        assert (again.turn_id, again.segment) == (run.turn_id, 1)
        assert again.checkpoint["input"] == {"kind": "continue"}
        assert again.checkpoint["state"] == {"n": 1}
        assert again.start["outcomes"] == []
        assert again.start["transcript"] == {"cursor": answer["cursor"]}
        await again.complete(transcript=[edit(again, 1, ["b"])])
    assert await transcript(world, run.session_id) == ["a", "b"]
    assert [event["segment"] for event in await world.north.events() if event["type"] == "turn.started"] == [0, 1]


@pytest.mark.parametrize("ending", ["failed", "thrown", "cancelled"])
async def test_a_turn_that_does_not_complete_leaves_the_session_as_it_was(world: World, ending: str) -> None:
    async with world.pod.connected() as channel:
        first = await begun(world, channel)
        before = await first.complete(state={"n": 1}, transcript=[edit(first, 0, ["kept"])])
        await world.north.say(first.session_id, "second")
        run = await channel.lease()
        await run.ask("checkpoint", status="yielded", state={"n": 2}, transcript=[edit(run, 1, ["dropped"])])
        run = await channel.lease()
        endings: dict[str, dict[str, Json]] = {
            "failed": {"status": "failed", "error": {"code": "model.auth", "message": "no key"}},
            "thrown": {"thrown": {"message": "KeyError"}},
            "cancelled": {"status": "cancelled"},
        }
        assert await run.ask("turn.failed", **endings[ending]) == before
        await world.north.say(first.session_id, "third")
        third = await channel.lease()
        assert third.checkpoint["state"] == {"n": 1}
        assert third.start["transcript"] == before
    assert await transcript(world, first.session_id) == ["kept"]
    turn = await world.north.turn(first.session_id, 1)
    assert turn["status"] == ("cancelled" if ending == "cancelled" else "failed")
    if ending != "cancelled":
        assert turn["error"]["code"] == {"failed": "model.auth", "thrown": "harness.thrown"}[ending]


async def test_an_edit_that_does_not_fit_fails_the_turn(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        assert await run.complete(transcript=[edit(run, 0, ["a"]), edit(run, 5, ["b"])]) == {"cursor": -1}
    turn = await world.north.turn(run.session_id)
    assert (turn["status"], turn["error"]["code"]) == ("failed", "invalid")
    assert await transcript(world, run.session_id) == []


async def test_too_much_state_fails_the_turn_and_too_large_an_edit_is_refused(build: Build) -> None:
    world = await build(limits=HarnessLimits(harness_state_bytes=20, record_entry_bytes=300))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        assert await code_of(run.complete(transcript=[edit(run, 0, ["x" * 300])])) == "limit_exceeded"
        await run.complete(state="x" * 20)
    turn = await world.north.turn(run.session_id)
    assert (turn["status"], turn["error"]["code"]) == ("failed", "limit_exceeded")
    assert "harnessStateBytes is 20" in turn["error"]["message"]


async def test_a_compaction_is_recorded_with_its_facts(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        summary = run.model_intent("sum", purpose="summary")
        await run.intent(summary, call=run.model_call())
        await run.outcome(summary, "the story so far")
        facts = {"trigger": "threshold", "tokensBefore": 9, "tokensAfter": 2, "summaryEffectIds": [summary["effectId"]]}
        entry = {"kind": "compaction", "turnId": run.turn_id, "stepId": "s", "summary": "x", **facts}
        del entry["summaryEffectIds"]
        update = {"keep": 0, "entries": [entry], "length": 1, "kind": "compaction", "compaction": facts}
        await run.complete(transcript=[update])
    compacted = await world.north.until("context.compacted", run.session_id)
    assert {name: compacted[name] for name in facts} == facts


@pytest.mark.parametrize("fault", ["no summary", "not completed", "unknown", "unmarked"])
async def test_a_compaction_by_other_calls_fails_the_turn(world: World, fault: str) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect = run.model_intent("sum", **({} if fault == "no summary" else {"purpose": "summary"}))
        await run.intent(effect, call=run.model_call())
        if fault != "not completed":
            await run.outcome(effect, "x")
        named = [effect["effectId"] if fault != "unknown" else f"{run.turn_id}:0:model:other"]
        facts = {"trigger": "threshold", "tokensBefore": 9, "tokensAfter": 2, "summaryEffectIds": named}
        marked = {} if fault == "unmarked" else {"kind": "compaction"}
        await run.complete(transcript=[{**edit(run, 0, ["a"]), "compaction": facts, **marked}])
    turn = await world.north.turn(run.session_id)
    assert (turn["status"], turn["error"]["code"]) == ("failed", "invalid")


async def test_a_waiting_segment_keeps_nothing_and_a_cancel_ends_it(build: Build) -> None:
    world = await build()
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        model = run.model_intent()
        await run.intent(model, call=run.model_call())
        await run.ask("effect.outcome", effectId=model["effectId"], error="lost")
        await run.ask(
            "turn.waiting",
            status="uncertain",
            effectIds=[model["effectId"]],
            state={"n": 1},
            transcript=[edit(run, 0, ["a"])],
        )
        assert await transcript(world, run.session_id) == []
        await world.north.post(f"/v1/sessions/{run.session_id}/cancel")
        session = await world.north.get(f"/v1/sessions/{run.session_id}")
        assert (session["state"], session["turns"][0]["status"], session["interactions"]) == ("idle", "cancelled", [])
        response = await world.north.http.post(
            f"/v1/sessions/{run.session_id}/interactions/{model['effectId']}", json={"approved": True}
        )
        assert response.status_code == 409


async def test_an_output_without_state_or_status_is_taken_with_a_warning(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        await run.ask("turn.completed", output="x")
    assert (await world.north.turn(run.session_id))["status"] == "completed"
    texts = " ".join(warning["text"] for warning in (await world.north.get("/v1/warnings"))["warnings"])
    assert "without a status" in texts
    assert "without state" in texts
