"""Every reason to stop, at every point of a turn (v5, section 8)."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest

from pod_host import limits
from pod_host.contract.work import CancelReason
from pod_host.turn import Released, Reported, Turn
from pod_host.turn.endings import Stopped
from pod_host.turn.stop import Stop
from tests.turn.double import TURN, Runtime, World, calls, script, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_replay import EFFECTS, model

REASONS: tuple[CancelReason, ...] = get_args(CancelReason)
POINTS = range(46)
GIVEN_BACK: dict[str, list[Released]] = {
    "shutdown": [Released("shutdown")],
    "ownership.lost": [Released("ownership.lost")],
}


@pytest.fixture(autouse=True)
def _short_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STOP_SECONDS", 0.02)


async def stopped_at(runtime: Runtime, sandbox: Sandbox, reason: CancelReason, at: int, *, hang: bool) -> object:
    """The ending of a turn that is stopped at point ``at``. ``hang``: whoever was asked then never answers."""
    turns: list[Turn] = []
    runtime.world = sandbox.world = World(at, lambda: turns[0].stop(reason), hang=hang)
    turns.append(runtime.turn(sandbox))
    ending = await turns[0].run()
    runtime.world = sandbox.world = World()
    return ending


@pytest.mark.parametrize("hang", [False, True])
@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("at", POINTS)
async def test_a_stop_at_any_point_ends_the_turn_in_the_one_way_of_its_reason(
    at: int, reason: CancelReason, hang: bool
) -> None:
    runtime, sandbox = Runtime(model), Sandbox()
    ending = await stopped_at(runtime, sandbox, reason, at, hang=hang)
    over = bool(runtime.outputs) and runtime.outputs[0][0] == "turn.completed"
    if reason in ("cancel", "deadline"):
        # A core that hangs takes no output either: then nobody is there.
        assert ending in ([Released("connection.lost")] if hang else [Reported("cancelled"), Reported("completed")])
        return
    assert ending in GIVEN_BACK[reason] or (over and ending == Reported("completed"))
    if not runtime.outputs:
        assert await runtime.turn(sandbox).run() == Reported("completed")
    assert set(runtime.journal) == EFFECTS


@pytest.mark.parametrize("at", POINTS)
async def test_after_a_loss_of_ownership_nothing_is_written(at: int) -> None:
    runtime, sandbox = Runtime(model), Sandbox()
    sent: list[int] = []
    turns: list[Turn] = []

    def lose() -> None:
        turns[0].stop("ownership.lost")
        sent.append(runtime.sent)

    runtime.world = sandbox.world = World(at, lose)
    turns.append(runtime.turn(sandbox))
    ending = await turns[0].run()
    if sent and ending != Reported("completed"):
        assert runtime.sent == sent[0]
        assert runtime.cancels == []


@pytest.mark.parametrize(
    ("reason", "reported"), [("cancel", False), ("deadline", True), ("shutdown", True), ("ownership.lost", False)]
)
async def test_a_running_command_is_aborted_and_its_output_so_far_reported_where_it_counts(
    reason: CancelReason, reported: bool
) -> None:
    runtime = Runtime(script(calls(("bash", {"command": "sleep"}), ("read", {"path": "a"})), text("Done.")))
    sandbox = Sandbox(held={"bash"})
    turn = runtime.turn(sandbox)
    running = asyncio.create_task(turn.run())
    await sandbox.waiting.wait()
    turn.stop(reason)
    await running
    assert sandbox.aborted == ["bash"]
    outcome = runtime.journal[f"{TURN}:0:tool:step-1/0"].outcome
    assert (outcome is not None) == reported
    if reported and outcome is not None:
        assert outcome["value"]["output"]["exitCode"] == 130


async def test_a_command_that_does_not_end_is_left_unreported() -> None:
    runtime = Runtime(script(calls(("bash", {"command": "sleep"})), text("Done.")))
    sandbox = Sandbox(held={"bash"}, stubborn=True)
    turn = runtime.turn(sandbox)
    running = asyncio.create_task(turn.run())
    await sandbox.waiting.wait()
    turn.stop("shutdown")
    assert await running == Released("shutdown")
    assert runtime.journal[f"{TURN}:0:tool:step-1/0"].status == "invoking"


@pytest.mark.parametrize(
    ("reason", "cancelled"), [("cancel", True), ("deadline", True), ("shutdown", False), ("ownership.lost", False)]
)
async def test_a_gate_call_is_cancelled_or_left_to_the_next_owner(reason: CancelReason, cancelled: bool) -> None:
    asked = asyncio.Event()

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    runtime = Runtime(script(text("Hi")), at_gate=lambda call: hang())
    turn = runtime.turn()
    running = asyncio.create_task(turn.run())
    await asked.wait()
    turn.stop(reason)
    await running
    assert runtime.cancels == ([f"{TURN}:0:model:step-1"] if cancelled else [])
    assert runtime.asked("effect.outcome") == []
    if not cancelled:
        runtime.at_gate = None
        assert await runtime.turn().run() == Reported("completed")
        assert runtime.gate_calls == [f"{TURN}:0:model:step-1"] * 2


async def test_a_call_that_was_not_started_says_so_instead_of_running() -> None:
    runtime = Runtime(script(calls(("bash", {"command": "one"})), text("Done.")))
    sandbox = Sandbox()
    turns: list[Turn] = []
    served = runtime._serve

    def serve(method: str, params: dict[str, object]) -> dict[str, object]:
        if method == "effect.intent" and ":tool:" in str(params):
            turns[0].stop("shutdown")
        return served(method, params)

    runtime._serve = serve  # type: ignore[method-assign]
    turns.append(runtime.turn(sandbox))
    assert await turns[0].run() == Released("shutdown")
    assert sandbox.started == []
    assert runtime.journal[f"{TURN}:0:tool:step-1/0"].outcome == {
        "value": {
            "kind": "failed",
            "code": "tool.interrupted",
            "message": "The call was not started: the turn was being stopped.",
        }
    }


async def test_a_wait_before_another_model_attempt_ends_with_the_turn() -> None:
    busy = {"kind": "failed", "code": "overloaded", "message": "busy", "retryable": True, "retryAfterMs": 3_600_000}
    runtime = Runtime(lambda call, effect_id: busy)
    turn = runtime.turn()
    running = asyncio.create_task(turn.run())
    await runtime.settled.wait()
    turn.stop("cancel")
    assert await running == Reported("cancelled")


async def test_the_first_reason_stays_unless_ownership_is_lost() -> None:
    stop = Stop()
    stop.stop("shutdown")
    stop.stop("cancel")
    assert stop.reason == "shutdown"
    stop.stop("ownership.lost")
    stop.stop("cancel")
    with pytest.raises(Stopped, match=r"ownership\.lost"):
        stop.check()


async def test_a_failure_beside_does_not_hide_the_reason_that_comes_after() -> None:
    stop = Stop()
    stop.stop("failure")
    stop.stop("cancel")
    assert stop.reason == "cancel"


async def test_work_that_may_finish_is_still_given_up_when_ownership_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STOP_SECONDS", 3600.0)
    stop = Stop()
    given_up = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    racing = asyncio.create_task(stop.race(work, frozenset({"shutdown"})))
    await asyncio.sleep(0)
    stop.stop("shutdown")
    await asyncio.sleep(0)
    stop.stop("ownership.lost")
    with pytest.raises(Stopped):
        await racing
    assert given_up.is_set()
