"""The WebSocket to the Runtime: a thin shell of `contract.rpc.Peer` (Harness API v5, section 1).

A channel lives once. It ends when the peer closes it, when a frame breaks the contract, when nothing is heard for too
long, or by `Channel.close`; then every request in flight fails as ChannelClosed and every served handler is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeAlias

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.frames import CloseCode

from pod_host import limits
from pod_host.client.http import USER_AGENT
from pod_host.client.outbox import Outbox, Outgoing, prepare
from pod_host.contract import rpc
from pod_host.contract.base import TRANSPORT_VERSION, JsonObject, Wire
from pod_host.contract.encoding import encode
from pod_host.contract.hosting import HARNESS_PATH, TRANSPORT_HEADER
from pod_host.contract.methods import CORE_ASKS, CORE_SAYS, HARNESS_ASKS
from pod_host.errors import ChannelClosed, ConnectRefused, PodHostError, RuntimeRefusal

OnRequest: TypeAlias = Callable[[str, Any], Awaitable[Wire | JsonObject]]
OnMessage: TypeAlias = Callable[[str, Wire], None]

_log = logging.getLogger(__name__)
_socket_log = logging.getLogger(f"{__name__}.socket")
_socket_log.setLevel(logging.INFO)  # at DEBUG websockets writes out the upgrade's headers, the host token among them


class _Socket(ClientConnection):
    """A connection that knows when it last heard anything: a frame, a ping, a pong, a piece of a large frame."""

    heard_at: float

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.heard_at = self.loop.time()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.loop.time()
        super().data_received(data)


class Channel:
    """One connection, made by `connect`. See the module's text for how it ends."""

    def __init__(
        self, socket: _Socket, on_request: OnRequest, on_message: OnMessage, *, silence_seconds: float
    ) -> None:
        self._socket = socket
        self._on_request = on_request
        self._on_message = on_message
        self._silence = silence_seconds
        self._peer = rpc.Peer(asks=HARNESS_ASKS, serves=CORE_ASKS, hears=CORE_SAYS)
        self._outbox = Outbox()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._ending: asyncio.Future[rpc.Close] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live())

    @classmethod
    async def connect(
        cls,
        base_url: str,
        host_token: str,
        *,
        tls: ssl.SSLContext | None,
        on_request: OnRequest,
        on_message: OnMessage,
        silence_seconds: float = limits.SILENCE_SECONDS,
    ) -> Self:
        """Connect to ``NYLORUN_HARNESS_URL``. ``tls``: needed for https, see `tls.runtime_tls`.

        ``on_request`` serves one request of the Runtime, in a task of its own: its answer crosses, a PodHostError as its
        code, any other exception as ``internal``; it is cancelled when the Runtime gives up or the channel ends.
        ``on_message`` takes a one-way message and returns at once.
        Raises ConnectRefused (the listener's status) or ChannelClosed (no connection came to be, and why).
        """
        scheme, _, rest = base_url.rstrip("/").partition("://")
        secure = scheme.lower() == "https"
        try:
            socket = await connect(
                f"{'wss' if secure else 'ws'}://{rest}{HARNESS_PATH}",
                create_connection=_Socket,
                additional_headers={"Authorization": f"Bearer {host_token}", TRANSPORT_HEADER: TRANSPORT_VERSION},
                user_agent_header=USER_AGENT,
                compression=None,
                proxy=None,
                max_size=limits.FRAME_BYTES,
                open_timeout=limits.HANDSHAKE_SECONDS,
                close_timeout=limits.CLOSE_SECONDS,
                ping_interval=limits.PING_SECONDS,
                ping_timeout=None,  # silence alone ends a channel: a peer that reads 64 MiB answers a ping late
                logger=_socket_log,
                ssl=tls if secure else None,
            )
        except InvalidStatus as refused:
            raise ConnectRefused(refused.response.status_code) from None
        except TimeoutError:
            raise ChannelClosed(f"no answer to the upgrade within {limits.HANDSHAKE_SECONDS:g} s") from None
        except (OSError, WebSocketException) as fault:
            raise ChannelClosed(f"no connection: {type(fault).__name__}: {fault}".replace(host_token, "[…]")) from None
        assert isinstance(socket, _Socket)
        return cls(socket, on_request, on_message, silence_seconds=silence_seconds)

    async def request(self, method: str, params: Wire) -> Any:
        """Ask the Runtime; its answer as the method's result model. Cancelling the caller gives the request up.

        Raises RuntimeRefusal: the Runtime's code, ``invalid`` for an answer outside its shape, ``limit_exceeded`` for a
        frame that would be too large (nothing was sent). Raises ChannelClosed.
        """
        self._check_open()
        number, frame = self._peer.request(method, params.wire())
        try:
            outgoing = await prepare(frame, f"The {method} request")
            self._check_open()
        except BaseException:  # a cancellation too: nothing was sent, so the peer hears nothing of it
            self._peer.abort(number)
            raise
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._outbox.put(outgoing)
        try:
            return await answer
        except asyncio.CancelledError:
            self._give_up(number, outgoing)
            raise
        finally:
            del self._waiting[number]

    async def wait_closed(self) -> str:
        """The reason for the end, once the socket is closed. Requests and handlers ended before that."""
        await asyncio.shield(self._life)
        return self._ending.result().reason

    async def served(self) -> None:
        """Until every request of the Runtime that is being served is answered, and the answers have left."""
        while self._serving and not self._ending.done():
            await asyncio.wait({*self._serving.values(), self._life}, return_when=asyncio.FIRST_COMPLETED)
        emptied = asyncio.create_task(self._outbox.emptied())
        try:
            await asyncio.wait({emptied, self._life}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            emptied.cancel()

    async def close(self, reason: str) -> None:
        """End the channel and wait until its socket is closed: CLOSE_SECONDS at most for a peer that does not answer."""
        self._end(CloseCode.NORMAL_CLOSURE, reason)
        await asyncio.shield(self._life)

    # --- Life ------------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        work = [
            asyncio.create_task(part)
            for part in (self._read(), self._outbox.write_to(self._socket), self._watch_silence())
        ]
        for task in work:
            task.add_done_callback(self._part_ended)
        end = await self._ending
        for task in work:
            task.cancel()
        await self._close_socket(end)
        await asyncio.wait(work)

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or not (fault := task.exception()):
            return
        if isinstance(fault, ConnectionClosed):
            self._end(CloseCode.ABNORMAL_CLOSURE, _reason(fault))
        else:
            _log.error("the channel failed", exc_info=fault)
            self._end(CloseCode.INTERNAL_ERROR, f"{type(fault).__name__}: {fault}")

    def _end(self, code: int, reason: str) -> None:
        """The first end counts. Callers and handlers learn of it at once, before the socket's closing handshake."""
        if self._ending.done():
            return
        self._ending.set_result(rpc.Close(code, reason))
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ChannelClosed(reason))
        for handler in self._serving.values():
            handler.cancel()

    async def _close_socket(self, end: rpc.Close) -> None:
        if end.code != CloseCode.ABNORMAL_CLOSURE:
            try:
                async with asyncio.timeout(limits.CLOSE_SECONDS):  # a full socket would hold up the closing frame
                    await self._socket.close(end.code, rpc.close_reason(end.reason))
            except TimeoutError:
                pass
        self._socket.transport.abort()
        await self._socket.wait_closed()

    async def _watch_silence(self) -> None:
        while True:
            quiet = self._socket.loop.time() - self._socket.heard_at
            if quiet >= self._silence:
                self._end(CloseCode.ABNORMAL_CLOSURE, f"nothing heard for {self._silence:g} s")
                return
            await asyncio.sleep(self._silence - quiet)

    def _check_open(self) -> None:
        if self._ending.done():
            raise ChannelClosed(self._ending.result().reason)

    # --- In --------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while not self._ending.done():
            for event in self._peer.receive(await self._socket.recv()):
                self._take(event)

    def _take(self, event: rpc.Event) -> None:
        match event:
            case rpc.Settle(number, result, refusal):
                answer = self._waiting.get(number)
                if answer and not answer.done():
                    answer.set_exception(refusal) if refusal else answer.set_result(result)
            case rpc.Serve():
                task = asyncio.create_task(self._serve(event))
                self._serving[event.id] = task
                task.add_done_callback(lambda task: self._served(event, task))
            case rpc.GiveUp(number):
                if handler := self._serving.get(number):
                    handler.cancel()
            case rpc.Deliver(method, params):
                try:
                    self._on_message(method, params)
                except Exception:  # noqa: BLE001 - a fault of ours must not end the connection; it is logged
                    _log.exception("the message %s was not taken", method)
            case rpc.Send(frame):
                self._outbox.put(Outgoing([encode(frame)]))
            case rpc.Close(code, reason):
                self._end(code, reason)

    # --- Out -------------------------------------------------------------------------------------------------------

    def _give_up(self, number: int, outgoing: Outgoing) -> None:
        """Say so to the peer, unless it never heard of the request or has answered it."""
        abort = self._peer.abort(number)
        if abort and not self._ending.done() and not self._outbox.withdraw(outgoing):
            self._outbox.put(Outgoing([encode(abort)]))

    async def _serve(self, asked: rpc.Serve) -> None:
        try:
            result = await self._on_request(asked.method, asked.params)
            outgoing = await prepare(self._peer.answer(asked.id, result), f"The {asked.method} answer")
        except RuntimeRefusal as refusal:
            outgoing = self._refusal(asked, refusal.code, refusal.message)
        except PodHostError as fault:
            outgoing = self._refusal(asked, fault.code, str(fault))
        except Exception as fault:  # noqa: BLE001 - it crosses as `internal`, and is logged
            _log.exception("%s failed", asked.method)
            outgoing = self._refusal(asked, "internal", f"{type(fault).__name__}: {fault}")
        self._outbox.put(outgoing)

    def _served(self, asked: rpc.Serve, task: asyncio.Task[None]) -> None:
        """A handler that was cancelled owes an answer all the same: the peer drops it, and the id is free again."""
        if self._serving.get(asked.id) is task:  # else the peer has used the id anew since it was answered
            del self._serving[asked.id]
        if task.cancelled() and not self._ending.done():
            self._outbox.put(self._refusal(asked, "unavailable", "The requester gave up"))

    def _refusal(self, asked: rpc.Serve, code: str, text: str) -> Outgoing:
        return Outgoing([encode(self._peer.refuse(asked.id, code, text))])


def _reason(closed: ConnectionClosed) -> str:
    """The peer's own words and its code; else what broke."""
    for frame in (closed.rcvd, closed.sent):
        if frame is not None:
            return f"{frame.reason} ({frame.code})" if frame.reason else f"closed with code {frame.code}"
    return f"the connection was lost ({closed.__cause__ or 'no closing handshake'})"
