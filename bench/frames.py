"""A 32 MiB frame in and one out: how late pings are answered and leases renewed meanwhile. What core itself needs for such a
frame is in it.

``python -m bench.frames``
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import orjson

from bench.budgets import BUDGETS
from bench.core import Core, said
from bench.pod import Pod, running_pod
from bench.rows import Check, Row
from bench.running import alone
from bench.series import Series
from pod_host.contract.base import JsonObject

SIZE = 32 * 1024 * 1024
TEXT = "What a frame of thirty-two mebibytes holds is many lines such as this one.\n"
LARGE_ANSWER = "Say very much."
RENEW_SECONDS = 0.5
PING_SECONDS = 0.01


async def measure(short: bool) -> list[Row]:
    rounds = 2 if short else 6
    text = orjson.Fragment(
        orjson.dumps(TEXT * (SIZE // len(TEXT)))
    )  # written once: that is no part of what is measured
    rows = []
    async with Core(renew_every_ms=round(RENEW_SECONDS * 1000)) as core:
        held = asyncio.Event()

        async def model(body: JsonObject) -> JsonObject:
            if LARGE_ANSWER in str(body["call"]["prompt"][-1]):
                return said(text)
            await held.wait()
            return said("Done.")

        core.model = model
        async with running_pod(core) as pod:
            await pod.host.offer()  # the run whose lease is renewed
            await pod.host.asked["lease.renew"].get()

            async def nothing() -> None:
                await asyncio.sleep(0.5)

            async def come() -> None:
                await pod.host.use("write", {"path": "large.txt", "content": text})

            async def go() -> None:
                await pod.host.offer(LARGE_ANSWER, limits={"recordEntryBytes": 2 * SIZE})
                sent = await pod.host.asked["effect.outcome"].get()
                assert sent.params["bytes"] > SIZE, sent
                await pod.host.asked["turn.completed"].get()

            for name, work in (("nothing else", nothing), ("32 MiB in", come), ("32 MiB out", go)):
                rows += await _lateness(pod, name, work, rounds)
            held.set()
    return rows


async def _lateness(pod: Pod, name: str, work: Callable[[], Awaitable[None]], rounds: int) -> list[Row]:
    pings: list[float] = []
    async with _renewals(pod) as renewals, _pings(pod, pings):
        for _ in range(rounds):
            await work()
            await asyncio.sleep(RENEW_SECONDS)
    late = [after - before - RENEW_SECONDS for before, after in pairwise(renewals)]
    return [
        _row(f"{name}: a ping's answer, latest", pings),
        _row(f"{name}: lease.renew behind its time, latest", late),
    ]


def _row(what: str, late: list[float]) -> Row:
    series = Series.of(late, 1e3)
    return Row(what, "ms", series.most, checks=(Check(series.most, BUDGETS.frame_late_ms),))


@asynccontextmanager
async def _pings(pod: Pod, took: list[float]) -> AsyncIterator[None]:
    """One every PING_SECONDS, or as soon as the one before is answered."""

    async def go_on() -> None:
        while True:
            began = await pod.host.ping()
            took.append(await pod.host.pongs.get() - began)
            await asyncio.sleep(PING_SECONDS)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def _renewals(pod: Pod) -> AsyncIterator[list[float]]:
    """When they came."""
    queue = pod.host.asked["lease.renew"]
    while not queue.empty():
        queue.get_nowait()
    times: list[float] = []
    yield times
    while not queue.empty():
        times.append(queue.get_nowait().at)


if __name__ == "__main__":
    alone("frames", measure)
