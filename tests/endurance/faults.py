"""What each kind of fault does, and its end: each one heals by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, cast

from tests.endurance.gate import GateRelay, Trouble
from tests.endurance.load import Load
from tests.endurance.pod import Pod
from tests.endurance.runtime import Runtime
from tests.endurance.schedule import Fault
from tests.endurance.wire import Wire


class Faults:
    """``revive``: starts a host where none runs. Below, ``seconds`` is how long a fault lasts."""

    def __init__(
        self,
        pod: Pod,
        runtime: Runtime,
        wire: Wire,
        gate: GateRelay,
        load: Load,
        revive: Callable[[], Awaitable[None]],
    ) -> None:
        self._pod = pod
        self._runtime = runtime
        self._wire = wire
        self._gate = gate
        self._load = load
        self._revive = revive
        self._locks = {name: asyncio.Lock() for name in ("core", "host", "disk", "wire", "worker")}
        self._acting: set[asyncio.Task[None]] = set()

    def begin(self, fault: Fault) -> None:
        task = asyncio.create_task(self._act(fault), name=str(fault))
        self._acting.add(task)

    async def healed(self) -> None:
        """All that was begun is over. Raises what went wrong with it."""
        while self._acting:
            done, self._acting = self._acting, set()
            await asyncio.gather(*done)
        self._wire.heal()
        self._gate.heal()

    def check(self) -> None:
        """Raises what went wrong with one that is over."""
        for task in self._acting:
            if task.done():
                task.result()

    @property
    def acting(self) -> bool:
        return any(not task.done() for task in self._acting)

    async def _act(self, fault: Fault) -> None:
        room, _, kind = fault.kind.partition(".")
        if room == "gate":
            calls, seconds = fault.args
            self._gate.trouble(cast(Trouble, kind), calls, seconds)
            return
        lock = self._locks.get("worker" if room == "zygote" else room)
        act: Callable[..., Any] = getattr(self, f"_{room}_{kind}")
        if lock is None:
            await act(*fault.args)
            return
        async with lock:
            await act(*fault.args)

    # --- core ---------------------------------------------------------------------------------------------------------

    async def _core_killed(self, seconds: float) -> None:
        await self._runtime.end(signal.SIGKILL)
        await asyncio.sleep(seconds)
        await self._runtime.start()

    async def _core_stopped(self, seconds: float) -> None:
        code = await self._runtime.end(signal.SIGTERM)
        assert code == 0, f"the Runtime ended with {code} after SIGTERM"
        await asyncio.sleep(seconds)
        await self._runtime.start()

    async def _core_keys(self, seconds: float) -> None:
        await self._runtime.end(signal.SIGKILL)
        self._runtime.forget_keys()
        await asyncio.sleep(seconds)
        await self._runtime.start()

    async def _core_frozen(self, seconds: float) -> None:
        assert self._runtime.process is not None
        await _frozen(self._runtime.process.pid, seconds)

    async def _core_clock(self, seconds: float) -> None:
        self._runtime.clock.move(wall=seconds)

    # --- the network --------------------------------------------------------------------------------------------------

    async def _wire_cut(self, direction: Any, pieces: int) -> None:
        self._wire.cut(direction, pieces)

    async def _wire_stalled(self, seconds: float) -> None:
        await self._wire.stall(seconds)

    async def _wire_unplugged(self, seconds: float) -> None:
        assert self._pod.network is not None
        self._pod.network.plug(in_=False)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._pod.network.plug(in_=True)

    # --- the pod ------------------------------------------------------------------------------------------------------

    async def _host_killed(self, seconds: float) -> None:
        await self._pod.end_host(signal.SIGKILL)
        await self._pod.emptied()
        await asyncio.sleep(seconds)
        await self._revive()

    async def _host_stopped(self, seconds: float) -> None:
        await self._pod.stop_host()
        await asyncio.sleep(seconds)
        await self._revive()

    async def _host_frozen(self, seconds: float) -> None:
        if self._pod.host:
            await _frozen(self._pod.host, seconds)

    async def _host_clock(self, wall: float, slept: float) -> None:
        self._pod.clock.move(wall=wall, slept=slept)

    async def _worker_killed(self) -> None:
        self._pod.kill(self._pod.worker, signal.SIGKILL)

    async def _worker_frozen(self, seconds: float) -> None:
        if worker := self._pod.worker:
            await _frozen(worker, seconds)

    async def _relay_killed(self) -> None:
        self._pod.kill(self._pod.relay, signal.SIGKILL)

    async def _zygote_killed(self) -> None:
        self._pod.kill(self._pod.zygote, signal.SIGKILL)

    async def _disk_full(self, seconds: float) -> None:
        ballast = self._pod.base / "disk" / "ballast"
        await asyncio.to_thread(_fill, str(ballast))
        try:
            await asyncio.sleep(seconds)
        finally:
            ballast.unlink()

    # --- people -------------------------------------------------------------------------------------------------------

    async def _turn_cancelled(self, place: int) -> None:
        await self._load.cancel(place)


async def _frozen(pid: int, seconds: float) -> None:
    try:
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it was killed meanwhile


def _fill(path: str) -> None:
    """Every page that is left; what the pod frees meanwhile stays free."""
    piece = bytes(1 << 20)
    with open(path, "wb", buffering=0) as file:
        while len(piece) >= 4096:
            try:
                if file.write(piece) < len(piece):
                    continue
            except OSError:
                piece = piece[: len(piece) // 2]
