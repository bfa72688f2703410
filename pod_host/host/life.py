"""The life of the pod, from top to bottom.

    network gate → worker → join (volume id, CA bundle, setup's record) → connect → hello → setup → leases, workspace
    requests, renewals → the connection goes → renew, connect, hello → … → SIGTERM → drain → exit 0

Losing the Runtime is never an end: the host comes back for as long as the pod lives.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from pod_host import __version__, limits
from pod_host.client import Gates, HostApi, Run, retry
from pod_host.contract.hosting import HostJoinAnswer
from pod_host.contract.open_points import FEATURE_FORMS
from pod_host.contract.turn_start import TurnStart
from pod_host.errors import ChannelClosed, ConfigurationError, ConnectRefused, RuntimeRefusal, SandboxError
from pod_host.host import clock
from pod_host.host.connection import Connection
from pod_host.host.credentials import Credentials
from pod_host.host.environment import PROXY_USER, Environments
from pod_host.host.hardening import sandbox_config
from pod_host.host.log import get_log
from pod_host.host.network_gate import pass_network_gate
from pod_host.host.relay import Relay
from pod_host.host.setup import Setup
from pod_host.host.status import Connected, Joined, Phase, Status, StatusServer, Worker
from pod_host.host.trust import TrustBundle, make_trust_directory
from pod_host.host.volume_id import read_or_make
from pod_host.host.workspace import Workspaces
from pod_host.sandbox import Sandbox
from pod_host.sandbox.launch import Launched
from pod_host.sandbox.tools.inputs import TOOL_INPUTS, input_schema
from pod_host.settings import Settings

if TYPE_CHECKING:
    from pod_host.host.turns import Turns
    from pod_host.turn import Turn

log = get_log()


class Host:
    """One host, in a running event loop. ``tls``: for https URLs of the Runtime. ``worker``: one that was launched before."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        tls: ssl.SSLContext | None,
        worker: Launched | None = None,
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._sandbox = Sandbox(sandbox_config(settings), worker)
        self._trust = TrustBundle(settings.harness_dir)
        self._api = HostApi(settings.harness_url, tls)
        self._gates = Gates(settings.gates_url, tls)
        self._credentials = Credentials(
            settings, self._api, joined=self._joined, answered=self._answered, refused=self._fenced
        )
        proxied = settings.egress == "relay" and settings.egress_proxy is not None
        self._relay = Relay(settings.egress_proxy or "", PROXY_USER) if proxied else None
        environments = Environments(settings, environ, self._credentials, self._trust, self._relay)
        self._workspaces = Workspaces(self._sandbox, environments.of_call, settings.skills_dir, plain_http=proxied)
        self._setup = Setup(settings.harness_dir, settings.workspace_dir, self._sandbox, environments.of_setup)
        self._turns: Turns | None = None
        self._connection: Connection | None = None
        self._form = 0  # of FEATURE_FORMS: the one that the Runtime takes
        self._tries = 0  # connections that did not last, in a row
        self._draining = False
        self._started = time.monotonic()
        self._on_the_way: Phase = "network gate"  # where it is before the first join
        self._met: tuple[str, float] | None = None  # the Tenant that is connected to, and since when
        self._status = StatusServer(settings.harness_dir, self.status)
        self._closing: asyncio.Task[None] | None = None
        self._getting_ready: asyncio.Task[None] | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Returns once ``stopping`` is set and everything is given back. Raises NetworkGateError, ConfigurationError
        when a directory cannot be used, SandboxError when the worker cannot start at all; nothing else ends it."""
        living = asyncio.create_task(self._live(), name="life")
        told = asyncio.create_task(stopping.wait(), name="shutdown")
        try:
            await asyncio.wait({living, told}, return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                living.result()  # raises: a life has no other end
            await self._drain(living)
        finally:
            told.cancel()
            living.cancel()
            await asyncio.wait({living})
            if self._getting_ready is not None:
                self._getting_ready.cancel()
            await self._status.stop()
            await self._sandbox.stop()
            if self._relay is not None:
                await self._relay.stop()
            await self._api.close()
            await self._gates.close()
            if self._turns is not None:
                await self._turns.close()

    # --- the way up ---------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        self._make_directories()
        await self._status.start()
        if self._settings.network_gate:
            self._get_ready_meanwhile()
            await pass_network_gate(self._settings.probes, self._settings.harness_address)
        else:
            log.warning(
                "gate.off", reason="POD_HOST_NETWORK_GATE is off: nothing proves that a network policy is in force"
            )
        self._on_the_way = "worker"
        if self._relay is not None:
            await self._relay.start()  # before the worker, which keeps commands from all that is there by then
        await self._start_worker()
        self._on_the_way = "joining"
        renewing = asyncio.create_task(_for_good(self._credentials.keep_fresh), name="renewals")
        try:
            await _for_good(self._connect_once)
        finally:
            renewing.cancel()

    def _make_directories(self) -> None:
        """Before all else: status needs the host's own, and the worker's domain names the trust bundle's."""
        harness_dir = self._settings.harness_dir
        try:
            make_trust_directory(harness_dir)
        except OSError as fault:
            why = os.strerror(fault.errno or 0)
            raise ConfigurationError(
                [f"POD_HOST_HARNESS_DIR is {str(harness_dir)!r}; it cannot be used: {why}"]
            ) from None

    async def _start_worker(self) -> None:
        # The id of a new volume has to reach the disk before the join: meanwhile, then. A fault of it is the join's to tell.
        identified = asyncio.create_task(asyncio.to_thread(read_or_make, self._settings.harness_dir), name="volume id")
        self._get_ready_meanwhile()
        try:
            await self._sandbox.start()
        finally:
            await asyncio.gather(identified, return_exceptions=True)
        confinement = self._sandbox.confinement
        log.info(
            "worker.started",
            landlockAbi=confinement.abi,
            holds=sorted(confinement.held),
            shares=list(confinement.shares),
        )
        if confinement.exposed:
            log.warning("confinement.report", exposed=" ".join(confinement.exposed))

    async def _connect_once(self) -> None:
        """One connection from its token to its end, and the wait before the next."""
        connection = await self._connect(await self._credentials.ready())
        if connection is not None:
            self._connection = connection
            connected_at = time.monotonic()
            try:
                if await self._serve(connection):
                    return  # another form of hello, on a new connection, at once
            finally:
                self._connection = self._met = None
                await connection.close("reconnecting")
            if time.monotonic() - connected_at >= limits.RECONNECT_RESET_SECONDS:
                self._tries = 0
        await retry.pause(spread(self._tries))
        self._tries += 1

    async def _connect(self, host_token: str) -> Connection | None:
        try:
            return await Connection.open(self._settings, host_token, tls=self._tls, workspaces=self._workspaces)
        except ConnectRefused as refusal:
            log.warning("channel.refused", status=refusal.status)
            if refusal.status == 401:  # renewed a moment ago, or past renewing: only a join helps
                self._credentials.drop()
        except ChannelClosed as fault:
            log.warning("channel.refused", reason=fault.message)
        return None

    async def _serve(self, connection: Connection) -> bool:
        """Whether the Runtime refused the form of hello, and there is another to try."""
        features = FEATURE_FORMS[self._form]
        try:
            hello = await connection.hello(features)
        except RuntimeRefusal as refusal:
            log.warning("channel.hello_refused", code=refusal.code, reason=refusal.message, features=features)
            if refusal.code != "invalid":
                return False
            self._form = (self._form + 1) % len(FEATURE_FORMS)  # past the last, it was not the form: from the start
            return self._form != 0
        log.info("channel.connected", tenantId=hello.tenant_id, features=features, renewEveryMs=hello.renew_every_ms)
        self._met = hello.tenant_id, time.monotonic()
        reason = await connection.serve(hello, self._new_turn, self._setup.settle)
        (log.info if self._draining else log.warning)("channel.closed", reason=reason)
        return False

    def _new_turn(self, run: Run, start: TurnStart) -> Turn:
        note = self._setup.note
        return self._all_turns().new(run, start, [note] if note else [])

    def _all_turns(self) -> Turns:
        """Made when it is first needed: the agent loop alone is an eighth of a host's start."""
        if self._turns is None:
            from pod_host.host.turns import Turns

            self._turns = Turns(self._gates, self._workspaces, self._settings.otlp_endpoint)
        return self._turns

    def _get_ready_meanwhile(self) -> None:
        """From the first wait on: for the network, or for a worker that was told what to do."""
        if self._getting_ready is None:
            self._getting_ready = asyncio.create_task(self._get_ready(), name="getting ready")

    async def _get_ready(self) -> None:
        """What would else make the first turn slower than the next."""
        for model in self._all_turns().models:
            await asyncio.sleep(0)
            model.model_rebuild()
        for tool in TOOL_INPUTS:
            await asyncio.sleep(0)
            input_schema(tool)

    # --- how it is ----------------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """All of the host's state that others may see, put together here alone."""
        held, now = self._credentials.held, clock.boottime()
        return Status(
            version=__version__,
            sandbox_id=self._settings.sandbox_id,
            pod_uid=self._settings.pod_uid,
            harness_id=self._settings.harness_id,
            phase=self._phase,
            up_seconds=time.monotonic() - self._started,
            joined=held
            and Joined(
                epoch=held.epoch,
                last_renewal=now - held.came_at,
                next_renewal=self._credentials.due - now,
                token_life=held.ends_at - now,
            ),
            connected=self._met and Connected(tenant_id=self._met[0], seconds=time.monotonic() - self._met[1]),
            runs=self._connection.held_runs if self._connection else (),
            slots=self._settings.slots,
            worker=await self._worker_status(),
            setup_note=self._setup.note,
        )

    @property
    def _phase(self) -> Phase:
        if self._draining:
            return "draining"
        if self._met is not None:
            return "connected"
        return "connecting" if self._credentials.held else self._on_the_way

    async def _worker_status(self) -> Worker:
        try:
            async with asyncio.timeout(limits.STATUS_WORKER_SECONDS):
                report = await self._sandbox.report()
        except (SandboxError, TimeoutError):
            return Worker(alive=False)
        if not report.alive:
            return Worker(alive=False)
        return Worker(
            alive=True,
            pid=report.pid,
            landlock_abi=report.abi,
            holds=tuple(sorted(self._sandbox.confinement.held)),
            shares=self._sandbox.confinement.shares,
            processes=len(report.processes) + report.more,
        )

    # --- what the credentials tell --------------------------------------------------------------------------------------

    async def _joined(self, answer: HostJoinAnswer) -> None:
        await self._setup.offer(answer.setup, answer.seeded)

    def _answered(self, answer: HostJoinAnswer) -> None:
        self._trust.accept(answer.ca_certificate)
        if self._relay is not None:
            self._relay.authorize(answer.egress_token)

    def _fenced(self) -> None:
        """A renewal was refused: what the old token opened is not ours any more."""
        if self._connection is not None:
            self._closing = asyncio.create_task(self._connection.close("the host's token was refused"))

    # --- the way down -------------------------------------------------------------------------------------------------

    async def _drain(self, living: asyncio.Task[None]) -> None:
        self._draining = True
        log.info("shutdown.started")
        for_runs = max(self._settings.drain_seconds - limits.CLOSE_SECONDS, self._settings.drain_seconds / 2)
        if self._connection is not None:
            await self._connection.drain(for_runs)
        living.cancel()
        await self._setup.stop()
        log.info("shutdown.done")


async def _for_good(step: Callable[[], Awaitable[None]]) -> None:
    """Do it again and again. A bug in it is told, with its stack, and is no end of the host either."""
    while True:
        try:
            await step()
        except Exception as fault:  # noqa: BLE001 - see above
            log.error("host.fault", fault=fault, reason=type(fault).__name__)
            await retry.pause(limits.RECONNECT_MOST_SECONDS)


def spread(tries: int) -> float:
    """Seconds before the next connection, when ``tries`` before it did not last. The first return is spread out too: a
    Runtime that restarts loses all of its hosts at one moment."""
    least, first = limits.RECONNECT_FIRST_SECONDS
    return retry.spread_out(tries, first, limits.RECONNECT_MOST_SECONDS, least)
