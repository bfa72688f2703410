"""JSON text and back, at the borders: lone surrogates, numbers that JSON lacks, depth, size."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host.contract.encoding import decode, encode, encode_in_pieces, is_small
from pod_host.errors import ContractViolation
from tests.contract.values import nested, values


@given(values)
def test_what_is_encoded_decodes_as_it_was(value: Any) -> None:
    assert decode(encode(value)) == decode(json.dumps(value))
    assert decode(encode(value).decode()) == decode(json.dumps(value))


@given(values, st.integers(1, 2000))
def test_pieces_make_the_same_text(value: Any, most: int) -> None:
    assert b"".join(encode_in_pieces(value, most)) == encode(value)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 1_000_000,
        "\ud83d" * 300_000,
        ["word"] * 300_000,
        {str(index): index for index in range(200_000)},
        [{"a": "y" * 30_000}] * 40,
        {"a": {"b": {"c": ["z" * 900_000, 1.5, None, True]}}},
    ],
    ids=["text", "surrogates", "many items", "many members", "objects", "nested"],
)
def test_no_piece_is_much_larger_than_asked(value: Any) -> None:
    most = 64 * 1024
    pieces = list(encode_in_pieces(value, most))
    assert b"".join(pieces) == encode(value)
    assert max(map(len, pieces)) <= 6 * most  # a character may take six: \ud83d
    assert not is_small(value, most)


@given(values)
def test_what_is_small_is_small(value: Any) -> None:
    """The estimate counts characters, which take up to six bytes each, and never fewer than there are values."""
    for most in (64, 256, 1024):
        if is_small(value, most):
            assert len(encode(value)) <= 6 * most


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("\ud83d", rb'"\ud83d"'),
        (["a\udcffb", "ü"], b'["a\\udcffb","\xc3\xbc"]'),
        ({"\ud83d": 1}, rb'{"\ud83d":1}'),
        ({"n": 2**70}, b'{"n":1180591620717411303424}'),
        ([math.nan, math.inf, "\ud83d"], rb'[null,null,"\ud83d"]'),
        ([math.nan, -math.inf], b"[null,null]"),
        ((), b"[]"),
        ({"e": {}, "s": "\ud83d", "l": []}, rb'{"e":{},"s":"\ud83d","l":[]}'),
    ],
)
def test_what_is_written_at_the_borders(value: Any, text: bytes) -> None:
    assert encode(value) == text
    assert b"".join(encode_in_pieces(value, 1)) == text


@pytest.mark.parametrize("value", [object(), b"bytes", {1: 2}, {"a": {1}}, ["\ud83d", object()], {1: "\ud83d"}])
def test_what_is_not_json_does_not_leave(value: Any) -> None:
    with pytest.raises(ContractViolation, match="not JSON"):
        encode(value)
    with pytest.raises(ContractViolation, match="not JSON"):
        list(encode_in_pieces([value, "x" * 100], 10))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "NaN", "[Infinity]", '{"a":-Infinity}', "'a'", "[1,]", '"\n"', "\ufeff{}", "1 2", '{"a":1}x'),
        *(b"\xff", b'"\xed\xa0\x80"', '{"a":1}'.encode("utf-16")),
    ],
)
def test_what_is_not_json_does_not_come_in(text: str | bytes) -> None:
    with pytest.raises(ContractViolation, match="not JSON"):
        decode(text)


@pytest.mark.parametrize(
    ("text", "value"), [(r'"\ud83d"', "\ud83d"), (r'["\ude00\ud83d"]', ["\ude00\ud83d"]), (r'"\ud83d\ude00"', "😀")]
)
def test_a_lone_surrogate_comes_in(text: str, value: Any) -> None:
    assert decode(text) == value
    assert decode(text.encode()) == value


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a":' * 1_000_000, "[" * 100_000 + "]" * 100_000])
def test_deep_nesting_never_crashes_the_reader(text: str) -> None:
    with pytest.raises(ContractViolation, match="not JSON"):
        decode(text)


def test_deep_nesting_never_crashes_the_writer() -> None:
    assert encode(nested(400)) == b"[" * 400 + b"1" + b"]" * 400
    for value in (nested(100_000), {"a": nested(100_000), "b": "x" * 100}):
        with pytest.raises(ContractViolation, match="nested too deeply"):
            encode(value)
        with pytest.raises(ContractViolation, match="nested too deeply"):
            list(encode_in_pieces(value, 10))
