"""The harness listener: host/join, host/renew, and the WebSocket (Harness API v5, sections 1 and 9)."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from aiohttp import web

from pod_host.contract.base import TRANSPORT_VERSION, JsonObject
from pod_host.contract.encoding import decode
from pod_host.contract.hosting import HARNESS_PATH, JOIN_PATH, RENEW_PATH, TRANSPORT_HEADER, HostJoinRequest
from pod_host.dev.authority import HOST, Authority, TokenRefused
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.connection import Connection
from pod_host.dev.leases import Leases
from pod_host.dev.listening import base_url, bearer, error_answer, host_names, json_answer, read_body, serve
from pod_host.dev.record import Record
from pod_host.dev.sandbox import Host, HostRefused, Sandbox
from pod_host.dev.service import Service
from pod_host.errors import ContractViolation
from pod_host.limits import FRAME_BYTES

log = logging.getLogger(__name__)

JOIN_BYTES: Final = 8 * 1024
EPOCH_MOVED: Final = (1000, "the sandbox's host epoch moved")
STOPPING: Final = (1001, "core is stopping")
_BRIEF: Final = {"Connection": "close", "Cache-Control": "no-store"}


class HarnessListener:
    def __init__(
        self,
        config: RuntimeConfig,
        listener: socket.socket,
        record: Record,
        authority: Authority,
        sandbox: Sandbox,
        leases: Leases,
        service: Service,
    ) -> None:
        self._config = config
        self._record = record
        self._authority = authority
        self._sandbox = sandbox
        self._leases = leases
        self._service = service
        self._listener = listener
        self.url = base_url(listener)
        self._hosts = host_names(listener, config.allowed_hosts)
        self._connections: list[Connection] = []
        self._closing = False
        self._closes: set[asyncio.Task[None]] = set()
        self._runner: web.ServerRunner | None = None
        sandbox.on_epoch = self._fence

    async def start(self) -> None:
        self._runner = await serve(self._answer, self._listener)

    async def stop(self) -> None:
        """Runs get a moment to be given back; then the sockets are closed, and ended when they do not close."""
        self._closing = True
        await self._leases.stop()
        try:
            async with asyncio.timeout(self._config.times.stop):
                closes = [connection.close(*STOPPING) for connection in self._connections]
                await asyncio.gather(*closes, *self._closes, return_exceptions=True)
        except TimeoutError:
            log.info("a connection did not close in time")
        for connection in list(self._connections):
            connection.terminate(STOPPING[1])
        if self._runner is not None:
            await self._runner.cleanup()

    def workspace_connection(self) -> Connection | None:
        """The first connection that declared ``features.workspace``."""
        return next((one for one in self._connections if one.closed is None and one.serves_workspace), None)

    @property
    def connected(self) -> bool:
        return any(one.harness_id and one.closed is None for one in self._connections)

    # --- Requests --------------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path in (JOIN_PATH, RENEW_PATH):
            return await self._join_or_renew(request)
        refusal = self._refusal(request)
        if isinstance(refusal, web.Response):
            return refusal
        return await self._connected(request, refusal)

    def _refusal(self, request: web.BaseRequest) -> web.Response | Host:
        """The checks of an upgrade, in core's order; the host when all of them pass."""
        if self._closing:
            return _bare(503)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return _bare(426, {TRANSPORT_HEADER: TRANSPORT_VERSION})
        if request.path != HARNESS_PATH:
            return _bare(404)
        if request.headers.get("Host", "").lower() not in self._hosts:
            return _bare(421)
        token = bearer(request)
        if token is None or not self._authority.is_kind(HOST, token):
            return self._unauthorized("upgrade", "no host token")
        if request.headers.getall(TRANSPORT_HEADER, []) != [TRANSPORT_VERSION]:
            return _bare(426, {TRANSPORT_HEADER: TRANSPORT_VERSION})
        try:
            return self._sandbox.verify(token)
        except TokenRefused as fault:
            return self._unauthorized("upgrade", str(fault))

    def _unauthorized(self, what: str, reason: str) -> web.Response:
        self._record.add("host.refused", what=what, reason=reason)
        return _bare(401, {"WWW-Authenticate": "Bearer"})

    async def _connected(self, request: web.BaseRequest, host: Host) -> web.StreamResponse:
        # One byte more than the most: aiohttp refuses a message that reaches its limit.
        web_socket = web.WebSocketResponse(
            autoping=False, compress=False, max_msg_size=FRAME_BYTES + 1, timeout=self._config.times.stop
        )
        await web_socket.prepare(request)
        connection = Connection(web_socket, request, host, self._config.times)
        self._connections.append(connection)
        try:
            await connection.serve(self._service.serve)
        finally:
            self._connections.remove(connection)
            self._leases.lost(connection)
            if connection.harness_id:
                self._record.add("host.disconnected", reason=connection.closed)
        return web_socket

    def _fence(self) -> None:
        """The epoch moved: every connection of a host before this one is closed, and its runs are over."""
        for connection in self._connections:
            if connection.host.epoch != self._sandbox.epoch:
                connection.give_up(EPOCH_MOVED[1])
                self._leases.lost(connection)
                task = asyncio.create_task(connection.close(*EPOCH_MOVED))
                self._closes.add(task)
                task.add_done_callback(self._closes.discard)

    # --- host/join and host/renew ------------------------------------------------------------------------------------------

    async def _join_or_renew(self, request: web.BaseRequest) -> web.Response:
        if self._closing:
            return error_answer(503, "unavailable", "Try again", _BRIEF)
        if request.headers.get("Host", "").lower() not in self._hosts:
            return _bare(421)
        if request.method != "POST":
            return _bare(405, {"Allow": "POST"})
        try:
            answer = await self._join(request) if request.path == JOIN_PATH else self._renew(request)
        except ContractViolation as fault:
            return error_answer(400, "invalid", str(fault), _BRIEF)
        except HostRefused as fault:
            what = "join" if request.path == JOIN_PATH else "renew"
            self._record.add("host.refused", what=what, reason=str(fault))
            headers = {**_BRIEF, "WWW-Authenticate": "Bearer"}
            return error_answer(401, "unauthorized", f"The {what} was refused", headers)
        return json_answer(answer, headers=_BRIEF)

    async def _join(self, request: web.BaseRequest) -> JsonObject:
        body = await read_body(request, JOIN_BYTES)
        if body is None:
            raise ContractViolation(f"Invalid join: the body is over {JOIN_BYTES} bytes")
        return self._sandbox.join(HostJoinRequest.read(decode(body), "join"))

    def _renew(self, request: web.BaseRequest) -> JsonObject:
        token = bearer(request)
        if token is None:
            raise HostRefused("no bearer")
        return self._sandbox.renew(token)


def _bare(status: int, headers: dict[str, str] | None = None) -> web.Response:
    """A refusal without a body."""
    return web.Response(status=status, headers={"Connection": "close", "Content-Length": "0", **(headers or {})})
