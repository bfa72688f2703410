"""A series of measured values, and what is told of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """Any number of values of one unit, one at least."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float], scale: float = 1.0) -> Series:
        """``scale``: 1e3 makes milliseconds of seconds."""
        return cls(tuple(value * scale for value in values))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def p99(self) -> float | None:
        """The value that 99 of 100 do not pass (nearest rank); None when there are too few to tell."""
        if len(self.values) < 50:
            return None
        ranked = sorted(self.values)
        return ranked[-(-len(ranked) * 99 // 100) - 1]

    @property
    def most(self) -> float:
        return max(self.values)
