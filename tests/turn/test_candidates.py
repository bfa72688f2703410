"""The model's answer, read for the loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host.contract.base import Json, JsonObject
from pod_host.turn import Reported
from pod_host.turn.candidates import read_candidate
from tests.turn.double import Runtime, calls, script, text
from tests.turn.json_values import values
from tests.turn.sandbox_double import Sandbox

CALL: JsonObject = {"type": "tool-call", "id": "c", "name": "bash", "args": {}}
SIGNED: JsonObject = {"type": "reasoning", "providerMetadata": {"signature": "s"}}
members = st.sampled_from(["text", "id", "name", "args", "raw", "value", "providerMetadata"])
kinds = st.sampled_from(["text", "reasoning", "json", "tool-call", "image", ""]) | values
blocks = st.builds(lambda kind, rest: {"type": kind, **rest}, kinds, st.dictionaries(members, values))


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
    ("block", "kept"),
    [
        ({"type": "text"}, None),
        ({"type": "text", "text": 7}, None),
        ({"type": "text", "text": "a", "providerMetadata": None}, {"type": "text", "text": "a"}),
        ({"type": "text", "text": "a", "providerMetadata": "x"}, {"type": "text", "text": "a"}),
        ({"type": "reasoning", "text": None}, None),
        ({**SIGNED, "text": None}, {**SIGNED, "text": ""}),
        ({"type": "json"}, None),
        ({"type": "json", "value": None}, {"type": "json", "value": None}),
        ({**CALL, "args": "ls"}, {**CALL, "raw": "ls"}),
        ({**CALL, "args": ["ls"], "raw": "[l"}, {**CALL, "raw": "[l"}),
        ({"type": "tool-call", "name": "bash"}, {**CALL, "id": "call-0"}),
        ({"type": "image", "data": "x"}, None),
        ({"text": "a"}, None),
        ("a", None),
    ],
)
def test_a_block_that_is_not_in_its_shape_is_mended_or_left_out(block: Json, kept: JsonObject | None) -> None:
    candidate = read_candidate({"output": [block]})
    assert candidate is not None
    assert candidate.wire == {"output": [] if kept is None else [kept]}


def test_facts_that_are_not_in_their_shape_are_left_out() -> None:
    given: JsonObject = {
        "output": [],
        "finishReason": 1,
        "usage": {"inputTokens": "3", "outputTokens": 4},
        "evidence": [],
    }
    candidate = read_candidate(given)
    assert candidate is not None
    assert candidate.wire == {"output": [], "usage": {"outputTokens": 4}}


@given(st.lists(blocks, max_size=4), values, values)
async def test_whatever_a_model_answers_the_next_call_is_in_its_shape(
    given_blocks: list[JsonObject], usage: Json, producer: Json
) -> None:
    """In this turn and in the next one."""
    first = calls(("bash", {"command": "ls"}))
    first["output"] += given_blocks
    first |= {"usage": usage, "evidence": {"extras": {"producer": producer}}}
    runtime = Runtime(script(first, text("Done."), text("Again.")))
    assert await runtime.turn(Sandbox()).run() == Reported("completed")
    assert await runtime.turn(Sandbox(), turn_id="turn_2").run() == Reported("completed")


async def test_a_transcript_that_holds_what_is_not_in_its_shape_is_gone_on_with() -> None:
    output: list[Json] = ["Hi", {"type": "tool-call", "args": {}}, {"type": "text"}, {"type": "text", "text": "Hi."}]
    runtime = Runtime(script(text("Done."), text("Again.")))
    runtime.transcript = [{"kind": "candidate", "turnId": "t", "stepId": "s", "candidate": {"output": output}}]
    assert await runtime.turn().run() == Reported("completed")
    (said,) = [item for item in runtime.model_calls[0]["prompt"] if item.get("role") == "assistant"]
    assert said["content"] == [{"type": "text", "text": "Hi."}]
