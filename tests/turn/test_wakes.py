"""schedule_wake: offered with selfWake only, checked before it is sent, run by core."""

from __future__ import annotations

import pytest

from pod_host.contract.base import JsonObject
from pod_host.turn import Reported
from tests.turn.double import AGENT, Runtime, calls, script, text

WAKES: JsonObject = {"agent": {"id": AGENT, "kind": "pod", "selfWake": True}}


async def result_of(arguments: JsonObject, members: JsonObject = WAKES) -> tuple[JsonObject, list[JsonObject]]:
    runtime = Runtime(script(calls(("schedule_wake", arguments)), text("Done.")), members=members)
    assert await runtime.turn().run() == Reported("completed")
    (result,) = [result for entry in runtime.transcript for result in entry.get("results", [])]
    return result, [row.intent for row in runtime.journal.values() if row.intent["kind"] == "tool"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"in": "90s", "note": "Look again."},
        {"in": "1.5 h", "note": "Look again."},
        {"at": "2031-05-04T08:00:00Z", "note": "Look again."},
        {"at": "2031-05-04T08:00:00+02:00", "note": "Look again."},
        {"cancel": True},
    ],
)
async def test_a_wake_is_cores_to_set(arguments: JsonObject) -> None:
    result, (intent,) = await result_of(arguments)
    assert result["output"] == "done by core"
    assert intent["target"] == {"kind": "runtime", "operation": "schedule_wake"}
    assert intent["input"] == arguments


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "exactly one of in and at"),
        ({"in": "90s"}, "note: a note is needed"),
        ({"in": "90s", "at": "2031-05-04T08:00:00Z", "note": "x"}, "exactly one of in and at"),
        ({"note": "x"}, "exactly one of in and at"),
        ({"in": "soon", "note": "x"}, "in: a number and a unit"),
        ({"in": 90, "note": "x"}, "in: 90 is not of type 'string'"),
        ({"at": "tomorrow", "note": "x"}, "at: an ISO 8601 time"),
        ({"at": "2031-05-04T08:00:00", "note": "x"}, "at: an ISO 8601 time"),
        ({"in": "90s", "note": ""}, "note"),
        ({"cancel": True, "note": "x"}, "cancel stands alone"),
        ({"cancel": False}, "cancel"),
        ({"when": "now"}, "'when' was unexpected"),
    ],
)
async def test_a_wake_that_does_not_fit_is_answered_and_is_no_effect(arguments: JsonObject, said: str) -> None:
    result, intents = await result_of(arguments)
    assert result["code"] == "tool.invalid-input"
    assert said in result["message"]
    assert intents == []


async def test_without_self_wake_there_is_no_such_tool() -> None:
    result, _ = await result_of({"cancel": True}, {})
    assert result["code"] == "tool.unknown"
