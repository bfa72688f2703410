"""``workspace.exec`` of ``true``, from core to core over loopback, beside the machine's floor.

``python -m bench.exec``
"""

from __future__ import annotations

import asyncio
import time

from bench.budgets import BUDGETS
from bench.core import Connection
from bench.limits import echoes, spawned_inside
from bench.machine import BASH, spawn_bash, spawn_many
from bench.pod import Pod, running_pod
from bench.processes import cpu_seconds, pythons
from bench.rows import Check, Row
from bench.running import alone
from bench.series import Series

PACE_SECONDS = 0.05
FLOOR = "bash -c true"
BURST = 200


async def measure(short: bool) -> list[Row]:
    async with running_pod() as pod:
        await _warm(pod)
        rows = [await _paced(pod, 100 if short else 1000), await _back_to_back(pod, 400 if short else 2000)]
        rows.append(await _burst(pod, 3 if short else 10))
        rows += await _limits(pod, 100 if short else 300)
    async with running_pod(POD_HOST_SHELLS_AHEAD="0") as pod:
        await _warm(pod)
        rows.append(await _cold(pod, 200 if short else 1000))
    return rows


async def run_true(host: Connection, owner: str = "one") -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    result = await host.use("bash", {"command": "true"}, owner)
    took = time.perf_counter() - began
    assert result["output"]["exitCode"] == 0, result
    return took


async def _warm(pod: Pod) -> None:
    for _ in range(20):
        await run_true(pod.host)
        spawn_bash()


async def _paced(pod: Pod, count: int) -> Row:
    """One every 50 ms, and in the middle of each pause the floor, so that the machine's moods meet both."""
    ours, floor = [], []
    own = pythons(pod.pid)
    spent = cpu_seconds(own)
    for _ in range(count):
        await asyncio.sleep(PACE_SECONDS / 2)
        ours.append(await run_true(pod.host))
        await asyncio.sleep(PACE_SECONDS / 2)
        floor.append(spawn_bash())
    cpu = (cpu_seconds(own) - spent) / count * 1e3
    series, beside = Series.of(ours, 1e3), Series.of(floor, 1e3)
    checks = [Check(series.median / beside.median, BUDGETS.exec_paced_ratio, "p50", enforced=False)]
    if series.p99 is not None:
        checks.append(Check(series.p99 / beside.median, BUDGETS.exec_paced_p99_ratio, "p99", enforced=False))
    return Row.of("exec of true, one every 50 ms", "ms", series, beside=(FLOOR, beside), cpu_ms=cpu, checks=checks)


async def _back_to_back(pod: Pod, count: int, block: int = 50) -> Row:
    limit = BUDGETS.exec_back_to_back_ratio
    return await _blocks(pod, "exec of true, back to back", count, block, limit, enforced=True)


async def _cold(pod: Pod, count: int) -> Row:
    limit = BUDGETS.exec_cold_ratio
    return await _blocks(pod, "exec of true, no shell started ahead", count, 50, limit, enforced=False)


async def _blocks(pod: Pod, what: str, count: int, block: int, limit: float, *, enforced: bool) -> Row:
    """Blocks of calls and blocks of the floor in turn, each block back to back."""
    ours: list[float] = []
    floor: list[float] = []
    own = pythons(pod.pid)
    spent = cpu_seconds(own)
    while len(ours) < count:
        ours += [await run_true(pod.host) for _ in range(block)]
        floor += [spawn_bash() for _ in range(block)]
    cpu = (cpu_seconds(own) - spent) / count * 1e3
    series, beside = Series.of(ours, 1e3), Series.of(floor, 1e3)
    checks = [Check(series.median / beside.median, limit, enforced=enforced)]
    return Row.of(what, "ms", series, beside=(FLOOR, beside), cpu_ms=cpu, checks=checks)


async def _burst(pod: Pod, rounds: int) -> Row:
    """All at once, each in a session of its own, since a session's commands run one after the other."""
    ours, machine = [], []
    own = pythons(pod.pid)
    for number in range(rounds + 1):
        spent = cpu_seconds(own)
        began = time.perf_counter()
        await asyncio.gather(*(run_true(pod.host, f"session-{number}") for number in range(BURST)))
        took = time.perf_counter() - began
        if number:  # the first makes the sessions
            ours.append(BURST / took)
            machine.append(BURST / spawn_many(BURST))
    cpu = (cpu_seconds(own) - spent) / BURST * 1e3
    series, beside = Series.of(ours), Series.of(machine)
    return Row.of(
        f"{BURST} execs of true at once",
        "a second",
        series,
        beside=("bash -c true, all cores", beside),
        cpu_ms=cpu,
        checks=[Check(series.median / beside.median, BUDGETS.exec_burst_share, at_least=True)],
    )


async def _limits(pod: Pod, count: int) -> list[Row]:
    """Half of the way of a paced call, and the whole of what runs when no shell was started ahead."""
    echo = Series.of(await echoes(count, PACE_SECONDS), 1e3)
    paced = []
    for _ in range(count):
        await asyncio.sleep(PACE_SECONDS / 2)
        paced.append(spawn_bash())
    inside = Series.of(await spawned_inside(pod, [BASH, "-c", "true"], count), 1e3)
    floor = Series.of([spawn_bash() for _ in range(count)], 1e3)
    return [
        Row.of("limit: bare WebSocket echo, one every 50 ms", "ms", echo, beside=(FLOOR, Series.of(paced, 1e3))),
        Row.of("limit: bash -c true, started by a command", "ms", inside, beside=(FLOOR, floor)),
    ]


if __name__ == "__main__":
    alone("exec", measure)
