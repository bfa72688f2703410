"""Runs benches: one alone, or all of them with the picture."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from bench.machine import Machine, idle_floor
from bench.rows import Result, Row, table

Measure: TypeAlias = Callable[[bool], Awaitable[list[Row]]]
"""A bench: ``short`` or in full, to its rows."""


def alone(name: str, measure: Measure) -> None:
    """``python -m bench.NAME [--short]``: its table, and its JSON unless it is short."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}")
    parser.add_argument("--short", action="store_true", help="fewer rounds; nothing is written")
    short = parser.parse_args().short
    machine, before = Machine.this(), idle_floor(100)
    result = run(name, measure, short)
    after = idle_floor(100)
    print(f"{machine}\nfloor before {before.median:.2f} ms, after {after.median:.2f} ms\n")
    print(table(result.rows))
    if not short:
        result.write(machine, before)


def run(name: str, measure: Measure, short: bool) -> Result:
    async def rows() -> list[Row]:
        return await measure(short)

    return Result(name, tuple(asyncio.run(rows())))
