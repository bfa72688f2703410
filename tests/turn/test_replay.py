"""A turn whose host dies at any point ends as it would have, and nothing that was completed runs again (v5, section 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pod_host.contract.base import JsonObject
from pod_host.contract.effects import tool_failure
from pod_host.turn import Reported
from tests.turn.double import TURN, Runtime, World, calls, script, text
from tests.turn.sandbox_double import Sandbox

OVERLOADED = {"kind": "failed", "code": "overloaded", "message": "busy", "retryable": True, "retryAfterMs": 0}
ANSWERS = script(
    calls(("bash", {"command": "one"}), ("nonsense", {}), ("read", {"path": "two"}), before="I look."),
    calls(("bash", {"command": "three"}), ("edit", {"path": "x"})),
    text("Done."),
)


def model(call: JsonObject, effect_id: str) -> JsonObject:
    """The first call of step 2 fails, and may be asked again."""
    if effect_id.endswith("step-2"):
        return OVERLOADED
    return ANSWERS(call, effect_id)  # type: ignore[no-any-return]


EFFECTS = {
    f"{TURN}:0:{effect}"
    for effect in (
        "model:step-1",
        "tool:step-1/0",
        "tool:step-1/2",
        "model:step-2",
        "model:step-2~2",
        "tool:step-2/0",
        "model:step-3",
    )
}


def hashes(runtime: Runtime) -> dict[str, str]:
    return {effect_id: row.request_hash for effect_id, row in runtime.journal.items()}


async def undisturbed() -> Runtime:
    runtime = Runtime(model)
    assert await runtime.turn(Sandbox(world=runtime.world)).run() == Reported("completed")
    return runtime


async def until_killed(runtime: Runtime, sandbox: Sandbox, at: int, **members: Any) -> None:
    """Run the turn until the host dies at point ``at`` (or the turn is over before). ``members``: as of `Runtime.turn`."""
    runtime.world = sandbox.world = World(at, hang=True)
    running = asyncio.create_task(runtime.turn(sandbox, **members).run())
    dying = asyncio.create_task(runtime.world.reached.wait())
    await asyncio.wait({running, dying}, return_when=asyncio.FIRST_COMPLETED)
    for _ in range(50):  # what runs beside the point comes to its own standstill
        await asyncio.sleep(0)
    dying.cancel()
    running.cancel()
    await asyncio.wait({running, dying})
    runtime.world = sandbox.world = World()


def kills() -> Iterator[tuple[int, ...]]:
    yield from ((first,) for first in range(48))
    yield from ((first, second) for first in range(1, 48, 5) for second in range(2, 48, 5))


async def test_the_undisturbed_turn_passes_fewer_points_than_are_tried() -> None:
    runtime = await undisturbed()
    assert len(runtime.world.points) <= 48
    assert set(runtime.journal) == EFFECTS


@pytest.mark.parametrize("at", list(kills()))
async def test_a_turn_cut_off_at_any_point_is_finished_by_the_next_host(at: tuple[int, ...]) -> None:
    expected = hashes(await undisturbed())
    runtime = Runtime(model)
    sandbox = Sandbox()
    for point in at:
        if not runtime.outputs:
            await until_killed(runtime, sandbox, point)
    if not runtime.outputs:
        assert await runtime.turn(sandbox).run() == Reported("completed")

    assert [method for method, _ in runtime.outputs] == ["turn.completed"]
    assert set(runtime.journal) == EFFECTS
    assert all(row.status == "completed" for row in runtime.journal.values())
    assert len(sandbox.started) == len({str(call) for call in sandbox.started}), "a call ran twice"
    assert [entry["kind"] for entry in runtime.transcript] == [
        "input",
        *["candidate", "tool-results"] * 2,
        "candidate",
        "final",
    ]
    results = [result for entry in runtime.transcript for result in entry.get("results", [])]
    assert [result["toolName"] for result in results] == ["bash", "nonsense", "read", "bash", "edit"]
    assert [result.get("code") for result in results[1::3]] == ["tool.unknown", "tool.invalid-input"]
    if not any(result.get("code") == "tool.interrupted" for result in results):
        assert hashes(runtime) == expected


async def test_a_replay_asks_neither_core_nor_the_gate_for_what_is_recorded() -> None:
    runtime = Runtime(model)
    sandbox = Sandbox()
    points = (await undisturbed()).world.points
    await until_killed(runtime, sandbox, points.index("turn.completed asked"))
    before = (len(runtime.gate_calls), len(sandbox.started), len(runtime.asked("effect.intent")))
    assert await runtime.turn(sandbox).run() == Reported("completed")
    assert (len(runtime.gate_calls), len(sandbox.started), len(runtime.asked("effect.intent"))) == before


async def test_the_replay_of_a_retryable_failure_does_not_wait_for_it() -> None:
    slow = {**OVERLOADED, "retryAfterMs": 3_600_000}
    runtime = Runtime(lambda call, effect_id: slow if effect_id.endswith("step-1") else text("Hi"))
    running = asyncio.create_task(runtime.turn().run())
    await runtime.settled.wait()
    running.cancel()
    await asyncio.wait({running})
    assert await runtime.turn().run() == Reported("completed")


async def test_a_recorded_effect_with_another_hash_is_drift() -> None:
    runtime = Runtime(model)
    await until_killed(runtime, Sandbox(), 20)
    runtime.manifest = {**runtime.manifest, "instructions": "Be someone else."}
    assert await runtime.turn(Sandbox()).run() == Reported("failed")
    assert runtime.outputs[0][1]["thrown"]["code"] == "effect_drift"


async def test_the_value_that_core_gives_back_is_the_one_that_is_used() -> None:
    def redact(value: object) -> object:
        of_tool = isinstance(value, dict) and value.get("kind") == "completed"
        return {"kind": "completed", "output": "[redacted]"} if of_tool else value

    runtime = Runtime(script(calls(("bash", {"command": "secret"})), text("Done.")), redact=redact)
    await runtime.turn(Sandbox()).run()
    assert runtime.transcript[2]["results"][0]["output"] == "[redacted]"


async def test_an_intent_that_is_answered_completed_runs_nothing() -> None:
    runtime = Runtime(script(calls(("bash", {"command": "rm"})), text("Done.")))
    served = runtime._serve

    def serve(method: str, params: JsonObject) -> JsonObject:
        if method == "effect.intent" and params["effect"]["kind"] == "tool":
            return {"status": "completed", "outcome": {"value": tool_failure("tool.denied", "not this one")}}
        return served(method, params)

    runtime._serve = serve  # type: ignore[method-assign]
    sandbox = Sandbox()
    assert await runtime.turn(sandbox).run() == Reported("completed")
    assert sandbox.started == []
    assert runtime.transcript[2]["results"][0]["code"] == "tool.denied"
