"""The bytes between host and worker: frames on a stream socket, a small JSON header and a raw body.

    4 bytes length of the header, 8 bytes length of the body (big-endian), header, body

What may be large is never JSON: long strings of a header travel in the body, one after another, so that neither side
parses or escapes megabytes in one go. JSON is the standard library's: it keeps half a surrogate pair whole.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

PREFIX: Final = struct.Struct(">IQ")
MOST_HEADER: Final = 16 * 1024 * 1024
MOST_BODY: Final = 256 * 1024 * 1024  # well above the largest message of the product
_SMALL: Final = 64 * 1024  # bytes of frames that are read together
_LONG: Final = 1024  # characters from which a string moves to the body: it is not worth escaping and parsing

_dumps: Final = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one each time
_loads: Final = json.JSONDecoder().decode  # json.loads would look for the encoding first

Header = dict[str, Any]


class BrokenFrame(Exception):
    """The peer sent lengths or a header that no peer of ours sends."""


def encode(header: Header, body: bytes = b"") -> list[bytes]:
    """The pieces to write, in order. ``header`` may hold strings of any length, at the top or in one dict below it."""
    lifted: list[bytes] = []
    places: list[tuple[str, str | None, int]] = []  # member, member below it, bytes
    slim: Header = {}
    for key, value in header.items():
        if isinstance(value, str) and len(value) > _LONG:
            places.append((key, None, _lift(value, lifted)))
        elif isinstance(value, dict):
            inner = {}
            for name, text in value.items():
                if isinstance(text, str) and len(text) > _LONG:
                    places.append((key, name, _lift(text, lifted)))
                else:
                    inner[name] = text
            slim[key] = inner
        else:
            slim[key] = value
    if places:
        slim["lifted"] = places
    packed = _dumps(slim).encode()
    length = sum(map(len, lifted)) + len(body)
    return [PREFIX.pack(len(packed), length) + packed, *lifted, *([body] if body else [])]


def _lift(text: str, into: list[bytes]) -> int:
    into.append(text.encode("utf-8", "surrogatepass"))
    return len(into[-1])


def lengths(prefix: bytes | bytearray | memoryview) -> tuple[int, int]:
    header, body = PREFIX.unpack(prefix)
    if header > MOST_HEADER or body > MOST_BODY:
        raise BrokenFrame(f"a frame of {header} + {body} bytes")
    return header, body


def decode(packed: bytes | bytearray | memoryview, body: memoryview) -> tuple[Header, memoryview]:
    """The header with its long strings back in place, and the rest of the body."""
    try:
        header = _loads(str(packed, "ascii"))
        for key, name, length in header.pop("lifted", ()):
            if not 0 <= length <= len(body):
                raise BrokenFrame("a string beyond the body")
            text = str(body[:length], "utf-8", "surrogatepass")
            body = body[length:]
            if name is None:
                header[key] = text
            else:
                header[key][name] = text
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenFrame(str(error)) from error
    return header, body


class Decoder:
    """Bytes in, frames out. ``target()`` is where the next bytes belong; ``received(n)`` says how many came.

    Small frames are read as many at a time as there are. The body of a large one is read into its place: a frame of 64 MB
    is never copied as a whole.
    """

    def __init__(self) -> None:
        self._small = bytearray(_SMALL)
        self._large: bytearray | None = None  # the header and body of a frame that has no room in the other
        self._header = 0  # bytes of its header
        self._filled = 0  # of whichever is read into

    def target(self) -> memoryview:
        return memoryview(self._small if self._large is None else self._large)[self._filled :]

    def received(self, count: int) -> list[tuple[Header, memoryview]]:
        """The frames that these bytes completed. Raises ``BrokenFrame``."""
        self._filled += count
        if self._large is None:
            return self._take_small()
        if self._filled < len(self._large):
            return []
        view = memoryview(self._large)
        self._large = None
        self._filled = 0
        return [decode(view[: self._header], view[self._header :])]

    def _take_small(self) -> list[tuple[Header, memoryview]]:
        frames = []
        start = 0
        while self._filled - start >= PREFIX.size:
            header, body = lengths(self._small[start : start + PREFIX.size])
            begin = start + PREFIX.size
            end = begin + header + body
            if end <= self._filled:
                view = memoryview(bytes(self._small[begin:end]))
                frames.append(decode(view[:header], view[header:]))
                start = end
                continue
            if header + body > _SMALL - PREFIX.size:
                self._large = bytearray(header + body)
                self._header = header
                there = self._filled - begin
                self._large[:there] = self._small[begin : self._filled]
                self._filled = there
                return frames
            break
        self._small[: self._filled - start] = self._small[start : self._filled]
        self._filled -= start
        return frames
