"""Model calls: what fails, what is asked again, and what a gate's refusal means (v5, sections 4 and 5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.errors import GateRefusal, GateUnavailable
from pod_host.turn import Released, Reported
from tests.turn.double import TURN, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox


def failed(code: str, *, retryable: bool = True) -> JsonObject:
    return {"kind": "failed", "code": code, "message": f"it is {code}", "retryable": retryable, "retryAfterMs": 0}


def error_of(runtime: Runtime) -> JsonObject:
    return runtime.outputs[0][1]["error"]  # type: ignore[no-any-return]


async def test_a_failure_that_may_pass_is_asked_again_as_an_effect_of_its_own() -> None:
    answers = iter([failed("overloaded"), failed("rate_limited"), text("Hi")])
    runtime = Runtime(lambda call, effect_id: next(answers))
    assert await runtime.turn().run() == Reported("completed")
    assert runtime.gate_calls == [f"{TURN}:0:model:step-1{attempt}" for attempt in ("", "~2", "~3")]
    assert len({body[: body.index(b'"effectId"')] for body in runtime.gate_bodies.values()}) == 1
    assert [entry["kind"] for entry in runtime.transcript] == ["input", "candidate", "final"]


async def test_it_is_asked_again_so_often_and_no_more() -> None:
    runtime = Runtime(lambda call, effect_id: failed("overloaded"))
    assert await runtime.turn().run() == Reported("failed")
    assert len(runtime.gate_calls) == limits.MODEL_ATTEMPTS
    assert error_of(runtime) == {"code": "model.overloaded", "message": "it is overloaded"}


async def test_a_failure_for_good_is_not_asked_again() -> None:
    runtime = Runtime(lambda call, effect_id: failed("content_policy", retryable=False))
    assert await runtime.turn().run() == Reported("failed")
    assert len(runtime.gate_calls) == 1
    assert error_of(runtime)["code"] == "model.content_policy"


@pytest.mark.parametrize(
    ("fault", "code", "attempts"),
    [
        (GateUnavailable("no route"), "model.transient", limits.MODEL_ATTEMPTS),
        (GateRefusal(401, "gate_unauthorized", "expired"), "model.auth", 1),
        (GateRefusal(409, "gate_conflict", "another body"), "model.invalid_request", 1),
        (GateRefusal(400, "invalid_request", "bad shape"), "model.invalid_request", 1),
        (GateRefusal(421, "host_rejected", "wrong host"), "model.transient", limits.MODEL_ATTEMPTS),
    ],
)
async def test_a_gate_that_does_not_answer_is_a_failure_of_the_model_call(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, code: str, attempts: int
) -> None:
    monkeypatch.setattr(limits, "MODEL_RETRY_FIRST_SECONDS", 0.0)

    def refuse(call: JsonObject) -> None:
        raise fault

    runtime = Runtime(script(), at_gate=refuse)
    assert await runtime.turn().run() == Reported("failed")
    assert error_of(runtime)["code"] == code
    assert len(runtime.gate_calls) == attempts
    assert all(row.status == "completed" for row in runtime.journal.values())


async def test_a_stale_run_is_over() -> None:
    def refuse(call: JsonObject) -> None:
        raise GateRefusal(409, "run_stale", "the lease is over")

    runtime = Runtime(script(), at_gate=refuse)
    assert await runtime.turn().run() == Released("ownership.lost")
    assert runtime.asked("effect.outcome") == []


async def test_a_gate_answer_without_an_outcome_fails_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(script())

    async def call(*args: object, **named: object) -> JsonObject:
        return {"status": "ok"}

    monkeypatch.setattr(runtime, "call", call)
    assert await runtime.turn().run() == Reported("failed")
    assert error_of(runtime)["code"] == "model.transient"


@pytest.mark.parametrize("answer", [None, 7, {"output": "text"}, {"output": ["text"]}, {"usage": {}}])
async def test_an_answer_that_is_no_candidate_fails_the_turn(answer: Json) -> None:
    runtime = Runtime(lambda call, effect_id: answer)
    assert await runtime.turn().run() == Reported("failed")
    assert error_of(runtime)["code"] == "model.invalid_output"


async def test_a_bare_text_is_an_answer() -> None:
    runtime = Runtime(lambda call, effect_id: "Hi")
    assert await runtime.turn().run() == Reported("completed")
    assert runtime.transcript[1]["candidate"] == {"output": [{"type": "text", "text": "Hi"}]}
    assert runtime.journal[f"{TURN}:0:model:step-1"].outcome == {"value": "Hi"}


async def test_an_answer_is_reported_exactly_as_the_gate_gave_it() -> None:
    answer = {**text("Hi"), "evidence": {"requestId": "r1", "extras": {"producer": {"provider": "x", "model": "y"}}}}
    runtime = Runtime(lambda call, effect_id: answer)
    await runtime.turn().run()
    assert runtime.asked("effect.outcome")[0]["value"] == answer
    assert runtime.transcript[1]["candidate"] == answer


async def test_an_answer_that_is_nested_without_end_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MODEL_RETRY_FIRST_SECONDS", 0.0)
    deep: Json = {}
    for _ in range(2000):
        deep = {"a": deep}
    runtime = Runtime(script(text("Hi")))
    gate = runtime.call

    async def call(*args: Any, **named: Any) -> JsonObject:
        answer = await gate(*args, **named)
        return {"outcome": calls(("bash", deep))} if len(runtime.gate_calls) == 1 else answer

    monkeypatch.setattr(runtime, "call", call)
    assert await runtime.turn().run() == Reported("completed")
    assert list(runtime.journal) == [f"{TURN}:0:model:step-1", f"{TURN}:0:model:step-1~2"]


async def test_an_answer_too_large_for_the_record_is_reported_as_a_failure() -> None:
    runtime = Runtime(script(text("x" * 20_000)), limits={"recordEntryBytes": 16_384})
    assert await runtime.turn().run() == Reported("failed")
    assert error_of(runtime)["code"] == "model.invalid_output"


async def test_an_answer_whose_entry_would_pass_the_record_fails_before_the_work_goes_on() -> None:
    """The outcome alone would fit; its entry of the transcript, which core would refuse at the end, would not."""
    runtime = Runtime(script(text("x" * 15_000)), limits={"recordEntryBytes": 16_384})
    assert await runtime.turn().run() == Reported("failed")
    assert error_of(runtime)["code"] == "model.invalid_output"
    assert "larger than an entry" in error_of(runtime)["message"]


@pytest.mark.parametrize(
    ("answer", "code", "asked"),
    [
        ({"output": [], "finishReason": "stop"}, "model.invalid_output", limits.MODEL_ATTEMPTS),
        ({"output": [{"type": "text", "text": " \n"}]}, "model.invalid_output", limits.MODEL_ATTEMPTS),
        ({"output": [{"type": "reasoning", "text": "hm"}]}, "model.invalid_output", limits.MODEL_ATTEMPTS),
        ({"output": [], "finishReason": "other"}, "model.invalid_output", limits.MODEL_ATTEMPTS),
        (calls(*[("bash", {})] * 1001), "model.invalid_output", limits.MODEL_ATTEMPTS),
        ({"output": [], "finishReason": "length"}, "model.invalid_output", 1),
        ({"output": [], "finishReason": "content-filter"}, "model.content_policy", 1),
        ({**text("I am"), "finishReason": "content-filter"}, "model.content_policy", 1),
        (calls(("bash", {"command": "ls"}), finish="content-filter"), "model.content_policy", 1),
    ],
)
async def test_an_answer_that_cannot_stand_ends_the_turn_in_clear_words(
    monkeypatch: pytest.MonkeyPatch, answer: JsonObject, code: str, asked: int
) -> None:
    monkeypatch.setattr(limits, "MODEL_RETRY_FIRST_SECONDS", 0.0)
    runtime = Runtime(lambda call, effect_id: answer)
    sandbox = Sandbox()
    assert await runtime.turn(sandbox).run() == Reported("failed")
    assert error_of(runtime)["code"] == code
    assert error_of(runtime)["message"].startswith("The ")
    assert len(runtime.gate_calls) == asked
    assert sandbox.started == []


async def test_an_empty_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MODEL_RETRY_FIRST_SECONDS", 0.0)
    answers = iter([{"output": []}, text("Hi")])
    runtime = Runtime(lambda call, effect_id: next(answers))
    assert await runtime.turn().run() == Reported("completed")
    assert [entry["kind"] for entry in runtime.transcript] == ["input", "candidate", "final"]


async def test_a_model_may_be_done_without_a_word_after_its_tools_results() -> None:
    runtime = Runtime(script(calls(("bash", {"command": "ls"})), {"output": [], "finishReason": "stop"}))
    assert await runtime.turn(Sandbox()).run() == Reported("completed")
    assert runtime.outputs[0][1]["output"] == ""


@pytest.mark.parametrize("finish", ["stop", "length", "other", "something-new", None])
async def test_a_text_is_an_answer_however_it_ended(finish: str | None) -> None:
    runtime = Runtime(lambda call, effect_id: {**text("Hi"), "finishReason": finish})
    assert await runtime.turn().run() == Reported("completed")
    assert runtime.outputs[0][1]["output"] == "Hi"


@pytest.mark.parametrize("code", ["content_policy", "auth", "timeout", "invalid_output", "something_new"])
async def test_a_failure_without_a_text_has_one_all_the_same(code: str) -> None:
    runtime = Runtime(lambda call, effect_id: {"kind": "failed", "code": code, "retryable": False})
    assert await runtime.turn().run() == Reported("failed")
    assert error_of(runtime) == {"code": f"model.{code}", "message": f"The model call failed: {code}"}


async def test_a_call_past_the_limit_is_not_sent() -> None:
    runtime = Runtime(script(), limits={"modelCallBytes": 100})
    assert await runtime.turn().run() == Reported("failed")
    assert error_of(runtime)["code"] == "model.context_overflow"
    assert runtime.gate_calls == []


async def test_an_outcome_of_unknown_fate_is_uncertain_for_a_model_call() -> None:
    runtime = Runtime(script(text("Hi")))
    served = runtime._serve

    def serve(method: str, params: JsonObject) -> JsonObject:
        return {"status": "uncertain"} if method == "effect.outcome" else served(method, params)

    runtime._serve = serve  # type: ignore[method-assign]
    assert await runtime.turn().run() == Reported("uncertain")


async def test_the_span_of_the_call_goes_to_gate_and_command() -> None:
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    own = f"00-{'1' * 32}-{'2' * 16}-01"
    runtime = Runtime(script(calls(("bash", {"command": "ls"})), text("Done.")))
    sandbox = Sandbox()
    await runtime.turn(sandbox, trace=trace).run()
    assert set(runtime.traceparents.values()) == {own}
    assert sandbox.traceparents == [own]

    again = Runtime(script(calls(("bash", {"command": "ls"})), text("Done.")))
    again._serve = without_span(again._serve)  # type: ignore[method-assign]
    sandbox = Sandbox()
    await again.turn(sandbox, trace=trace).run()
    assert set(again.traceparents.values()) == {trace["traceparent"]}
    assert sandbox.traceparents == [trace["traceparent"]]


def without_span(served: Callable[..., Any]) -> Callable[..., Any]:
    def serve(method: str, params: JsonObject) -> JsonObject:
        return {name: value for name, value in served(method, params).items() if name != "traceparent"}

    return serve


async def test_the_wait_for_another_attempt_grows_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    answers = iter(
        [
            {"kind": "failed", "code": "transient", "message": "", "retryable": True},
            {"kind": "failed", "code": "transient", "message": "", "retryable": True},
            {"kind": "failed", "code": "transient", "message": "", "retryable": True, "retryAfterMs": 10**9},
            text("Hi"),
        ]
    )
    assert await Runtime(lambda call, effect_id: next(answers)).turn().run() == Reported("completed")
    first, second, third = waits
    assert 0.5 <= first <= 1.0 <= second <= 2.0
    assert third == limits.MODEL_RETRY_MOST_SECONDS
