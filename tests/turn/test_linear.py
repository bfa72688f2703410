"""Keywords of a schema that could take for ever: checked in linear time, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from pod_host.contract.base import Json
from pod_host.turn.checking import SchemaFault
from pod_host.turn.schemas import Schema
from pod_host.turn.tool_arguments import ArgumentCheck


def codes(schema: Json, value: Json) -> list[str]:
    return [issue["code"] for issue in Schema(schema).issues(value)]


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("b", "abc", "a"),  # found anywhere
        ("^[a-z]+$", "abc", "a1"),
        (r"^\p{L}+$", "Äß", "a1"),  # ECMAScript's, which Python's own engine does not know
        (r"^(?<year>\d{4})-\d\d$", "2026-11", "2026"),
        (r"^a\/b$", "a/b", "ab"),
    ],
)
def test_patterns_hold(pattern: str, fits: str, fails: str) -> None:
    assert codes({"pattern": pattern}, fits) == []
    assert codes({"pattern": pattern}, fails) == ["pattern"]
    assert codes({"pattern": pattern}, 7) == []


def test_a_pattern_that_takes_other_engines_for_ever_is_checked_at_once() -> None:
    hostile = {"properties": {"a": {"pattern": "^(a+)+$"}}, "patternProperties": {"^(b+)+$": {"type": "integer"}}}
    assert codes(hostile, {"a": "a" * 5000 + "!"}) == ["pattern"]
    assert codes(hostile, {"b" * 5000 + "!": "text", "bb": "text"}) == ["type"]
    together = {**hostile, "unevaluatedProperties": False}
    assert codes(together, {"b" * 5000 + "!": "text"}) == []


def test_what_the_linear_engine_cannot_do_is_not_checked() -> None:
    assert codes({"pattern": "(?=.*[0-9])"}, "none") == []
    assert codes({"pattern": r"(a)\1"}, "b") == []


def test_what_no_engine_takes_is_a_fault_of_the_schema() -> None:
    with pytest.raises(SchemaFault, match="/items/pattern"):
        Schema({"items": {"pattern": "("}})


@pytest.mark.parametrize("check", [codes, lambda schema, value: [i["code"] for i in ArgumentCheck("t", schema)(value)]])
def test_many_items_are_told_apart_at_once(check: Any) -> None:
    schema = {"type": "object", "properties": {"items": {"uniqueItems": True}}}
    many: list[Json] = [{"n": n} for n in range(100_000)]
    assert check(schema, {"items": many}) == []
    assert check(schema, {"items": [*many, {"n": 7.0}]}) == ["uniqueItems"]
    assert check(schema, {"items": [1, True, "1", None, [1]]}) == []


def test_members_beside_patterns_are_judged() -> None:
    schema = {"properties": {"a": {}}, "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
    assert codes(schema, {"a": 1, "x-b": 1}) == []
    assert codes(schema, {"c": 1}) == ["additionalProperties"]
    assert codes({**schema, "additionalProperties": {"type": "string"}}, {"c": 1}) == ["type"]
    assert codes({"properties": {"a": {}}, "unevaluatedProperties": False}, {"b": 1}) == ["unevaluatedProperties"]
