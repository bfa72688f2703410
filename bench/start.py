"""From ``pod-host run`` to its first lease, beside a Python that imports what it is made of; the first turn, beside the
second.

``python -m bench.start``
"""

from __future__ import annotations

import subprocess
import sys
import time

from bench.budgets import BUDGETS
from bench.core import Core
from bench.pod import Pod, running_pod
from bench.rows import Check, Row
from bench.running import alone
from bench.series import Series

IMPORTS = "import asyncio, httpx, pydantic, websockets"


async def measure(short: bool) -> list[Row]:
    leases, imports, first, second = [], [], [], []
    for number in range(6 if short else 20):
        async with Core() as core, running_pod(core) as pod:
            lease = (await pod.host.asked["lease"].get()).at - pod.began
            turns = [await _turn(pod) for _ in range(2)]
        took = _import()
        if number:  # files are in the page cache then
            leases.append(lease)
            imports.append(took)
            first.append(turns[0])
            second.append(turns[1])
    lease_series, import_series = Series.of(leases, 1e3), Series.of(imports, 1e3)
    first_series, second_series = Series.of(first, 1e3), Series.of(second, 1e3)
    return [
        Row.of(
            "start to first lease",
            "ms",
            lease_series,
            beside=("python, its imports", import_series),
            checks=[Check(lease_series.median / import_series.median, BUDGETS.start_ratio)],
        ),
        Row.of(
            "first turn",
            "ms",
            first_series,
            beside=("second turn", second_series),
            checks=[Check(first_series.median - second_series.median, BUDGETS.first_turn_over_ms, "over it")],
        ),
    ]


async def _turn(pod: Pod) -> float:
    """Seconds from the offer of a turn that says one thing to its end."""
    began = await pod.host.offer()
    return (await pod.host.asked["turn.completed"].get()).at - began


def _import() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    alone("start", measure)
