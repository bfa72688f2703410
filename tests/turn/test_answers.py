"""The turn's output: JSON that fits the agent's schema, after at most two corrections, or a failure that says why not."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import decode, encode
from pod_host.turn import Reported
from pod_host.turn.answers import Answers, Fits, Misfit
from pod_host.turn.schemas import Schema
from tests.turn.double import AGENT, Runtime, calls, script, text
from tests.turn.json_values import crossed, values
from tests.turn.sandbox_double import Sandbox

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"total": {"type": "integer"}, "items": {"type": "array", "items": {"type": "string"}}},
    "required": ["total"],
    "additionalProperties": False,
}


def structured(*answers: str | JsonObject, schema: Json = SCHEMA, **members: Any) -> Runtime:
    said = [text(answer) if isinstance(answer, str) else answer for answer in answers]
    return Runtime(script(*said), manifest={"id": AGENT, "outputSchema": schema}, **members)


def last(runtime: Runtime) -> JsonObject:
    return runtime.outputs[-1][1]


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ('{"total": 3}', {"total": 3}),
        (' \n{"total": 3, "items": ["a"]}\n', {"total": 3, "items": ["a"]}),
        ('```json\n{"total": 3}\n```', {"total": 3}),
        ('```\n{"total": 3}\n```\n', {"total": 3}),
    ],
)
async def test_an_answer_that_fits_is_the_output_itself(answer: str, output: Json) -> None:
    runtime = structured(answer)
    assert await runtime.turn().run() == Reported("completed")
    assert last(runtime)["output"] == output
    assert runtime.transcript[-1]["output"] == output


@pytest.mark.parametrize(("schema", "answer"), [(True, "null"), ({"type": "null"}, "null"), ({}, "0"), ({}, '"a"')])
async def test_any_json_may_be_an_output(schema: Json, answer: str) -> None:
    runtime = structured(answer, schema=schema)
    assert await runtime.turn().run() == Reported("completed")
    assert last(runtime)["output"] == json.loads(answer)


async def test_a_json_block_is_read_as_its_value() -> None:
    runtime = structured({"output": [{"type": "json", "value": {"total": 3.0}}]})
    assert await runtime.turn().run() == Reported("completed")
    assert last(runtime)["output"] == {"total": 3}


async def test_without_a_schema_the_output_is_the_text() -> None:
    runtime = Runtime(script(text('{"total": 3}')))
    assert await runtime.turn().run() == Reported("completed")
    assert last(runtime)["output"] == '{"total": 3}'


async def test_the_schema_is_in_the_prompt_whatever_order_its_members_came_in() -> None:
    def section(seed: int) -> str:
        return Answers({"outputSchema": crossed(SCHEMA, seed)}, "t", []).section()

    assert section(0) == section(1) == section(2)
    assert json.loads(section(0)[section(0).index("{") :]) == SCHEMA
    assert Answers({}, "t", []).section() == ""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("The total is 3.", "not one JSON value"),
        ('{"total": 3} {"total": 4}', "not one JSON value"),
        ('{"total": NaN}', "not one JSON value"),
        ("```json\n```", "not one JSON value"),
        ('{"total": "3"}', "/total: '3' is not of type 'integer'"),
        ('{"total": 3, "items": ["a", 1]}', "/items/1: 1 is not of type 'string'"),
        ("{}", "/: 'total' is a required property"),
    ],
)
async def test_an_answer_that_does_not_fit_is_corrected_with_its_faults(answer: str, why: str) -> None:
    runtime = structured(answer, '{"total": 3}')
    assert await runtime.turn().run() == Reported("completed")
    assert [entry["kind"] for entry in runtime.transcript] == ["input", "candidate", "input", "candidate", "final"]
    assert why in runtime.transcript[2]["event"]["text"]
    assert last(runtime)["output"] == {"total": 3}


async def test_after_two_corrections_the_turn_fails_and_says_what_did_not_fit() -> None:
    runtime = structured("a", "b", '{"total": "c"}', '{"total": 3}')
    assert await runtime.turn().run() == Reported("failed")
    error = last(runtime)["error"]
    assert error["code"] == "output.invalid"
    assert error["message"].endswith("after 2 corrections: /total: 'c' is not of type 'integer'")
    assert runtime.transcript == []


async def test_a_corrected_answer_may_call_tools_first() -> None:
    runtime = structured("a", calls(("bash", {"command": "x"})), '{"total": 3}')
    assert await runtime.turn(Sandbox()).run() == Reported("completed")


async def test_corrections_are_counted_over_the_turns_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pod_host.limits.YIELD_STEPS", 1)
    runtime = structured("a", "b", "c")
    endings = [await runtime.turn(message=message).run() for message in ("Hi", *[{"kind": "continue"}] * 2)]
    assert endings == [Reported("yielded"), Reported("yielded"), Reported("failed")]


async def test_another_turns_corrections_do_not_count() -> None:
    runtime = structured("a", "b", '{"total": 1}', "c", "d", '{"total": 2}')
    assert await runtime.turn().run() == Reported("completed")
    assert await runtime.turn(turn_id="turn_2", message="Again").run() == Reported("completed")
    assert last(runtime)["output"] == {"total": 2}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "thing"}, "/type"),
        ({"properties": {"a": {"pattern": "("}}}, "/properties/a/pattern"),
        (7, "/"),
        ("text", "/"),
    ],
)
async def test_a_broken_schema_fails_the_turn_before_any_model_call(schema: Json, said: str) -> None:
    runtime = structured("{}", schema=schema)
    assert await runtime.turn().run() == Reported("failed")
    error = last(runtime)["error"]
    assert error["code"] == "output.invalid_schema"
    assert f"outputSchema cannot be used: {said}:" in error["message"]
    assert runtime.gate_calls == []


@pytest.mark.parametrize("reference", ["http://127.0.0.1:{port}/schema.json", "#/$defs/none", "other.json", "#/x/y"])
async def test_a_reference_out_of_the_schema_fails_the_turn_and_nothing_is_fetched(reference: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        deep = {"properties": {"a": {"$ref": reference.format(port=server.getsockname()[1])}}}
        runtime = structured("{}", schema=deep)
        assert await runtime.turn().run() == Reported("failed")
        assert last(runtime)["error"]["code"] == "output.invalid_schema"
        assert "nothing is fetched" in last(runtime)["error"]["message"]
        assert runtime.gate_calls == []
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_a_reference_that_only_another_reference_reaches_is_not_followed_out_either() -> None:
    hidden = {"$ref": "#/x/a", "x": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    runtime = structured("{}", schema=hidden)
    assert await runtime.turn().run() == Reported("failed")
    assert last(runtime)["error"]["code"] == "output.invalid_schema"


async def test_references_within_the_schema_hold() -> None:
    tree = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}}
    runtime = structured('{"next": {"next": 1}}', '{"next": {"next": {}}}', schema=tree)
    assert await runtime.turn().run() == Reported("completed")
    assert "/next/next: 1 is not" in runtime.transcript[2]["event"]["text"]


def test_what_is_nested_too_deeply_does_not_fit() -> None:
    answers = Answers({"outputSchema": {"$ref": "#"}}, "t", [])
    assert isinstance(answers.read("[]"), Misfit)
    nested = Answers({"outputSchema": {"items": {"$ref": "#"}}}, "t", [])
    assert isinstance(nested.read("[" * 100_000 + "]" * 100_000), Misfit)


@given(values, st.integers(0, 9))
def test_a_values_faults_are_the_same_whatever_order_it_came_in(value: Json, seed: int) -> None:
    schema: JsonObject = {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 1}
    assert Schema(schema).issues(value) == Schema(crossed(schema, seed)).issues(crossed(value, seed))


@given(values)
def test_what_fits_comes_out_as_it_went_in(value: Json) -> None:
    given_text = encode(value).decode()
    assert Answers({"outputSchema": True}, "t", []).read(given_text) == Fits(decode(given_text))
