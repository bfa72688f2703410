"""Where a fuzz target takes its decisions from: bytes of a corpus, or Hypothesis, which shrinks them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Source(Protocol):
    """A stream of decisions. 0 is always the tamest, so that a stream that is over decides for nothing odd."""

    def below(self, count: int) -> int:
        """A whole number from 0 to ``count`` - 1."""
        ...

    def raw(self, most: int) -> bytes:
        """Bytes without a shape."""
        ...


def pick(source: Source, among: Sequence[T]) -> T:
    return among[source.below(len(among))]


class Bytes:
    """The decisions that ``data`` stands for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def below(self, count: int) -> int:
        width = 1 if count <= 256 else 4
        return int.from_bytes(self._take(width), "little") % count

    def raw(self, most: int) -> bytes:
        return self._take(self.below(most + 1))

    def _take(self, width: int) -> bytes:
        taken = self._data[self._place : self._place + width]
        self._place += width
        return taken


class Drawn:
    """The decisions that Hypothesis draws."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def below(self, count: int) -> int:
        return self._data.draw(st.integers(0, count - 1))

    def raw(self, most: int) -> bytes:
        return self._data.draw(st.binary(max_size=most))
