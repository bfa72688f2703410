"""One core, gone for 30 s or more, and 200 hosts that come back to it: in which second how many do, over 20 seeds.

The hosts are real ones (`pod_host.host.life`, its credentials, waits and joins) on a clock of their own; the core, the
sandbox and the sockets between are not there. An outage is short, or longer than a token lives, so that all have to join.

    python -m bench.herd
"""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

from bench.budgets import BUDGETS
from bench.rows import Check, Row
from bench.running import alone
from bench.virtual import VirtualLoop, run
from pod_host.contract.base import JsonObject
from pod_host.contract.hosting import HostJoinAnswer
from pod_host.contract.work import HelloResult
from pod_host.errors import ChannelClosed, JoinUnavailable
from pod_host.host import life, log
from pod_host.settings import Settings

HOSTS = 200
SEEDS = 20
OUTAGES = {"30 to 120 s": (30.0, 120.0), "20 to 40 min": (1200.0, 2400.0)}  # the second: every token has expired
UP_SECONDS = 30.0  # all are connected by then
HOP_SECONDS = (0.001, 0.02)  # what a request takes, or a refused connection
WINDOW_SECONDS = 1.0


async def measure(short: bool) -> list[Row]:
    """In a thread: it has a loop of its own."""
    return await asyncio.to_thread(_rows, 4 if short else SEEDS)


def _rows(seeds: int) -> list[Row]:
    rows = []
    for name, outage in OUTAGES.items():
        returns = [_simulated(seed, outage) for seed in range(seeds)]
        share = max(_fullest(times) / HOSTS for times in returns)
        last = max(max(times) for times in returns)
        what = f"core gone {name}"
        rows.append(Row(f"{what}: fullest second's share", "of 200", share, checks=(Check(share, BUDGETS.herd_share),)))
        rows.append(Row(f"{what}: all are back after", "s", last, checks=(Check(last, BUDGETS.herd_seconds),)))
    return rows


def _fullest(times: list[float]) -> int:
    """The most returns in any second, wherever it begins."""
    times = sorted(times)
    return max(sum(begin <= time < begin + WINDOW_SECONDS for time in times) for begin in times)


class _Core:
    """``up`` or not; ``came``: the moment at which each host last said hello."""

    def __init__(self, pick: random.Random) -> None:
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self.came: dict[object, float] = {}
        self.all_came = asyncio.Event()
        self._pick = pick

    def open(self) -> None:
        self.up.set()
        self.down.clear()

    def close(self) -> None:
        self.down.set()
        self.up.clear()

    def take(self, host: object) -> None:
        self.came[host] = asyncio.get_running_loop().time()
        if len(self.came) == HOSTS:
            self.all_came.set()

    async def hop(self) -> bool:
        await asyncio.sleep(self._pick.uniform(*HOP_SECONDS))
        return self.up.is_set()


class _Api:
    """`client.HostApi` to that core."""

    def __init__(self, core: _Core) -> None:
        self._core = core

    async def join(self, request: object) -> HostJoinAnswer:
        if not await self._core.hop():
            raise JoinUnavailable("connection refused")
        return HostJoinAnswer(
            host_token="host",
            egress_token="egress",
            sandbox_id="sbx",
            epoch=1,
            expires_at=datetime.now(UTC) + timedelta(minutes=15),
            ca_certificate="",
        )

    async def renew(self, host_token: str) -> HostJoinAnswer:
        return await self.join(None)


class _Connection:
    """`host.connection.Connection` to that core: lives as long as the core does."""

    held_runs = ()

    def __init__(self, core: _Core, whose: object) -> None:
        self._core = core
        self._whose = whose

    async def hello(self, features: JsonObject) -> HelloResult:
        if not await self._core.hop():
            raise ChannelClosed("connection lost")
        self._core.take(self._whose)
        return HelloResult(api=5, tenant_id="t", renew_every_ms=10_000)

    async def serve(self, *_: object) -> str:
        await self._core.down.wait()
        return "connection lost"

    async def close(self, reason: str) -> None:
        """Nothing is open."""


def _simulated(seed: int, outage: tuple[float, float]) -> list[float]:
    """Seconds from core's return to each host's."""
    logging.getLogger(log.LOGGER).disabled = True
    pick = random.Random(seed)
    random.seed(seed)  # the hosts' own waits

    async def main(loop: VirtualLoop) -> list[float]:
        core = _Core(pick)

        async def connect(settings: Settings, token: str, *, tls: object, workspaces: object) -> _Connection:
            if not await core.hop():
                raise ChannelClosed("connection refused")
            return _Connection(core, workspaces)

        with tempfile.TemporaryDirectory() as directory, ExitStack() as patches:
            for where, by in (
                ("pod_host.host.life.HostApi", lambda *_: _Api(core)),
                ("pod_host.host.life.Gates", lambda *_: None),
                ("pod_host.host.life.Connection.open", connect),
                ("pod_host.host.life.TrustBundle.accept", lambda *_: None),
                ("pod_host.host.life.time.monotonic", loop.time),
                ("pod_host.host.clock.boottime", loop.time),
            ):
                patches.enter_context(patch(where, by))
            hosts = [_host(Path(directory)) for _ in range(HOSTS)]
            core.open()
            lives = [asyncio.create_task(host._live()) for host in hosts]
            await asyncio.sleep(UP_SECONDS)
            assert len(core.came) == HOSTS
            core.close()
            await asyncio.sleep(pick.uniform(*outage))
            core.came.clear()
            core.all_came.clear()
            core.open()
            back = loop.time()
            await core.all_came.wait()
            for task in lives:
                task.cancel()
            await asyncio.wait(lives)
            return [came - back for came in core.came.values()]

    return run(main)


def _host(directory: Path) -> life.Host:
    (directory / "token").write_text("join-token")
    environ = {
        "NYLORUN_SANDBOX_ID": "sbx",
        "NYLORUN_POD_UID": "pod",
        "NYLORUN_SANDBOX_JOIN_FILE": str(directory / "token"),
        "NYLORUN_HARNESS_URL": "http://127.0.0.1:9",
        "NYLORUN_GATES_URL": "http://127.0.0.1:9",
        "POD_HOST_HARNESS_DIR": str(directory),
        "POD_HOST_NETWORK_GATE": "off",
    }
    host = life.Host(Settings.read(environ), environ, None)

    async def no_worker() -> None:
        """Nothing runs here."""

    host._start_worker = no_worker  # type: ignore[method-assign]
    return host


if __name__ == "__main__":
    alone("herd", measure)
