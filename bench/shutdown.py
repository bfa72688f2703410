"""From SIGTERM to ``lease.release``, with no command in flight and with 64, and to the exit.

``python -m bench.shutdown``
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

from bench.budgets import BUDGETS
from bench.core import Core, calls
from bench.pod import Pod, running_pod
from bench.rows import Check, Row
from bench.running import alone
from bench.series import Series
from pod_host.contract.base import JsonObject

COMMANDS = 64
# `sleep` takes SIGTERM and is gone; the other has to be killed when its grace is over.
SCRIPTS = {
    "64 commands": "touch $$.begun; sleep 600",
    "64 that ignore SIGTERM": "trap '' TERM; touch $$.begun; sleep 600",
}


async def measure(short: bool) -> list[Row]:
    rounds = 2 if short else 7
    rows = []
    released, exited = [], []
    for _ in range(2 * rounds):
        async with Core() as core, running_pod(core) as pod:
            core.model = _never
            await pod.host.offer()
            await pod.host.asked["transcript.read"].get()
            release, end = await _terminate(pod, 1)
            released.append(release)
            exited.append(end)
    rows += _rows("no command", released, exited, BUDGETS.release_ms)
    for name, script in SCRIPTS.items():
        released, exited = [], []
        for _ in range(rounds):
            async with Core() as core, running_pod(core, POD_HOST_SLOTS=str(COMMANDS)) as pod:
                release, end = await _with_commands(pod, script)
                released.append(release)
                exited.append(end)
        rows += _rows(name, released, exited, BUDGETS.release_busy_ms)
    return rows


async def _with_commands(pod: Pod, script: str) -> tuple[float, float]:
    async def ask(body: JsonObject) -> JsonObject:
        return calls(("bash", {"command": script}))

    pod.core.model = ask
    for _ in range(COMMANDS):
        await pod.host.offer()
    waiting = f"until [ $(ls | grep -c begun) -ge {COMMANDS} ]; do sleep 0.05; done"
    await pod.host.use("bash", {"command": waiting}, "looks on")
    return await _terminate(pod, COMMANDS)


async def _terminate(pod: Pod, runs: int) -> tuple[float, float]:
    """Seconds until every run was given back, and until the process was gone."""
    began = time.perf_counter()
    os.kill(pod.pid, signal.SIGTERM)
    for _ in range(runs):
        released = (await pod.host.asked["lease.release"].get()).at
    assert await pod.process.wait() == 0
    return released - began, time.perf_counter() - began


def _rows(name: str, released: list[float], exited: list[float], budget: float) -> list[Row]:
    release, end = Series.of(released, 1e3), Series.of(exited, 1e3)
    return [
        Row.of(f"SIGTERM to lease.release, {name}", "ms", release, checks=[Check(release.median, budget)]),
        Row.of(f"SIGTERM to the exit, {name}", "ms", end, checks=[Check(end.median, BUDGETS.exit_ms)]),
    ]


async def _never(body: JsonObject) -> JsonObject:
    """A model that does not answer while the host lives. Its caller goes away."""
    await asyncio.Event().wait()
    raise AssertionError


if __name__ == "__main__":
    alone("shutdown", measure)
