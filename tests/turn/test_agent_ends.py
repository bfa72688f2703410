"""How an agent used as a tool ends when it does not end well: failures, held effects, stops, and a host that is killed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.turn import Released, Reported
from tests.turn.double import TURN, Model, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_agent_tools import HELPER, cast, helped, helper_calls, manifest, results, run
from tests.turn.test_replay import hashes, until_killed

FAILURE = {"kind": "failed", "message": "No.", "retryable": False}
CALL = f"{TURN}:0:tool:step-1/0"

# --- Failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["content_policy", "auth", "context_overflow"])
async def test_a_model_failure_fails_the_call_and_not_the_turn(code: str) -> None:
    runtime = await run(helped({**FAILURE, "code": code}))
    (result,) = results(runtime)
    assert (result["kind"], result["code"]) == ("failed", f"agent.{code}")
    assert result["message"] == "The agent helper failed: No."


async def test_an_answer_that_never_fits_fails_the_call() -> None:
    schema = {"type": "object", "required": ["files"]}
    runtime = await run(helped(*[text("Two.")] * 3, used={"outputSchema": schema}))
    assert results(runtime)[0]["code"] == "agent.output.invalid"


async def test_a_broken_output_schema_fails_the_call() -> None:
    runtime = await run(helped(used={"outputSchema": {"type": "nonsense"}}))
    assert results(runtime)[0]["code"] == "agent.output.invalid_schema"


async def test_it_has_so_many_answers_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AGENT_STEPS", 3)
    runtime = await run(helped(*[calls(("bash", {"command": "ls"}))] * 9))
    assert results(runtime)[0]["code"] == "agent.too_many_steps"
    assert len(helper_calls(runtime)) == 3


async def test_one_that_takes_all_of_a_segments_time_fails_its_call_and_not_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Core would end the segment at its deadline, and all of the turn with it."""
    monkeypatch.setattr(limits, "AGENTS_SECONDS", 0.0)
    runtime = await run(helped(*[calls(("bash", {"command": "ls"}))] * 9))
    assert results(runtime)[0]["code"] == "agent.too_slow"
    assert len(helper_calls(runtime)) == 1


async def test_its_long_answer_is_cut_to_what_a_result_may_hold() -> None:
    runtime = await run(helped(text("x" * 400_000)))
    output = results(runtime)[0]["output"]
    assert len(output) <= limits.STEP_RESULT_BYTES
    assert "characters omitted" in output


async def test_a_definition_that_changed_under_a_replay_is_drift_and_ends_the_turn() -> None:
    runtime, sandbox = helped(text("Yes.")), Sandbox()
    points = (await run(helped(text("Yes.")))).world.points
    recorded = [number for number, name in enumerate(points) if name == "effect.outcome answered"]
    await until_killed(runtime, sandbox, recorded[1])  # of the agent's own model call
    assert list(runtime.journal)[-1] == f"{TURN}:0:model:step-1/0/step-1"
    runtime.manifest["tools"][0]["agent"]["instructions"] = "You are another HELPER."
    assert await runtime.turn(sandbox).run() == Reported("failed")
    assert runtime.outputs[0][1]["thrown"]["code"] == "effect_drift"


async def test_a_full_window_is_compacted_and_only_in_its_own_conversation() -> None:
    overflow = {**FAILURE, "code": "context_overflow"}

    def helper(call: JsonObject, effect_id: str) -> Json:
        said = str(call["prompt"])
        if "/summary-" in effect_id:
            return text("Looked twice.")
        if "<summary>" in said:
            return text("Yes.")
        return overflow if said.count("tool-result") > 1 else calls(("bash", {"command": f"ls {len(said)}"}))

    model = cast(script(calls(("helper", {"message": "Look."})), text("Done.")), helper=helper)
    runtime = Runtime(lambda call, effect_id: (helper if "/summary-" in effect_id else model)(call, effect_id))
    runtime.manifest = manifest(HELPER)
    await run(runtime)
    assert results(runtime)[0]["output"] == "Yes."
    (summary,) = [row.intent for row in runtime.journal.values() if row.intent.get("purpose") == "summary"]
    assert summary["effectId"].startswith(f"{TURN}:0:model:step-1/0/step-3/summary-overflow")
    assert not any("compaction" in update for update in runtime.outputs[0][1]["transcript"])


# --- Beside one another ------------------------------------------------------------------------------------------------


async def test_agents_of_one_step_run_beside_one_another() -> None:
    both = asyncio.Event()
    asked: list[str] = []

    async def meet(name: str) -> None:
        asked.append(name)
        if len(asked) == 2:
            both.set()
        await both.wait()

    def at_gate(call: JsonObject) -> Any:
        prompt = call["prompt"]
        return meet("helper") if "HELPER" in prompt[0]["content"][0]["text"] else None

    own = calls(("helper", {"message": "One."}), ("helper", {"message": "Two."}))
    runtime = await run(helped(text("Yes."), own=own, at_gate=at_gate))
    assert [result["output"] for result in results(runtime)] == ["Yes.", "Yes."]
    assert f"{TURN}:0:model:step-1/1/step-1" in runtime.journal


async def test_so_many_agents_of_one_step_run_at_once_and_the_others_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "AGENTS_AT_ONCE", 2)
    most = 0
    running = 0

    async def count() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1

    def at_gate(call: JsonObject) -> Any:
        return count() if "HELPER" in call["prompt"][0]["content"][0]["text"] else None

    own = calls(*[("helper", {"message": str(n)}) for n in range(5)])
    runtime = await run(helped(text("Yes."), own=own, at_gate=at_gate))
    assert [result["output"] for result in results(runtime)] == ["Yes."] * 5
    assert most == 2


# --- Held effects ------------------------------------------------------------------------------------------------------


class Policy:
    def __init__(self, status: str) -> None:
        self.status: str | None = status

    def __call__(self, intent: JsonObject) -> str | None:
        return self.status if intent.get("input") == {"command": "rm"} else None


@pytest.mark.parametrize(("status", "ending"), [("pending", "waiting"), ("uncertain", "uncertain")])
async def test_a_held_call_of_an_agent_holds_the_segment_and_the_others_end(status: str, ending: str) -> None:
    policy = Policy(status)
    own = calls(("helper", {"message": "Look."}), ("bash", {"command": "own"}))
    runtime = helped(calls(("bash", {"command": "rm"})), text("Yes."), own=own, hold=policy)
    sandbox = Sandbox()
    assert await runtime.turn(sandbox).run() == Reported(ending)  # type: ignore[arg-type]
    ((method, output),) = runtime.outputs
    assert (method, output["effectIds"]) == ("turn.waiting", [f"{TURN}:0:tool:step-1/0/step-1/0"])
    assert sandbox.started == [("bash", {"command": "own"})]
    assert CALL not in runtime.journal
    policy.status = None
    await run(runtime, sandbox, type="approval.answer")
    assert [arguments["command"] for _, arguments in sandbox.started] == ["own", "rm"]
    assert [result["kind"] for result in results(runtime)] == ["completed", "completed"]
    assert len(helper_calls(runtime)) == 2


async def test_calls_that_wait_for_a_person_are_named_before_those_of_unknown_fate() -> None:
    def hold(intent: JsonObject) -> str | None:
        return {"rm": "pending", "mv": "uncertain"}.get((intent.get("input") or {}).get("command", ""))

    own = calls(("bash", {"command": "mv"}), ("helper", {"message": "Look."}))
    runtime = helped(calls(("bash", {"command": "rm"})), own=own, hold=hold)
    assert await runtime.turn(Sandbox()).run() == Reported("waiting")
    assert runtime.outputs[0][1]["effectIds"] == [f"{TURN}:0:tool:step-1/1/step-1/0"]


# --- Stops -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("cancel", Reported("cancelled")),
        ("deadline", Reported("cancelled")),
        ("shutdown", Released("shutdown")),
        ("ownership.lost", Released("ownership.lost")),
    ],
)
async def test_a_stop_stops_the_agent_too(reason: Any, ending: Any) -> None:
    runtime = helped(calls(("bash", {"command": "sleep"})), text("Yes."))
    sandbox = Sandbox(held={"bash"})
    turn = runtime.turn(sandbox)
    running = asyncio.create_task(turn.run())
    await asyncio.wait_for(sandbox.waiting.wait(), 10)
    turn.stop(reason)
    assert await asyncio.wait_for(running, 10) == ending
    assert sandbox.aborted == ["bash"]
    assert CALL not in runtime.journal
    if reason == "shutdown":  # the next host goes on with it, and runs nothing twice
        sandbox.held.clear()
        await run(runtime, sandbox)
        assert len(sandbox.started) == 1
        assert results(runtime)[0]["output"] == "Yes."


# --- Kills -------------------------------------------------------------------------------------------------------------

POINTS = 84


def everything() -> Runtime:
    """Two agents beside one another and beside a command; one uses a third."""
    inner: JsonObject = {"name": "inner", "agent": {"instructions": "You are INNER."}}
    outer: JsonObject = {"name": "outer", "agent": {"instructions": "You are OUTER.", "tools": [inner]}}
    model: Model = cast(
        script(
            calls(("outer", {"message": "Go."}), ("helper", {"message": "Go."}), ("bash", {"command": "own"})),
            text("Done."),
        ),
        inner=script(calls(("bash", {"command": "inner"})), text("Inner done.")),
        outer=script(calls(("inner", {"message": "Go on."})), text("Outer done.")),
        helper=script(calls(("edit", {"path": "x"}), ("bash", {"command": "helper"})), text("Helper done.")),
    )
    return Runtime(model, manifest=manifest(HELPER, outer))


async def test_the_undisturbed_turn_passes_fewer_points_than_are_tried() -> None:
    runtime = everything()
    await run(runtime, Sandbox(world=runtime.world))
    assert len(runtime.world.points) <= POINTS
    assert [result["output"] for result in results(runtime)][:2] == ["Outer done.", "Helper done."]


@pytest.mark.parametrize(
    "at", [*((at,) for at in range(POINTS)), *((at, again) for at in range(3, POINTS, 9) for again in range(2, 60, 9))]
)
async def test_a_turn_cut_off_at_any_point_is_finished_by_the_next_host(at: tuple[int, ...]) -> None:
    undisturbed = everything()
    await run(undisturbed)
    runtime, sandbox = everything(), Sandbox()
    for point in at:
        if not runtime.outputs:
            await until_killed(runtime, sandbox, point)
    if not runtime.outputs:
        await run(runtime, sandbox)
    assert [method for method, _ in runtime.outputs] == ["turn.completed"]
    assert all(row.status == "completed" for row in runtime.journal.values())
    assert len(sandbox.started) == len({str(call) for call in sandbox.started}), "a command ran twice"
    assert runtime.journal.keys() == undisturbed.journal.keys()
    outcomes: list[Json] = [(row.outcome or {}).get("value") for row in runtime.journal.values()]
    if not any(isinstance(value, dict) and value.get("code") == "tool.interrupted" for value in outcomes):
        assert hashes(runtime) == hashes(undisturbed)
        assert results(runtime) == results(undisturbed)


async def test_a_call_that_ended_is_not_gone_through_again() -> None:
    runtime, undisturbed = (helped(calls(("bash", {"command": "ls"})), text("Yes.")) for _ in range(2))
    await run(undisturbed, Sandbox(world=undisturbed.world))
    sandbox = Sandbox()
    await until_killed(runtime, sandbox, undisturbed.world.points.index("turn.completed asked"))
    before = len(runtime.requests)
    runtime.manifest["tools"][0]["agent"]["instructions"] = "You are another HELPER."  # nobody asks it
    await run(runtime, sandbox)
    assert [method for method, _ in runtime.requests[before:]] == ["transcript.read", "turn.completed"]
