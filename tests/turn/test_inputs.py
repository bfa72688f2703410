"""The turn's message as transcript entries."""

from __future__ import annotations

import pytest

from pod_host.contract.base import Json, JsonObject
from pod_host.turn import Reported
from pod_host.turn.endings import TurnFailure
from pod_host.turn.inputs import input_entries
from tests.turn.double import Runtime, script, text


@pytest.mark.parametrize(
    ("message", "events"),
    [
        ("Hi", [{"kind": "user-message", "text": "Hi"}]),
        ({"text": "Hi", "metadata": {"a": 1}}, [{"kind": "user-message", "text": "Hi", "metadata": {"a": 1}}]),
        (
            {"content": [{"type": "text", "text": "Hi"}]},
            [{"kind": "user-message", "content": [{"type": "text", "text": "Hi"}]}],
        ),
        (
            {"kind": "messages", "messages": ["one", {"text": "two"}]},
            [{"kind": "user-message", "text": "one"}, {"kind": "user-message", "text": "two"}],
        ),
        ({"kind": "continue"}, []),
    ],
)
def test_every_shape_of_input_becomes_its_entries(message: Json, events: list[JsonObject]) -> None:
    assert input_entries(message, "t") == [{"kind": "input", "turnId": "t", "event": event} for event in events]


@pytest.mark.parametrize(
    "message", [None, 7, {}, {"content": "Hi"}, {"kind": "messages"}, {"kind": "messages", "messages": [7]}]
)
def test_an_input_of_another_shape_is_refused(message: Json) -> None:
    with pytest.raises(TurnFailure, match="input"):
        input_entries(message, "t")


async def test_a_message_that_the_record_cannot_hold_ends_the_turn_before_its_first_call() -> None:
    runtime = Runtime(script(text("Hi")), limits={"recordEntryBytes": 20_000})
    assert await runtime.turn(message="é" * 10_000).run() == Reported("failed")
    assert runtime.outputs[0][1]["error"]["code"] == "limit_exceeded"
    assert runtime.gate_calls == []
    assert await runtime.turn(message="é" * 9_800).run() == Reported("completed")
