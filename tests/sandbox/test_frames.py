"""Frames between host and worker: any split, any text, and nothing from a broken peer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host.sandbox.frames import MOST_BODY, MOST_HEADER, PREFIX, BrokenFrame, Decoder, Header, encode

_text = st.text() | st.sampled_from(["x" * 20_000, "€" * 20_000, "\ud83d" * 20_000])
_values = st.one_of(_text, st.integers(), st.none(), st.dictionaries(st.text(), _text | st.integers(), max_size=3))
_headers = st.dictionaries(st.text().filter(lambda key: key != "lifted"), _values, max_size=4)


def feed(data: bytes, sizes: list[int]) -> list[tuple[Header, bytes]]:
    """Decodes ``data`` in pieces of these sizes, again and again."""
    decoder = Decoder()
    frames = []
    turn = 0
    while data:
        target = decoder.target()
        size = sizes[turn % len(sizes)]
        count = min(len(target), len(data), size if len(data) < 1000 else max(size, 997))
        target[:count] = data[:count]
        data = data[count:]
        turn += 1
        frames += [(header, bytes(body)) for header, body in decoder.received(count)]
    return frames


@given(st.lists(st.tuples(_headers, st.binary()), max_size=4), st.lists(st.integers(1, 70_000), min_size=1))
def test_frames_come_through_whole_however_they_are_split(frames: list[tuple[Header, bytes]], sizes: list[int]) -> None:
    data = b"".join(piece for header, body in frames for piece in encode(header, body))
    assert feed(data, sizes) == frames


def test_a_member_without_a_name_keeps_its_place() -> None:
    header = {"": {"": "x" * 20_000}}
    assert feed(b"".join(encode(header)), [1000]) == [(header, b"")]


def test_long_strings_travel_in_the_body() -> None:
    pieces = encode({"a": "x" * 1_000_000, "b": {"c": "y" * 1_000_000, "d": 1}}, b"rest")
    assert len(pieces[0]) < 200
    assert feed(b"".join(pieces), [1 << 20]) == [({"a": "x" * 1_000_000, "b": {"c": "y" * 1_000_000, "d": 1}}, b"rest")]


@pytest.mark.parametrize("lengths", [(MOST_HEADER + 1, 0), (2, MOST_BODY + 1), (0xFFFFFFFF, 2**64 - 1)])
def test_lengths_that_no_peer_sends_are_refused_before_memory_is_taken(lengths: tuple[int, int]) -> None:
    with pytest.raises(BrokenFrame):
        feed(PREFIX.pack(*lengths), [100])


@pytest.mark.parametrize(
    "header", [b"{", b"\xff\xff", b"[]", b'{"lifted":[["a",null,9]]}', b'{"lifted":[["a","b",0]]}', b"7"]
)
def test_a_header_that_no_peer_sends_is_refused(header: bytes) -> None:
    with pytest.raises(BrokenFrame):
        feed(PREFIX.pack(len(header), 0) + header, [100])


def test_the_prefix_is_big_endian_header_then_body_length() -> None:
    (piece, body) = encode({"a": 1}, b"body")
    assert piece == b"\0\0\0\x07" + b"\0" * 7 + b"\x04" + json.dumps({"a": 1}, separators=(",", ":")).encode()
    assert body == b"body"
