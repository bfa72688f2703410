"""Calls at the Tool Gate: lost hops, refusals, stops, HTTP tools and their body's forms (v5, sections 4, 5 and 8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.model_call import HTTP_CALLS_PATH, TOOL_CALLS_PATH
from pod_host.errors import GateRefusal, GateUnavailable
from pod_host.turn import Released, Reported, tool_gate
from tests.turn.double import AGENT, TURN, Runtime, calls, script, text
from tests.turn.test_mcp_tools import CALL_ID, facts, results_of, run, runtime_of
from tests.turn.tool_gate_double import tool

MCP = facts(tool("add"))
CALL = calls(("docs__add", {"n": 1}))


def failing(*faults: Exception | None) -> Any:
    """`ToolGate.before`: these faults, one for each request."""
    waiting = list(faults)

    def before(path: str, body: JsonObject) -> None:
        fault = waiting.pop(0) if waiting else None
        if fault is not None:
            raise fault

    return before


def gone() -> GateUnavailable:
    return GateUnavailable("no answer")


def refused(code: str, status: int = 409) -> GateRefusal:
    return GateRefusal(status, code, "not now")


async def with_faults(*faults: Exception | None) -> Runtime:
    runtime = runtime_of(MCP, CALL, text("Done."))
    runtime.tools.before = failing(*faults)
    await run(runtime)
    return runtime


def result_of(runtime: Runtime) -> JsonObject:
    return runtime.transcript[2]["results"][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("faults", [1, 2])
async def test_a_lost_hop_asks_the_same_intent_and_sends_the_same_bytes_again(faults: int) -> None:
    runtime = await with_faults(*(gone() for _ in range(faults)))
    assert result_of(runtime)["output"] == "done"
    intents = [params for params in runtime.asked("effect.intent") if params["effect"]["effectId"] == CALL_ID]
    assert len(intents) == faults + 1
    assert all(params == intents[0] for params in intents)
    assert len({str(asked) for asked in runtime.tools.asked}) == 1
    assert runtime.tools.ran == [CALL_ID]


async def test_a_gate_that_stays_gone_leaves_the_fate_unknown() -> None:
    runtime = await with_faults(gone(), gone(), gone())
    (outcome,) = [params for params in runtime.asked("effect.outcome") if params["effectId"] == CALL_ID]
    assert "may have run" in outcome["error"]
    assert result_of(runtime)["code"] == "tool.lost"


async def test_core_that_counts_enough_has_the_last_word() -> None:
    runtime = runtime_of(MCP, CALL, text("Done."))
    served = runtime._serve

    def serve(method: str, params: JsonObject) -> JsonObject:
        if method == "effect.intent" and len(runtime.tools.asked) == 1:
            runtime.journal[CALL_ID].executed = 3
        return served(method, params)

    runtime._serve = serve  # type: ignore[method-assign]
    runtime.tools.before = failing(gone(), gone())
    await run(runtime)
    assert result_of(runtime)["code"] == "tool.interrupted"
    assert len(runtime.tools.asked) == 1


async def test_an_effect_that_the_gate_does_not_know_is_asked_for_once_more() -> None:
    runtime = await with_faults(refused("effect_not_journaled"))
    assert result_of(runtime)["output"] == "done"
    runtime = await with_faults(refused("effect_not_journaled"), refused("effect_not_journaled"))
    assert result_of(runtime)["code"] == "mcp.error"
    assert "effect_not_journaled" in result_of(runtime)["message"]


@pytest.mark.parametrize("code", ["gate_conflict", "key_required", "gate_unauthorized", "gate_forbidden", "odd"])
async def test_another_refusal_is_a_failed_outcome(code: str) -> None:
    runtime = await with_faults(refused(code))
    assert (result_of(runtime)["kind"], result_of(runtime)["code"]) == ("failed", "mcp.error")
    assert code in result_of(runtime)["message"]
    assert len(runtime.tools.asked) == 1


async def test_a_stale_run_is_given_back_and_nothing_is_reported() -> None:
    runtime = runtime_of(MCP, CALL)
    runtime.tools.before = failing(refused("run_stale"))
    assert await runtime.turn().run() == Released("ownership.lost")
    assert [params for params in runtime.asked("effect.outcome") if params["effectId"] == CALL_ID] == []


async def test_a_call_larger_than_the_gate_reads_is_not_sent() -> None:
    answer = calls(("docs__add", {"n": "x" * 5000}))
    results, runtime = await results_of(MCP, answer, limits={"toolAnswerBytes": 4000})
    assert results[0]["code"] == "tool.input-too-large"
    assert runtime.tools.asked == []


@pytest.mark.parametrize(
    ("reason", "ending", "cancels"),
    [
        ("cancel", Reported("cancelled"), [CALL_ID]),
        ("deadline", Reported("cancelled"), [CALL_ID]),
        ("shutdown", Released("shutdown"), []),
        ("ownership.lost", Released("ownership.lost"), []),
    ],
)
async def test_a_stop_cancels_the_call_at_its_gate_or_leaves_it_to_the_next_owner(
    reason: Any, ending: Any, cancels: list[str]
) -> None:
    runtime = runtime_of(MCP, CALL)
    asked = asyncio.Event()

    def hold(path: str, body: JsonObject) -> Any:
        asked.set()
        return asyncio.Event().wait()

    runtime.tools.before = hold
    turn = runtime.turn()
    running = asyncio.create_task(turn.run())
    await asyncio.wait_for(asked.wait(), 10)
    turn.stop(reason)
    assert await running == ending
    assert runtime.cancels == cancels
    assert runtime.journal[CALL_ID].status == "invoking"


async def test_a_call_that_was_not_sent_before_a_shutdown_is_left_to_the_next_owner() -> None:
    """It may run at its gate already: to say that it never started could be a lie."""
    runtime = runtime_of(MCP, CALL, text("Done."))
    turn = runtime.turn()
    served = runtime._serve

    def serve(method: str, params: JsonObject) -> JsonObject:
        answer = served(method, params)
        if method == "effect.intent" and params["effect"]["effectId"] == CALL_ID:
            turn.stop("shutdown")
        return answer

    runtime._serve = serve  # type: ignore[method-assign]
    assert await turn.run() == Released("shutdown")
    assert runtime.journal[CALL_ID].status == "invoking"
    runtime._serve = served  # type: ignore[method-assign]
    await run(runtime)
    assert runtime.tools.ran == [CALL_ID]


async def test_a_calls_own_trace_goes_with_it() -> None:
    seen: list[str | None] = []
    runtime = runtime_of(MCP, CALL, text("Done."))
    inner = runtime._tool_call

    async def call(
        path: str, body: bytes, *, key: str, token: Any, traceparent: str | None = None, claim: Any = None
    ) -> JsonObject:
        if path == TOOL_CALLS_PATH:
            seen.append(traceparent)
            return await inner(path, body, key, token)
        return await Runtime.call(runtime, path, body, key=key, token=token, traceparent=traceparent)

    runtime.call = call  # type: ignore[method-assign]
    await run(runtime)
    assert seen == [f"00-{'1' * 32}-{'2' * 16}-01"]


# --- HTTP tools --------------------------------------------------------------------------------------------------------

ORDER = {
    "name": "order",
    "description": "Orders.",
    "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    "http": {"url": "http://shop.invalid/", "credential": "SHOP"},
}


@pytest.fixture(autouse=True)
def _no_form_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_gate, "_LIKELIEST", {})


def shop(tools: Json, *answers: JsonObject) -> Runtime:
    runtime = Runtime(script(*answers, text("Done.")), manifest={"id": AGENT, "tools": tools})
    runtime.tools.answers = lambda path, body: {"ok": True, "result": {"kind": "completed", "output": body["input"]}}
    return runtime


def declared(runtime: Runtime) -> list[JsonObject]:
    names = ("order", "helper", "odd name", "none", "bare")
    return [one for one in runtime.model_calls[0]["tools"] if one["name"] in names]


@pytest.mark.parametrize("tools", [[ORDER], {"order": {name: ORDER[name] for name in ORDER if name != "name"}}])
async def test_an_http_tool_is_offered_and_called_by_its_name(tools: Json) -> None:
    runtime = shop(tools, calls(("order", {"what": "tea"})))
    await run(runtime)
    assert declared(runtime) == [{name: ORDER[name] for name in ("name", "description", "inputSchema")}]
    assert runtime.tools.asked == [
        (HTTP_CALLS_PATH, CALL_ID, {"tool": {"toolName": "order"}, "effectId": CALL_ID, "input": {"what": "tea"}})
    ]
    assert result_of(runtime)["output"] == {"what": "tea"}
    assert runtime.journal[CALL_ID].intent["target"] == {"kind": "http", "tool": "order"}


async def test_tools_that_cannot_be_called_are_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    http = {"url": "http://x/"}
    runtime = shop(
        [
            {"name": "helper", "agent": {"name": "x"}},
            {"name": "odd name", "http": http},
            {"name": "none"},
            {"name": "bash", "http": http},
            {"name": "order", "http": http, "inputSchema": {"type": "array"}},
            {"name": "bare", "http": http},
            7,
        ]
    )
    await run(runtime)
    assert declared(runtime) == [{"name": "bare", "inputSchema": {"type": "object"}}]
    whys = [record.fields["why"] for record in caplog.records if record.event == "tool.left_out"]  # type: ignore[attr-defined]
    assert whys == [
        "no agent x is defined",
        "its name is not 1 to 64 letters, digits, - and _",
        "nothing runs it: it has no http",
        "its inputSchema is no object schema",
    ]


async def test_arguments_of_an_http_tool_are_checked_before_anything_is_sent() -> None:
    runtime = shop([ORDER], calls(("order", {})))
    await run(runtime)
    assert result_of(runtime)["code"] == "tool.invalid-input"
    assert runtime.tools.asked == []


async def test_the_form_of_the_body_that_the_gate_takes_is_found_and_remembered() -> None:
    def old(path: str, body: JsonObject) -> None:
        if "turnId" not in body:
            raise refused("invalid_request", 400)

    runtime = shop([ORDER], calls(("order", {"what": "a"}), ("order", {"what": "b"})), calls(("order", {"what": "c"})))
    runtime.tools.before = old
    await run(runtime)
    assert [result["output"]["what"] for result in runtime.transcript[2]["results"]] == ["a", "b"]
    last = [body for _, key, body in runtime.tools.asked if key == f"{TURN}:0:tool:step-2/0"]
    assert [body["turnId"] for body in last] == [TURN]


async def test_a_gate_that_takes_no_form_fails_the_call() -> None:
    runtime = shop([ORDER], calls(("order", {"what": "a"})))
    runtime.tools.before = failing(*(refused("invalid_request", 400) for _ in range(3)))
    await run(runtime)
    assert result_of(runtime)["code"] == "http.failed"
    assert len(runtime.tools.asked) == 3


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"ok": True, "result": {"kind": "completed", "output": 1, "odd": 2, "redacted": 1}}, {"output": 1}),
        ({"ok": True, "result": {"plain": 1}}, {"output": {"plain": 1}}),
        ({"ok": True, "result": None}, {"output": None}),
        (
            {"ok": True, "result": {"kind": "failed", "code": "http.status", "message": "500: no", "server": "s"}},
            {"code": "http.status", "message": "500: no"},
        ),
        ({"ok": True, "result": {"kind": "denied", "reason": "no"}}, {"reason": "no"}),
        ({"ok": False, "error": {"message": "lost", "uncertain": True}}, {"code": "tool.lost", "message": "lost"}),
        ({"ok": False, "error": {"message": "odd"}}, {"code": "http.failed", "message": "odd"}),
        ({"ok": False}, {"code": "http.failed", "message": "The HTTP call failed"}),
        (
            {"ok": True, "result": {"kind": "failed"}},
            {"code": "http.failed", "message": "The HTTP call failed"},
        ),
    ],
)
async def test_every_answer_of_an_http_call_is_an_outcome(answer: Json, result: JsonObject) -> None:
    runtime = shop([ORDER], calls(("order", {"what": "a"})))
    runtime.tools.answers = lambda path, body: answer
    await run(runtime)
    shown = result_of(runtime)
    assert {name: shown[name] for name in shown if name not in ("callId", "toolName", "kind")} == result
