"""One host's WebSocket, from core's side: a thin shell of the contract's `Peer` (Harness API v5, section 1)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from aiohttp import WSMsgType, web

from pod_host.contract import rpc
from pod_host.contract.base import JsonObject, is_harness_id
from pod_host.contract.encoding import encode
from pod_host.contract.frames import message
from pod_host.contract.frames import refusal as refusal_frame
from pod_host.contract.methods import CORE_ASKS, HARNESS_ASKS
from pod_host.dev.config import Times
from pod_host.dev.runs import Run
from pod_host.dev.sandbox import Host
from pod_host.errors import ChannelClosed, ContractViolation, PodHostError, RuntimeRefusal
from pod_host.limits import FRAME_BYTES

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[["Connection", str, Any], Awaitable[Any]]
"""Serves one request: the connection, the method and its params; the answer's JSON."""


class Connection:
    """``harness_id`` and ``features`` are what ``hello`` said; the id is empty before it. ``acting_for``: by workspace
    request in flight, the session that it is for; None: the whole pod."""

    def __init__(self, socket: web.WebSocketResponse, request: web.BaseRequest, host: Host, times: Times) -> None:
        self.host = host
        self.harness_id = ""
        self.features: JsonObject = {}
        self.runs: dict[str, Run] = {}
        self.acting_for: dict[int, str | None] = {}
        self._socket = socket
        self._transport = request.transport
        self._times = times
        self._peer = rpc.Peer(asks=CORE_ASKS, serves=HARNESS_ASKS, hears={})
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._serving: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = time.monotonic()
        self._closed: str | None = None

    @property
    def serves_workspace(self) -> bool:
        """A feature that is declared as absent (null) or as false is not there."""
        return self.features.get("workspace") not in (None, False)

    @property
    def closed(self) -> str | None:
        """Why the socket is gone, or going."""
        return self._closed

    async def serve(self, handler: Handler) -> None:
        """Until the socket is gone."""
        beat = asyncio.create_task(self._beat())
        try:
            async for received in self._socket:
                self._heard = time.monotonic()
                if received.type is WSMsgType.PING:
                    await self._socket.pong(received.data)
                elif received.type is WSMsgType.TEXT or received.type is WSMsgType.BINARY:
                    is_text = received.type is WSMsgType.TEXT
                    for event in self._peer.receive(received.data) if is_text else [rpc.Close(*rpc.NOT_JSON)]:
                        await self._on(event, handler)
                elif received.type is WSMsgType.ERROR:
                    self._close_reason(f"the WebSocket failed: {received.data}")
        except ConnectionError as fault:
            self._close_reason(str(fault) or type(fault).__name__)
        finally:
            beat.cancel()
            self._close_reason(f"closed by the host ({self._socket.close_code})")
            await self._end_tasks()

    async def ask(self, method: str, params: JsonObject, *, session_id: str | None = None) -> Any:
        """A request to the host. Cancelled: the host is told to give it up. Raises RuntimeRefusal."""
        if self._closed is not None:
            raise ChannelClosed(self._closed)
        number, frame = self._peer.request(method, params)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self.acting_for[number] = session_id
        try:
            await self._send(frame)
            return await answer
        except asyncio.CancelledError:
            gave_up = self._peer.abort(number)
            if gave_up is not None:
                self._post(gave_up)
            raise
        finally:
            self._asked.pop(number, None)
            self.acting_for.pop(number, None)

    def tell(self, method: str, params: JsonObject) -> None:
        """A one-way message; lost when the socket is."""
        self._post(message(method, params))

    def give_up(self, reason: str) -> None:
        """From now on it gets nothing more: it is about to be closed."""
        self._close_reason(reason)

    async def close(self, code: int, reason: str) -> None:
        self._close_reason(reason)
        await self._socket.close(code=code, message=reason.encode())

    def terminate(self, reason: str) -> None:
        """Without a closing handshake: the peer does not listen."""
        self._close_reason(reason)
        if self._transport is not None:
            self._transport.abort()

    # --- Inside ----------------------------------------------------------------------------------------------------------

    async def _on(self, event: rpc.Event, handler: Handler) -> None:
        if isinstance(event, rpc.Send):
            await self._send(event.frame)
        elif isinstance(event, rpc.Close):
            await self.close(event.code, event.reason)
        elif isinstance(event, rpc.Serve):
            work = asyncio.ensure_future(handler(self, event.method, event.params))
            self._serving[event.id] = work
            self._spawn(self._answer(event, work))
        elif isinstance(event, rpc.Settle):
            answer = self._asked.pop(event.id, None)
            if answer is None or answer.done():
                return
            if event.refusal is not None:
                answer.set_exception(event.refusal)
            else:
                answer.set_result(event.result)
        elif isinstance(event, rpc.GiveUp):
            given_up = self._serving.get(event.id)
            if given_up is not None:
                given_up.cancel()

    async def _answer(self, asked: rpc.Serve, work: asyncio.Future[Any]) -> None:
        """Every request gets an answer, whatever happens; one that was given up too (section 1)."""
        try:
            frame = self._peer.answer(asked.id, await work)
        except asyncio.CancelledError:
            frame = self._peer.refuse(asked.id, "unavailable", "The requester gave up")
        except RuntimeRefusal as refusal:
            frame = self._peer.refuse(asked.id, refusal.code, refusal.message)
        except PodHostError as fault:
            frame = self._peer.refuse(asked.id, fault.code, str(fault))
        except Exception as fault:  # a fault of core is the request's answer, not the connection's end
            log.exception("%s failed", asked.method)
            frame = self._peer.refuse(asked.id, "internal", f"{type(fault).__name__}: {fault}")
        finally:
            self._serving.pop(asked.id, None)
        try:
            await self._send(frame)
        except ContractViolation as fault:
            await self._send(refusal_frame(asked.id, "internal", str(fault)))

    def _post(self, frame: JsonObject) -> None:
        self._spawn(self._send(frame))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, frame: JsonObject) -> None:
        text = encode(frame)
        if len(text) > FRAME_BYTES:
            raise ContractViolation(f"a frame of {len(text)} bytes; at most {FRAME_BYTES} may cross")
        try:
            await self._socket.send_frame(text, WSMsgType.TEXT)
        except (ConnectionError, RuntimeError):
            # The socket closes while we speak; `serve` sees it and says why.
            log.debug("a frame was lost: the socket closes")

    async def _beat(self) -> None:
        """Protocol pings, and an end to a peer that says nothing."""
        while True:
            silent = time.monotonic() - self._heard
            if silent >= self._times.silence:
                self.terminate(f"nothing heard for {self._times.silence:g} s")
                return
            await asyncio.sleep(min(self._times.ping, self._times.silence - silent))
            self._spawn(self._ping())  # not awaited: it waits for a peer that does not read

    async def _ping(self) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):  # the socket closes; `serve` sees it
            await self._socket.ping()

    def _close_reason(self, reason: str) -> None:
        self._closed = self._closed or reason

    async def _end_tasks(self) -> None:
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ChannelClosed(self._closed or ""))
        for work in list(self._serving.values()):
            work.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def check_harness_id(name: str, expected: str) -> None:
    """Raises RuntimeRefusal unless ``name`` is the harness that the credential is for."""
    if not is_harness_id(name) or name != expected:
        raise RuntimeRefusal("invalid", f"name is {name}, but the credential is for harness {expected}")
