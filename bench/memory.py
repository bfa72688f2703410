"""Memory of all processes of a pod, idle and with runs in flight. As root: the processes keep it to themselves.

``python -m bench.memory``
"""

from __future__ import annotations

import asyncio
import os

from bench.budgets import BUDGETS
from bench.core import Connection, Core, said
from bench.pod import running_pod
from bench.processes import alone_mib, pss_mib, tree
from bench.rows import Check, Row
from bench.running import alone
from bench.step import conversation
from pod_host.contract.base import JsonObject

RUNS = 8
ENTRIES = 10
SETTLED_SECONDS = 2.0  # after the start or the last frame: what is given back has been


async def measure(short: bool) -> list[Row]:
    if os.geteuid() != 0:
        print("memory: only root can look; left out")
        return []
    async with Core() as core:
        release = asyncio.Event()

        async def wait(body: JsonObject) -> JsonObject:
            await release.wait()
            return said("Done.")

        core.entries = [dict(entry) for entry in conversation(ENTRIES)]
        async with running_pod(core) as pod:
            await asyncio.sleep(SETTLED_SECONDS)
            idle, by_itself = pss_mib(tree(pod.pid)), alone_mib(tree(pod.pid))
            await _run(pod.host, 1)  # what the first turn of a host brings in is no run's own
            await asyncio.sleep(SETTLED_SECONDS)
            used = pss_mib(tree(pod.pid))
            core.model = wait
            for _ in range(RUNS):
                await pod.host.offer()
            for _ in range(RUNS):
                await pod.host.asked["transcript.read"].get()
            await asyncio.sleep(SETTLED_SECONDS)
            each = (pss_mib(tree(pod.pid)) - used) / RUNS
            release.set()
            for _ in range(RUNS):
                await pod.host.asked["turn.completed"].get()
    return [
        Row("idle, all processes (PSS)", "MiB", idle, checks=(Check(idle, BUDGETS.idle_mib),)),
        Row("the same, were nobody else there", "MiB", by_itself),
        Row("idle, after a turn (PSS)", "MiB", used),
        Row(f"a run in flight, {ENTRIES} entries", "MiB", each, checks=(Check(each, BUDGETS.run_mib),)),
    ]


async def _run(host: Connection, count: int) -> None:
    for _ in range(count):
        await host.offer()
        await host.asked["turn.completed"].get()
        await host.asked["transcript.read"].get()


if __name__ == "__main__":
    alone("memory", measure)
