"""The canonical JSON text and the request hash: the vectors, and ECMAScript's rules as properties."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host.contract.canonical import (
    canonical,
    canonical_array,
    canonical_object,
    effect_id,
    effect_request_hash,
    number_text,
)
from pod_host.contract.encoding import decode, encode
from pod_host.errors import ContractViolation
from tests.contract.values import nested, texts, values, vectors


@pytest.mark.parametrize("vector", vectors("hash"), ids=lambda vector: vector["name"])
def test_hash_vectors(vector: dict[str, Any]) -> None:
    intent = decode(vector["input_json"])
    hashed = {name: value for name, value in intent.items() if intent["kind"] != "delegation" or name != "context"}
    assert canonical(hashed).decode() == vector["canonical"]
    assert effect_request_hash(intent) == vector["sha256"]


def test_there_are_sixteen_hash_vectors() -> None:
    assert len(vectors("hash")) == 16


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (0.1 + 0.2, "0.30000000000000004"),
        (4.35, "4.35"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (-1.234e-10, "-1.234e-10"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.1e21, "1.1e+21"),
        (123456789012345680000.0, "123456789012345680000"),
        (1e23, "1e+23"),
        (5e-324, "5e-324"),
        (2.2250738585072014e-308, "2.2250738585072014e-308"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (4294967295, "4294967295"),
        (2**53, "9007199254740992"),
        (2**53 + 1, "9007199254740992"),
        (-(2**53) - 3, "-9007199254740996"),
        (12345678901234567890, "12345678901234567000"),
        (10**21, "1e+21"),
        (10**400, "null"),
        (math.nan, "null"),
        (-math.inf, "null"),
    ],
)
def test_numbers_are_written_as_ecmascript_writes_them(number: float, text: str) -> None:
    assert number_text(number) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_numbers_text_reads_back_as_the_number(number: float) -> None:
    text = number_text(number)
    assert float(text) == number
    assert float(json.loads(text)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_has_one_text_however_it_was_written(number: float) -> None:
    """JSON texts that are one double hash alike: 1, 1.0, 1e0."""
    assert canonical(decode(repr(number))) == canonical(decode(f"{number:.17e}")) == canonical(number)


@given(values)
def test_canonical_text_is_json_and_its_own_canonical_text(value: Any) -> None:
    text = canonical(value)
    assert canonical(decode(text)) == text


@given(values)
def test_the_hash_is_the_same_before_and_after_the_wire(value: Any) -> None:
    """Core hashes what it parsed: what we hash must not change on its way."""
    assert canonical(decode(encode(value))) == canonical(value)


@given(st.dictionaries(texts, st.integers(0, 9), max_size=12), st.randoms())
def test_members_sort_by_utf16_code_unit_whatever_order_they_came_in(members: dict[str, int], random: Any) -> None:
    shuffled = list(members.items())
    random.shuffle(shuffled)
    text = canonical(dict(shuffled))
    assert text == canonical(members)
    units = [list(memoryview(key.encode("utf-16-le", "surrogatepass")).cast("H")) for key in decode(text)]
    assert units == sorted(units)


@given(st.dictionaries(texts, values, max_size=5), st.lists(values, max_size=5))
def test_cached_pieces_make_the_same_text(members: dict[str, Any], items: list[Any]) -> None:
    assert canonical_object({key: canonical(value) for key, value in members.items()}) == canonical(members)
    assert canonical_array(canonical(item) for item in items) == canonical(items)


@pytest.mark.parametrize("value", [object(), {1: 2}, b"bytes", {"a": {1, 2}}])
def test_what_is_not_json_has_no_hash(value: Any) -> None:
    with pytest.raises(ContractViolation, match="not JSON"):
        canonical(value)


def test_deep_nesting_is_a_violation_and_no_crash() -> None:
    assert canonical(nested(200)).startswith(b"[[")
    with pytest.raises(ContractViolation, match="nested too deeply"):
        canonical(nested(100_000))


def test_an_effect_id_names_turn_segment_kind_and_identity() -> None:
    assert effect_id("turn_01", 2, "tool", "step-1/0") == "turn_01:2:tool:step-1/0"
