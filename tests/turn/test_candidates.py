"""The model's answer, read for the loop."""

from __future__ import annotations

from hypothesis import given

from pod_host.contract.base import Json
from pod_host.turn.candidates import read_candidate
from tests.turn.json_values import values


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
