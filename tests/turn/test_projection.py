"""Transcript entries as the model reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.model_call import PromptItem
from pod_host.turn.projection import Reader, depends_on_turn, prompt_items
from tests.turn.json_values import crossed, objects, texts, values

ITEM: TypeAdapter[Any] = TypeAdapter(PromptItem)
READER = Reader("t")

blocks = (
    st.builds(lambda text: {"type": "text", "text": text}, texts)
    | st.builds(lambda value: {"type": "json", "value": value}, values)
    | st.builds(
        lambda args, metadata: {
            "type": "tool-call",
            "id": "c",
            "name": "n",
            "args": args,
            "providerMetadata": metadata,
        },
        objects,
        objects,
    )
    | st.builds(
        lambda text, metadata: {"type": "reasoning", "text": text, "providerMetadata": metadata}, texts, objects
    )
)
results = st.builds(
    lambda output: {"callId": "c", "toolName": "n", "kind": "completed", "output": output}, values
) | st.builds(
    lambda text: {"callId": "c", "toolName": "n", "kind": "failed", "code": "x", "message": text, "retryable": True},
    texts,
)
entries = (
    st.builds(lambda text: {"kind": "input", "turnId": "t", "event": {"kind": "user-message", "text": text}}, texts)
    | st.builds(
        lambda output: {"kind": "candidate", "turnId": "t", "stepId": "s", "candidate": {"output": output}},
        st.lists(blocks, max_size=4),
    )
    | st.builds(
        lambda results: {"kind": "tool-results", "turnId": "t", "stepId": "s", "results": results},
        st.lists(results, min_size=1, max_size=3),
    )
    | st.builds(lambda output: {"kind": "final", "turnId": "t", "stepId": "s", "output": output}, values)
)


@given(entries, st.integers(0, 5))
def test_an_entry_that_crossed_the_runtime_gives_the_same_bytes(entry: JsonObject, seed: int) -> None:
    there = [canonical(item) for item in prompt_items(entry, READER)]
    assert there == [canonical(item) for item in prompt_items(crossed(entry, seed), READER)]


@given(entries)
def test_every_item_is_one_that_the_model_gate_takes_and_no_text_is_blank(entry: JsonObject) -> None:
    for item in prompt_items(entry, READER):
        ITEM.validate_python(item)
        assert item["content"]
        assert all(part["text"].strip() for part in item["content"] if part["type"] == "text")


def candidate(*output: JsonObject, **members: Json) -> JsonObject:
    return {"kind": "candidate", "turnId": "t", "stepId": "s", "candidate": {"output": list(output), **members}}


def test_an_answer_keeps_what_its_provider_needs_back() -> None:
    entry = candidate(
        {"type": "reasoning", "text": "hm", "providerMetadata": {"signature": "s"}},
        {"type": "reasoning", "text": "no metadata"},
        {"type": "text", "text": "Hi"},
        {"type": "tool-call", "id": "c", "name": "bash", "args": {"a": 1}, "raw": "{", "providerMetadata": {"x": 1}},
        {"type": "something-new", "text": "?"},
        evidence={"extras": {"producer": {"provider": "p", "model": "m"}}},
    )
    assert prompt_items(entry, READER) == [
        {
            "kind": "message",
            "role": "assistant",
            "content": [
                {"type": "reasoning", "text": "hm", "providerMetadata": {"signature": "s"}},
                {"type": "text", "text": "Hi"},
                {"type": "tool-call", "id": "c", "name": "bash", "args": {"a": 1}, "providerMetadata": {"x": 1}},
            ],
            "producer": {"provider": "p", "model": "m"},
        }
    ]


def test_reasoning_for_its_turn_alone_is_left_out_later() -> None:
    entry = candidate({"type": "reasoning", "text": "hm", "providerMetadata": {"replay": "turn"}})
    assert depends_on_turn(entry)
    assert len(prompt_items(entry, READER)) == 1
    assert prompt_items(entry, Reader("later")) == []
    assert not depends_on_turn(candidate({"type": "reasoning", "text": "hm", "providerMetadata": {"signature": "s"}}))


def test_arguments_that_are_no_object_are_shown_as_an_empty_one() -> None:
    [item] = prompt_items(candidate({"type": "tool-call", "id": "c", "name": "bash", "args": "ls"}), READER)
    assert item["content"][0]["args"] == {}


@pytest.mark.parametrize(
    ("result", "status", "payload"),
    [
        ({"kind": "completed", "output": {"b": 1.0, "a": "x"}}, "completed", '{"a":"x","b":1}'),
        ({"kind": "completed", "output": ""}, "completed", '""'),
        ({"kind": "completed", "output": None}, "completed", "null"),
        ({"kind": "denied", "reason": "no"}, "denied", '{"kind":"denied","reason":"no"}'),
        (
            {"kind": "failed", "code": "c", "message": "m", "retryable": True},
            "failed",
            '{"code":"c","kind":"failed","message":"m","retryable":true}',
        ),
    ],
)
def test_a_result_is_shown_as_the_json_of_its_payload(result: JsonObject, status: str, payload: str) -> None:
    entry = {
        "kind": "tool-results",
        "turnId": "t",
        "stepId": "s",
        "results": [{"callId": "c", "toolName": "n", **result}],
    }
    [item] = prompt_items(entry, READER)
    assert item == {
        "kind": "tool-result",
        "toolCallId": "c",
        "toolName": "n",
        "status": status,
        "content": [{"type": "text", "text": payload}],
    }


def test_files_follow_the_text_of_their_result() -> None:
    file = {"mediaType": "image/png", "reference": {"artifactId": "af_1", "version": 1}}
    result = {"callId": "c", "toolName": "n", "kind": "completed", "output": "seen", "files": [file]}
    [item] = prompt_items({"kind": "tool-results", "turnId": "t", "stepId": "s", "results": [result]}, READER)
    assert item["content"] == [{"type": "text", "text": '"seen"'}, {"type": "media", **file}]


@pytest.mark.parametrize(
    ("event", "content"),
    [
        ({"kind": "user-message", "text": "Hi"}, [{"type": "text", "text": "Hi"}]),
        ({"kind": "user-message", "text": " \n"}, [{"type": "text", "text": "(empty message)"}]),
        (
            {
                "kind": "user-message",
                "content": [{"type": "text", "text": ""}, {"type": "media", "mediaType": "a/b", "reference": {}}],
            },
            [{"type": "media", "mediaType": "a/b", "reference": {}}],
        ),
        ({"kind": "user-message", "content": []}, [{"type": "text", "text": "(empty message)"}]),
    ],
)
def test_a_message_is_never_empty(event: JsonObject, content: list[JsonObject]) -> None:
    assert prompt_items({"kind": "input", "turnId": "t", "event": event}, READER) == [
        {"kind": "message", "role": "user", "content": content}
    ]


def test_a_persons_answer_and_a_final_output_say_nothing_to_the_model() -> None:
    for kind in ("approve", "respond"):
        assert prompt_items({"kind": "input", "turnId": "t", "event": {"kind": kind}}, READER) == []
    assert prompt_items({"kind": "final", "turnId": "t", "stepId": "s", "output": "x"}, READER) == []


def test_a_summary_stands_for_what_it_replaced() -> None:
    [item] = prompt_items({"kind": "compaction", "turnId": "t", "stepId": "s", "summary": "They met."}, READER)
    assert item["role"] == "user"
    assert "\n\nThey met.\n</summary>" in item["content"][0]["text"]
