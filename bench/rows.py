"""The rows of the result: what was measured, beside what, and whether it is what it has to be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.budgets import SLACK
from bench.machine import Machine
from bench.series import Series

RESULTS: Final = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Check:
    """``value`` has to be ``limit`` at most; with ``at_least``, at least. ``what``: of the row, when that is not plain.
    ``enforced``: the short form fails on it. Not on what swings from run to run, nor on what is known not to be reached
    yet (docs/performance.md)."""

    value: float
    limit: float
    what: str = ""
    at_least: bool = False
    enforced: bool = True

    @property
    def part(self) -> float:
        """How much of the limit is used: 1.0 is just within it."""
        return self.limit / self.value if self.at_least else self.value / self.limit

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        verdict = "" if self.part <= 1 else "  ✗" if self.part > SLACK else "  (✗)"
        return f"{self.what}{' ' if self.what else ''}{self.value:.3g} {sign} {self.limit:g}{verdict}"


@dataclass(frozen=True)
class Row:
    """``beside``: the name and the median of what a user would have instead, in the same unit and run. ``cpu_ms``: of our
    own processes, each time."""

    what: str
    unit: str
    median: float
    p99: float | None = None
    beside: tuple[str, float] | None = None
    cpu_ms: float | None = None
    checks: tuple[Check, ...] = ()

    @classmethod
    def of(
        cls,
        what: str,
        unit: str,
        series: Series,
        *,
        beside: tuple[str, Series] | None = None,
        cpu_ms: float | None = None,
        checks: Iterable[Check] = (),
    ) -> Row:
        other = (beside[0], beside[1].median) if beside else None
        return cls(what, unit, series.median, series.p99, other, cpu_ms, tuple(checks))

    @property
    def ratio(self) -> float | None:
        return self.median / self.beside[1] if self.beside and self.beside[1] else None


@dataclass(frozen=True)
class Result:
    bench: str
    rows: tuple[Row, ...]

    def far_off(self) -> list[str]:
        """What a short run fails on."""
        checks = [(row, check) for row in self.rows for check in row.checks if check.enforced]
        return [f"{row.what}: {check}" for row, check in checks if check.part > SLACK]

    def write(self, machine: Machine, floor: Series) -> None:
        """``results/<bench>.json``."""
        RESULTS.mkdir(exist_ok=True)
        told = {
            "bench": self.bench,
            "machine": asdict(machine),
            "floor_ms": {"median": floor.median, "p99": floor.p99},
            "rows": [{**_rounded(asdict(row)), "ratio": row.ratio and round(row.ratio, 3)} for row in self.rows],
        }
        (RESULTS / f"{self.bench}.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


_HEAD: Final = ("what", "p50", "p99", "", "beside it", "p50", "ratio", "CPU ms", "to reach")


def table(rows: Sequence[Row]) -> str:
    lines = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    right = {1, 2, 5, 6, 7}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    beside, other = row.beside or ("", None)
    return (
        row.what,
        _number(row.median),
        _number(row.p99),
        row.unit,
        beside,
        _number(other),
        _number(row.ratio, 2),
        _number(row.cpu_ms, 2),
        ";  ".join(map(str, row.checks)),
    )


def _number(value: float | None, digits: int | None = None) -> str:
    if value is None:
        return ""
    if digits is None:
        digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:.{digits}f}"


def _rounded(value: object) -> dict[str, object]:
    def of(part: object) -> object:
        if isinstance(part, float):
            return float(f"{part:.4g}")
        if isinstance(part, dict):
            return {name: of(inner) for name, inner in part.items()}
        return [of(inner) for inner in part] if isinstance(part, (list, tuple)) else part

    rounded = of(value)
    assert isinstance(rounded, dict)
    return rounded
