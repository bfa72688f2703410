"""A turn from end to end, as a harness drives it over real sockets."""

from __future__ import annotations

from tests.dev.conftest import World


async def test_a_turn_runs_from_the_message_to_its_output(world: World) -> None:
    session = await world.north.session()
    async with world.pod.connected() as channel:
        await world.north.say(session, "list the files")
        run = await channel.lease()
        assert run.checkpoint["input"] == "list the files"
        assert run.start["transcript"] == {"cursor": -1}
        assert await run.ask("transcript.read") == {"cursor": -1, "entries": []}

        model = run.model_intent()
        call = run.model_call()
        assert await run.intent(model, call=call) == {"status": "execute"}
        response = await world.pod.http.post(
            f"{world.runtime.gates_url}/nylorun/v1/model-calls",
            json={"effectId": model["effectId"], "invocationId": "step-1", "call": call},
            headers={"Authorization": f"Bearer {run.grant['token']}", "Idempotency-Key": model["effectId"]},
        )
        outcome = response.json()["outcome"]
        assert response.status_code == 200
        assert await run.outcome(model, outcome) == {"status": "completed", "outcome": {"value": outcome}}

        tool = run.tool_intent("bash", {"kind": "sandbox"}, {"command": "ls"})
        answer = await run.intent(tool)
        assert answer["status"] == "execute"
        assert answer["traceparent"].startswith("00-" + run.start["trace"]["traceparent"].split("-")[1])
        await run.outcome(tool, {"kind": "completed", "output": {"exitCode": 0, "stdout": "a", "stderr": ""}})

        entries = [run.input_entry(), run.final_entry()]
        ended = await run.complete("a", transcript=[{"keep": 0, "entries": entries, "length": 2}])
        assert ended["cursor"] > 0

    turn = await world.north.turn(session)
    assert (turn["status"], turn["output"]) == ("completed", "a")
    assert (await world.north.get(f"/v1/sessions/{session}/transcript")) == {
        "cursor": ended["cursor"],
        "entries": entries,
    }
    kinds = [event["type"] for event in await world.north.events(session)]
    assert kinds == [
        "turn.queued",
        "run.leased",
        "turn.started",
        "model.started",
        "message.assistant",
        "tool.started",
        "tool.completed",
        "turn.completed",
    ]
    assert (await world.north.get("/v1/warnings"))["warnings"] == []
