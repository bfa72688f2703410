"""The WebSocket to the Runtime: a thin shell of `contract.rpc.Peer` (Harness API v5, section 1).

A channel lives once. It ends when the peer closes it, when a frame breaks the contract, when nothing is heard for too
long, or by `Channel.close`; then every request in flight fails as ChannelClosed, and nobody serves any more.

What comes is done in the turn of the event loop that brings it: bytes, message, request, and whatever serves it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, Self, TypeAlias

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.frames import CloseCode

from pod_host import limits
from pod_host.client.http import USER_AGENT
from pod_host.client.outbox import Outbox, Outgoing, prepare
from pod_host.client.serving import OnRequest, Serving
from pod_host.client.socket import Socket
from pod_host.contract import rpc
from pod_host.contract.base import TRANSPORT_VERSION, JsonObject, Wire
from pod_host.contract.encoding import Utf8, encode
from pod_host.contract.hosting import HARNESS_PATH, TRANSPORT_HEADER
from pod_host.contract.methods import CORE_ASKS, CORE_SAYS, HARNESS_ASKS
from pod_host.errors import ChannelClosed, ConnectRefused, PodHostError

OnMessage: TypeAlias = Callable[[str, Wire], None]
OnAnswer: TypeAlias = Callable[[Any], None]
"""Takes how a request ended: its result model, or the PodHostError that `Channel.request` would raise."""

_log = logging.getLogger(__name__)
_socket_log = logging.getLogger(f"{__name__}.socket")
_socket_log.setLevel(logging.INFO)  # at DEBUG websockets writes out the upgrade's headers, the host token among them


class Channel:
    """One connection, made by `connect`. See the module's text for how it ends."""

    def __init__(self, socket: Socket, on_request: OnRequest, on_message: OnMessage, *, silence_seconds: float) -> None:
        self._socket = socket
        self._on_message = on_message
        self._silence = silence_seconds
        self._peer = rpc.Peer(asks=HARNESS_ASKS, serves=CORE_ASKS, hears=CORE_SAYS)
        self._outbox = Outbox(socket)
        self._serving = Serving(self._peer, self._outbox, on_request)
        self._waiting: dict[int, OnAnswer] = {}
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

        ``on_request`` begins to serve one request of the Runtime, ``on_message`` takes a one-way message; both return at
        once.
        Raises ConnectRefused (the listener's status) or ChannelClosed (no connection came to be, and why).
        """
        scheme, _, rest = base_url.rstrip("/").partition("://")
        secure = scheme.lower() == "https"
        try:
            socket = await connect(
                f"{'wss' if secure else 'ws'}://{rest}{HARNESS_PATH}",
                create_connection=Socket,
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
        assert isinstance(socket, Socket)
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

        def settle(end: Any) -> None:
            if not answer.done():
                answer.set_exception(end) if isinstance(end, PodHostError) else answer.set_result(end)

        self._waiting[number] = settle
        self._outbox.put(outgoing)
        try:
            return await answer
        except asyncio.CancelledError:
            self._give_up(number, outgoing)
            raise

    def post(self, method: str, params: JsonObject, on_answer: OnAnswer) -> None:
        """Ask, and do not wait: the request leaves with the next frame that does, or when this turn of the event loop is
        over. ``params``: wire JSON."""
        if self._ending.done():
            on_answer(ChannelClosed(self._ending.result().reason))
            return
        number, frame = self._peer.request(method, params)
        self._waiting[number] = on_answer
        self._outbox.put(Outgoing([encode(frame)]), at_once=False)

    async def wait_closed(self) -> str:
        """The reason for the end, once the socket is closed. Requests and handlers ended before that."""
        await asyncio.shield(self._life)
        return self._ending.result().reason

    async def served(self) -> None:
        """Until every request of the Runtime that is being served is answered, and the answers have left."""
        while not self._ending.done() and not (self._serving.idle and self._outbox.empty):
            self._outbox.moved.clear()
            await self._outbox.moved.wait()

    async def close(self, reason: str) -> None:
        """End the channel and wait until its socket is closed: CLOSE_SECONDS at most for a peer that does not answer."""
        self._end(CloseCode.NORMAL_CLOSURE, reason)
        await asyncio.shield(self._life)

    # --- Life ------------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        self._socket.listen(self._hear, self._lose, self._outbox.go_on)
        work = [asyncio.create_task(part) for part in (self._outbox.write_large(), self._watch_silence())]
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
        if not isinstance(fault, ConnectionClosed):  # of which `_lose` hears
            self._fail(fault)

    def _lose(self, reason: str) -> None:
        self._end(CloseCode.NORMAL_CLOSURE, reason)

    def _fail(self, fault: BaseException) -> None:
        _log.error("the channel failed", exc_info=fault)
        self._end(CloseCode.INTERNAL_ERROR, f"{type(fault).__name__}: {fault}")

    def _end(self, code: int, reason: str) -> None:
        """The first end counts. Whoever waits or serves learns of it at once, before the socket's closing handshake."""
        if self._ending.done():
            return
        self._ending.set_result(rpc.Close(code, reason))
        waiting, self._waiting = self._waiting, {}
        for on_answer in waiting.values():
            on_answer(ChannelClosed(reason))
        self._serving.end()
        self._outbox.moved.set()

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

    def _hear(self, message: Utf8, is_text: bool) -> None:
        if self._ending.done():
            return
        try:
            for event in self._peer.receive(message) if is_text else [rpc.Close(*rpc.NOT_JSON)]:
                self._take(event)
        except Exception as fault:  # noqa: BLE001 - a fault of ours; the channel ends with it
            self._fail(fault)

    def _take(self, event: rpc.Event) -> None:
        match event:
            case rpc.Serve():
                self._serving.begin(event)
            case rpc.Settle(number, result, refusal):
                if on_answer := self._waiting.pop(number, None):
                    on_answer(refusal or result)
            case rpc.GiveUp(number):
                self._serving.give_up(number)
            case rpc.Deliver(method, params):
                try:
                    self._on_message(method, params)
                except Exception:  # noqa: BLE001 - a fault of ours must not end the connection; it is logged
                    _log.exception("the message %s was not taken", method)
            case rpc.Send(frame):
                self._outbox.put(Outgoing([encode(frame)]))
            case rpc.Close(code, reason):
                self._end(code, reason)

    def _give_up(self, number: int, outgoing: Outgoing) -> None:
        """Say so to the peer, unless it never heard of the request or has answered it."""
        self._waiting.pop(number, None)
        abort = self._peer.abort(number)
        if abort and not self._ending.done() and not self._outbox.withdraw(outgoing):
            self._outbox.put(Outgoing([encode(abort)]))
