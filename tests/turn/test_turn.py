"""A turn's ends, as core sees them."""

from __future__ import annotations

from typing import NoReturn

import pytest

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.errors import RuntimeRefusal
from pod_host.turn import Released, Reported, TranscriptCache
from tests.turn.double import TURN, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox


async def test_an_answer_without_calls_completes_the_turn() -> None:
    runtime = Runtime(script({"output": [{"type": "text", "text": "Hi"}, {"type": "text", "text": " there."}]}))
    assert await runtime.turn(message={"text": "Hello", "metadata": {"from": "ada"}}).run() == Reported("completed")
    assert runtime.outputs == [
        (
            "turn.completed",
            {
                "runId": "run_1",
                "status": "completed",
                "output": "Hi there.",
                "state": {"v": 1, "turnId": TURN, "steps": 1},
                "transcript": runtime.outputs[0][1]["transcript"],
            },
        )
    ]
    assert [entry["kind"] for entry in runtime.transcript] == ["input", "candidate", "final"]
    assert runtime.transcript[0]["event"] == {"kind": "user-message", "text": "Hello", "metadata": {"from": "ada"}}
    assert runtime.transcript[2] == {
        "kind": "final",
        "turnId": TURN,
        "stepId": f"{TURN}.step-1",
        "output": "Hi there.",
    }


async def test_effects_are_named_by_their_place_in_the_turn() -> None:
    runtime = Runtime(script(calls(("bash", {"command": "ls"}), ("read", {"path": "a"})), text("Done.")))
    await runtime.turn(Sandbox()).run()
    assert list(runtime.journal) == [
        f"{TURN}:0:model:step-1",
        f"{TURN}:0:tool:step-1/0",
        f"{TURN}:0:tool:step-1/1",
        f"{TURN}:0:model:step-2",
    ]
    assert runtime.journal[f"{TURN}:0:tool:step-1/1"].intent == {
        "effectId": f"{TURN}:0:tool:step-1/1",
        "sessionId": "ses_1",
        "turnId": TURN,
        "agentId": "coder",
        "manifestHash": "sha256:" + "ab" * 32,
        "kind": "tool",
        "toolName": "read",
        "target": {"kind": "sandbox"},
        "input": {"path": "a"},
        "context": {"callId": "c1", "invocationId": f"{TURN}.0.step-1.1", "stepId": f"{TURN}.step-1"},
    }
    assert runtime.journal[f"{TURN}:0:model:step-1"].intent["context"] == {"invocationId": f"{TURN}.0.step-1"}


async def test_the_model_reads_the_results_in_the_order_of_its_calls() -> None:
    prompts: list[list[JsonObject]] = []
    answers = script(calls(("bash", {"command": "ls"}), ("grep", {"pattern": "x"})), text("Done."))

    def model(call: JsonObject, effect_id: str) -> JsonObject:
        prompts.append(call["prompt"])
        return answers(call, effect_id)  # type: ignore[no-any-return]

    runtime = Runtime(model)
    await runtime.turn(Sandbox()).run()
    kinds = [(item["kind"], item.get("role"), item.get("toolCallId")) for item in prompts[1]]
    assert kinds == [
        ("instructions", "system", None),
        ("message", "user", None),
        ("message", "assistant", None),
        ("tool-result", None, "c0"),
        ("tool-result", None, "c1"),
    ]
    assert prompts[1][:2] == prompts[0]
    assert prompts[1][3]["content"] == [{"type": "text", "text": '{"input":{"command":"ls"},"tool":"bash"}'}]


async def test_later_turns_read_the_transcript_from_the_cache() -> None:
    runtime = Runtime(script(text("One."), text("Two."), text("Three.")))
    cache = TranscriptCache()
    await runtime.turn(message="1", transcripts=cache).run()
    await runtime.turn(message="2", turn_id="turn_2", transcripts=cache).run()
    assert len(runtime.asked("transcript.read")) == 1
    await runtime.turn(message="3", turn_id="turn_3", transcripts=TranscriptCache()).run()
    assert len(runtime.asked("transcript.read")) == 2
    assert [entry.get("output") for entry in runtime.transcript if entry["kind"] == "final"] == [
        "One.",
        "Two.",
        "Three.",
    ]


async def test_a_transcript_that_core_may_have_redacted_is_read_again() -> None:
    runtime = Runtime(script(text("One."), text("Two.")))
    cache = TranscriptCache()
    await runtime.turn(message="my token is eyJhbGciOiJFUzI1NiJ9.e30.c2ln", transcripts=cache).run()
    assert cache.size == 0
    await runtime.turn(message="2", turn_id="turn_2", transcripts=cache).run()
    assert len(runtime.asked("transcript.read")) == 2
    assert cache.size > 0


async def test_a_failed_turn_leaves_nothing_in_the_cache() -> None:
    runtime = Runtime(script(text("One."), {"kind": "failed", "code": "auth", "message": "no key", "retryable": False}))
    cache = TranscriptCache()
    await runtime.turn(message="1", transcripts=cache).run()
    assert cache.size > 0
    assert await runtime.turn(message="2", turn_id="turn_2", transcripts=cache).run() == Reported("failed")
    assert cache.size == 0


async def test_a_flow_is_refused_in_clear_words() -> None:
    runtime = Runtime(script())
    assert await runtime.turn(engine="flow").run() == Reported("failed")
    assert runtime.outputs[0][1]["error"]["code"] == "engine.unsupported"
    assert runtime.requests == runtime.requests[:1]


async def test_an_input_of_unknown_shape_fails_the_turn() -> None:
    runtime = Runtime(script())
    assert await runtime.turn(message={"audio": "x"}).run() == Reported("failed")
    assert runtime.outputs[0][1]["error"]["code"] == "input.unsupported"


async def test_without_a_sandbox_its_tools_are_not_offered() -> None:
    offered: list[list[JsonObject]] = []

    def model(call: JsonObject, effect_id: str) -> JsonObject:
        offered.append(call["tools"])
        return text("Hi")

    await Runtime(model).turn(None).run()
    await Runtime(model).turn(Sandbox(), agent={"id": "coder", "kind": "none"}, routing={}).run()
    await Runtime(model).turn(Sandbox(), agent=None).run()
    artifacts = ["read_artifact", "save_artifact"]
    names = [[tool["name"] for tool in tools] for tools in offered]
    assert names == [artifacts, artifacts, ["bash", "read", "write", "edit", "grep", "glob", *artifacts]]
    assert ["path" in tools[-1]["inputSchema"]["properties"] for tools in offered] == [False, False, True]


async def test_a_long_turn_yields_and_goes_on_in_a_new_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "YIELD_STEPS", 2)
    runtime = Runtime(script(*[calls(("bash", {"command": "ls"}))] * 3, text("Done.")))
    cache = TranscriptCache()
    assert await runtime.turn(Sandbox(), transcripts=cache).run() == Reported("yielded")
    assert runtime.outputs[0][0] == "checkpoint"
    assert runtime.state == {"v": 1, "turnId": TURN, "steps": 2}
    turn = runtime.turn(Sandbox(), message={"kind": "continue"}, transcripts=cache)
    assert await turn.run() == Reported("completed")
    assert [key for key in runtime.journal if ":model:" in key] == [
        f"{TURN}:0:model:step-1",
        f"{TURN}:0:model:step-2",
        f"{TURN}:1:model:step-3",
        f"{TURN}:1:model:step-4",
    ]
    steps = [entry["stepId"] for entry in runtime.transcript if entry["kind"] == "candidate"]
    assert steps == [f"{TURN}.step-{n}" for n in (1, 2, 3, 4)]


async def test_a_turn_that_goes_on_without_any_history_asks_the_model_all_the_same() -> None:
    runtime = Runtime(script(text("Done.")))
    assert await runtime.turn(Sandbox(), message={"kind": "continue"}).run() == Reported("completed")


async def test_time_and_size_end_a_segment_at_its_next_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("YIELD_SECONDS", "YIELD_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(limits, limit, 0)
            runtime = Runtime(script(calls(("bash", {"command": "ls"})), text("Done.")))
            assert await runtime.turn(Sandbox()).run() == Reported("yielded")
            assert await runtime.turn(Sandbox(), message={"kind": "continue"}).run() == Reported("completed")


async def test_a_state_of_another_harness_does_not_confuse_the_steps() -> None:
    runtime = Runtime(script(text("Hi")), state=["something", "else"])
    assert await runtime.turn().run() == Reported("completed")
    assert f"{TURN}:0:model:step-1" in runtime.journal


async def test_held_calls_end_the_segment_after_the_others_have_settled() -> None:
    runtime = Runtime(
        script(calls(("bash", {"command": "rm"}), ("read", {"path": "a"}), ("bash", {"command": "mv"})), text("Done.")),
        hold=lambda intent: "pending" if intent.get("toolName") == "bash" else None,
        state={"v": 1, "turnId": "turn_0", "steps": 9},
    )
    sandbox = Sandbox()
    assert await runtime.turn(sandbox).run() == Reported("waiting")
    assert runtime.outputs == [
        (
            "turn.waiting",
            {
                "runId": "run_1",
                "status": "waiting",
                "state": {"v": 1, "turnId": "turn_0", "steps": 9},
                "effectIds": [f"{TURN}:0:tool:step-1/0", f"{TURN}:0:tool:step-1/2"],
            },
        )
    ]
    assert runtime.journal[f"{TURN}:0:tool:step-1/1"].status == "completed"
    runtime.hold = lambda intent: None
    assert await runtime.turn(sandbox, type="approval.answer").run() == Reported("completed")
    assert [tool for tool, _ in sandbox.started] == ["read", "bash", "bash"]
    assert len(runtime.gate_calls) == 2


async def test_a_model_call_of_unknown_fate_ends_the_segment_as_uncertain() -> None:
    runtime = Runtime(script(text("Hi")), hold=lambda intent: "uncertain")
    assert await runtime.turn().run() == Reported("uncertain")
    assert runtime.outputs[0][1]["effectIds"] == [f"{TURN}:0:model:step-1"]


async def test_a_bug_is_reported_as_thrown() -> None:
    class Broken(Sandbox):
        def start(self, tool: str, input: JsonObject, *, traceparent: str | None) -> NoReturn:
            raise ZeroDivisionError("a bug")

    runtime = Runtime(script(calls(("bash", {"command": "ls"}))))
    assert await runtime.turn(Broken()).run() == Reported("failed")
    assert runtime.outputs[0][1]["thrown"] == {"code": "internal", "message": "ZeroDivisionError: a bug"}


@pytest.mark.parametrize(
    ("code", "ending", "said"),
    [
        ("run_not_held", Released("ownership.lost"), []),
        ("ownership_lost", Released("ownership.lost"), []),
        ("unavailable", Released("connection.lost"), []),
        ("turn_cancelled", Reported("cancelled"), [("turn.failed", "cancelled", None)]),
        ("effect_drift", Reported("failed"), [("turn.failed", None, "effect_drift")]),
        ("invalid", Reported("failed"), [("turn.failed", None, "invalid")]),
        ("internal", Reported("failed"), [("turn.failed", None, "internal")]),
        ("not_found", Reported("failed"), [("turn.failed", None, "not_found")]),
    ],
)
@pytest.mark.parametrize("method", ["transcript.read", "effect.intent", "effect.outcome"])
async def test_each_refusal_ends_the_turn_in_one_way(
    method: str, code: str, ending: object, said: list[tuple[str, str | None, str | None]]
) -> None:
    def refuse(asked: str, params: JsonObject) -> None:
        if asked == method:
            raise RuntimeRefusal(code, "no")

    runtime = Runtime(script(text("Hi")), intercept=refuse)
    assert await runtime.turn().run() == ending
    got = [(name, out.get("status"), out.get("thrown", {}).get("code")) for name, out in runtime.outputs]
    assert got == said


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("run_not_held", Released("ownership.lost")),
        ("ownership_lost", Released("ownership.lost")),
        ("unavailable", Released("connection.lost")),
        ("turn_cancelled", Reported("cancelled")),
        ("effect_drift", Reported("failed")),
        ("invalid", Reported("failed")),
        ("internal", Reported("failed")),
        ("limit_exceeded", Reported("failed")),
    ],
)
async def test_each_refusal_of_an_output_ends_the_turn_in_one_way(code: str, ending: object) -> None:
    def refuse(asked: str, params: JsonObject) -> None:
        if asked == "turn.completed":
            raise RuntimeRefusal(code, "no")

    runtime = Runtime(script(text("Hi")), intercept=refuse)
    assert await runtime.turn().run() == ending


async def test_an_output_that_is_refused_in_every_form_gives_the_run_up() -> None:
    def refuse(asked: str, params: JsonObject) -> None:
        if asked.startswith("turn."):
            raise RuntimeRefusal("invalid", "no")

    runtime = Runtime(script(text("Hi")), intercept=refuse)
    assert await runtime.turn().run() == Released("ownership.lost")
    assert [name for name, _ in runtime.requests if name.startswith("turn.")] == ["turn.completed", "turn.failed"]


async def test_an_internal_error_is_asked_once_more() -> None:
    failed: list[str] = []

    def refuse(asked: str, params: JsonObject) -> None:
        if asked not in failed:
            failed.append(asked)
            raise RuntimeRefusal("internal", "a hiccup")

    runtime = Runtime(script(text("Hi")), intercept=refuse)
    assert await runtime.turn().run() == Reported("completed")
    assert failed == ["transcript.read", "effect.intent", "effect.outcome", "turn.completed"]
