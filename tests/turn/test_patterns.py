"""Patterns of a schema: checked in linear time, or not at all."""

from __future__ import annotations

import pytest

from pod_host.contract.base import Json
from pod_host.turn.schemas import Schema, SchemaFault


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


def test_members_beside_patterns_are_judged() -> None:
    schema = {"properties": {"a": {}}, "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
    assert codes(schema, {"a": 1, "x-b": 1}) == []
    assert codes(schema, {"c": 1}) == ["additionalProperties"]
    assert codes({**schema, "additionalProperties": {"type": "string"}}, {"c": 1}) == ["type"]
    assert codes({"properties": {"a": {}}, "unevaluatedProperties": False}, {"b": 1}) == ["unevaluatedProperties"]
