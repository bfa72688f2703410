"""One connection to the Runtime: hello, setup, leases, workspace requests, and its end (Harness API v5, sections 1 and 2)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from pod_host import __version__, limits
from pod_host.client import Channel, Served
from pod_host.contract.base import HARNESS_API_VERSION, JsonObject, Wire
from pod_host.contract.work import Cancel, HelloParams, HelloResult
from pod_host.errors import RuntimeRefusal
from pod_host.host.leases import Leases, NewTurn
from pod_host.host.log import get_log
from pod_host.host.workspace import Workspaces
from pod_host.settings import Settings

log = get_log()


class Connection:
    """Made by `open`; used once."""

    def __init__(self, settings: Settings, workspaces: Workspaces) -> None:
        self._settings = settings
        self._workspaces = workspaces
        self._channel: Channel
        self._leases: Leases | None = None
        self._taking: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, settings: Settings, host_token: str, *, tls: ssl.SSLContext | None, workspaces: Workspaces
    ) -> Connection:
        """Raises ConnectRefused or ChannelClosed."""
        connection = cls(settings, workspaces)
        connection._channel = await Channel.connect(
            settings.harness_url,
            host_token,
            tls=tls,
            on_request=connection._serve,
            on_message=connection._hear,
        )
        return connection

    async def hello(self, features: JsonObject) -> HelloResult:
        """The first request. Raises RuntimeRefusal: ``invalid`` when it does not like what it is told."""
        params = HelloParams(
            api=HARNESS_API_VERSION, name=self._settings.harness_id, version=__version__, features=features
        )
        try:
            async with asyncio.timeout(limits.HANDSHAKE_SECONDS):
                answer: HelloResult = await self._channel.request("hello", params)
        except TimeoutError:
            raise RuntimeRefusal("unavailable", "hello was not answered") from None
        return answer

    async def serve(self, hello: HelloResult, new_turn: NewTurn, set_up: Callable[[], Awaitable[None]]) -> str:
        """Set up, then take runs, until the connection is gone; every run is over on return. Gives the reason.

        Workspace requests are served from the beginning: the setup does not hold them back."""
        self._leases = Leases(
            self._channel,
            slots=self._settings.slots,
            renew_every=hello.renew_every_ms / 1000,
            new_turn=new_turn,
        )
        self._taking = asyncio.create_task(self._take(self._leases, set_up), name="leases")
        try:
            return await self._channel.wait_closed()
        finally:
            self._taking.cancel()
            await self._leases.stop("shutdown", limits.RUNS_STOP_SECONDS)

    async def drain(self, seconds: float) -> None:
        """No new runs; those held are stopped and given back within ``seconds``; then the connection is closed."""
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait({self._taking})  # the waiting lease is given up before the connection goes
        self._workspaces.close()  # what clients asked for ends too, and is answered with what there is
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(self._stop_leases(seconds), self._channel.served())
        except TimeoutError:
            log.warning("shutdown.late", reason="not every workspace request was answered")
        await self.close("harness stopped")

    async def _stop_leases(self, seconds: float) -> None:
        if self._leases is not None:
            await self._leases.stop("shutdown", seconds)

    async def close(self, reason: str) -> None:
        await self._channel.close(reason)

    @property
    def held_runs(self) -> tuple[str, ...]:
        return self._leases.held if self._leases else ()

    async def _take(self, leases: Leases, set_up: Callable[[], Awaitable[None]]) -> None:
        try:
            await set_up()
        except Exception as fault:  # noqa: BLE001 - a host that never leases would make every turn wait for good
            log.error("setup.failed", fault=fault, reason="a fault of the host")
        await leases.take()

    def _serve(self, served: Served) -> None:
        self._workspaces.serve(self._channel.post, served)

    def _hear(self, method: str, params: Wire) -> None:
        assert isinstance(params, Cancel)  # the one message of the contract
        if self._leases is not None:
            self._leases.cancel(params)
