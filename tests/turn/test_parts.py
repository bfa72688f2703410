"""The small readers: the turn's input, the model's answer, the state of an earlier segment."""

from __future__ import annotations

import pytest
from hypothesis import given

from pod_host.contract.base import Json, JsonObject
from pod_host.turn.candidates import read_candidate
from pod_host.turn.endings import TurnFailure
from pod_host.turn.identity import Identities
from pod_host.turn.inputs import input_entries
from pod_host.turn.state import state_of, steps_before
from tests.turn.double import Runtime, script
from tests.turn.json_values import values


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


@given(values)
def test_no_answer_of_a_gate_breaks_its_reader(value: Json) -> None:
    read_candidate(value)
    read_candidate(
        {"output": [{"type": "tool-call", "id": value, "name": value, "args": value}], "finishReason": value}
    )


def test_the_text_of_an_answer_is_its_blocks_without_anything_between() -> None:
    output = [
        {"type": "text", "text": "a"},
        {"type": "reasoning", "text": "hm"},
        {"type": "json", "value": {"b": 1.0}},
        {"type": "text", "text": "c"},
    ]
    candidate = read_candidate({"output": output, "usage": None, "surprise": 1})
    assert candidate is not None
    assert candidate.text == 'a{"b":1}c'
    assert candidate.wire == {"output": output}


def test_names_and_ids_that_cannot_cross_are_replaced() -> None:
    call = {"type": "tool-call", "id": "\ud83d", "name": "x" * 1000, "args": {}}
    candidate = read_candidate({"output": [call]})
    assert candidate is not None
    assert (candidate.calls[0].id, candidate.calls[0].name) == ("\\ud83d", "unnamed")


@pytest.mark.parametrize(
    ("state", "steps"),
    [
        (state_of("t", 40), 40),
        (state_of("earlier", 40), 0),
        (None, 2),
        ("text", 2),
        ({"v": 2, "turnId": "t", "steps": 9}, 2),
        ({"v": 1, "turnId": "t", "steps": "9"}, 2),
        ({"v": 1, "turnId": "t", "steps": True}, 2),
    ],
)
def test_steps_go_on_from_the_state_or_else_from_the_transcript(state: Json, steps: int) -> None:
    entries: list[JsonObject] = [
        {"kind": "candidate", "turnId": turn_id, "stepId": "s", "candidate": {}} for turn_id in ("t", "earlier", "t")
    ]
    assert steps_before(state, "t", entries) == steps


def test_an_agent_without_a_manifest_id_has_its_own() -> None:
    runtime = Runtime(script(), manifest={"instructions": ""})
    assert Identities.of(runtime.start()).agent_id == "coder"
    assert Identities.of(runtime.start(agent=None)).agent_id == "agent"
