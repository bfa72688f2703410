"""HTTP/1.1 over asyncio, below httpx: its own way, through httpcore and anyio, takes a fifteenth of a host's start to import.

A connection carries one request at a time, and is used again only when the answer ended where it said it would: an HTTP
answer does not name its request, so whatever lies there would be taken for the next one, and be journaled as its outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, TypeAlias, cast

import h11

from pod_host import limits
from pod_host.client.light import httpx

_Origin: TypeAlias = tuple[str, str, int]
"""Scheme, host and port."""

_PORTS: Final = {"http": 80, "https": 443}
_HEAD_BYTES: Final = 100 * 1024  # of an answer's head, at most
_PIECE_BYTES: Final = 256 * 1024  # as much leaves at once; as much waits for its reader, then the peer waits too
_NEXT_ADDRESS_SECONDS: Final = 0.25  # an address of a host has so long before its next one is tried beside it
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.GATE_KEEPALIVE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, limits.GATE_KEEPALIVE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class Transport(httpx.AsyncBaseTransport):
    """``tls``: for https. ``idle_seconds``: how long a connection is kept for the next request; 0: not at all."""

    def __init__(self, tls: ssl.SSLContext, *, idle_seconds: float) -> None:
        self._tls = tls
        self._idle_seconds = idle_seconds
        self._idle: defaultdict[_Origin, list[_Connection]] = defaultdict(list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx.TransportError. The answer's body is read from its stream, which is to be closed."""
        timeouts = request.extensions.get("timeout", {})
        origin = _origin(request.url)
        connection = self._rested(origin) or await self._connect(origin, timeouts.get("connect"))
        try:
            with contextlib.suppress(httpx.WriteError):  # a peer may answer, and close, before it has read all
                await connection.send(request, timeouts.get("write"))
            head = await connection.head(timeouts.get("read"))
        except BaseException:
            connection.abort()
            raise
        body = _Body(connection, timeouts.get("read"), lambda: self._give_back(origin, connection))
        return httpx.Response(head.status_code, headers=head.headers.raw_items(), stream=body)

    async def aclose(self) -> None:
        """What is in use is closed by whoever uses it."""
        self._idle_seconds = 0
        for connections in [*self._idle.values()]:
            for connection in [*connections]:
                connection.abort()

    async def _connect(self, origin: _Origin, seconds: float | None) -> _Connection:
        scheme, host, port = origin
        secure = scheme == "https"
        try:
            async with asyncio.timeout(seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection,
                    host,
                    port,
                    ssl=self._tls if secure else None,
                    server_hostname=host if secure else None,
                    happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS,
                )
        except TimeoutError:
            raise httpx.ConnectTimeout("no connection came to be in time") from None
        except OSError as fault:
            raise httpx.ConnectError(str(fault)) from None
        return connection

    def _rested(self, origin: _Origin) -> _Connection | None:
        connections = self._idle[origin]
        while connections:
            connection = connections.pop()
            if connection.wake():
                return connection
        return None

    def _give_back(self, origin: _Origin, connection: _Connection) -> None:
        connections = self._idle[origin]
        if self._idle_seconds and connection.rest(self._idle_seconds, lambda: connections.remove(connection)):
            connections.append(connection)
        else:
            connection.abort()


class _Body(httpx.AsyncByteStream):
    def __init__(self, connection: _Connection, seconds: float | None, read: Callable[[], None]) -> None:
        self._connection = connection
        self._seconds = seconds
        self._read: Callable[[], None] | None = read

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self._connection.body(self._seconds):
            yield piece

    async def aclose(self) -> None:
        read, self._read = self._read, None
        if read is not None:
            read()


class _Connection(asyncio.Protocol):
    """``seconds`` are of one wait for the peer; None: without end."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, _HEAD_BYTES)
        self._transport: asyncio.Transport
        self._came: list[bytes] = []
        self._size = 0  # of what came
        self._heard = asyncio.Event()  # something came, or nothing more will
        self._ended = False
        self._fault: Exception | None = None  # why it ended, other than by the peer's will
        self._writable = asyncio.Event()
        self._rest: tuple[asyncio.TimerHandle, Callable[[], None]] | None = None

    # --- one request and its answer -----------------------------------------------------------------------------------

    async def send(self, request: httpx.Request, seconds: float | None) -> None:
        """Raises httpx.WriteError, httpx.WriteTimeout, httpx.LocalProtocolError."""
        with _told(h11.LocalProtocolError, httpx.LocalProtocolError):
            head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
            await self._write(head, seconds)
            async for piece in cast(httpx.AsyncByteStream, request.stream):
                await self._write(h11.Data(data=piece), seconds)
            await self._write(h11.EndOfMessage(), seconds)

    async def head(self, seconds: float | None) -> h11.Response:
        """Raises as `body`."""
        while not isinstance(event := await self._event(seconds), h11.Response):
            pass  # "100 Continue", say
        return event

    async def body(self, seconds: float | None) -> bytes:
        """The next piece of it; empty: it is whole. Raises httpx.ReadError, httpx.ReadTimeout, httpx.RemoteProtocolError."""
        while isinstance(event := await self._event(seconds), h11.Data):
            if event.data:
                return bytes(event.data)
        return b""

    async def _write(self, event: Any, seconds: float | None) -> None:
        for data in self._http.send_with_data_passthrough(event) or ():
            view = memoryview(data)
            for start in range(0, len(view), _PIECE_BYTES):
                if self._transport.is_closing():
                    raise httpx.WriteError(f"the connection has ended: {self._fault or 'the peer closed it'}")
                self._transport.write(view[start : start + _PIECE_BYTES])
                await _soon(self._writable, seconds, httpx.WriteTimeout("the peer does not read"))

    async def _event(self, seconds: float | None) -> Any:
        with _told(h11.RemoteProtocolError, httpx.RemoteProtocolError):
            while (event := self._http.next_event()) is h11.NEED_DATA:
                data = await self._read(seconds)
                if not data and self._http.their_state is h11.SEND_RESPONSE:
                    raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
                self._http.receive_data(data)
        return event

    async def _read(self, seconds: float | None) -> bytes:
        """What came; empty: the peer has ended it."""
        await _soon(self._heard, seconds, httpx.ReadTimeout("the peer does not answer"))
        data, self._came, self._size = b"".join(self._came), [], 0
        if not data and self._fault is not None:
            raise httpx.ReadError(f"the connection has ended: {self._fault}")
        if not self._ended:
            self._heard.clear()
            self._transport.resume_reading()
        return data

    # --- between two requests -----------------------------------------------------------------------------------------

    def rest(self, seconds: float, over: Callable[[], None]) -> bool:
        """Wait for the next request, ``seconds`` at most, then close; ``over`` is told when it closes. False: it is fit for
        no other request."""
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if not done or self._http.trailing_data[0] or self._came or self._transport.is_closing():
            return False
        self._http.start_next_cycle()
        self._rest = asyncio.get_running_loop().call_later(seconds, self.abort), over
        return True

    def wake(self) -> bool:
        """Whether a request can be sent. What came meanwhile, though the event loop has not told yet, is no answer to it."""
        if self._rest is not None:
            self._rest[0].cancel()
            self._rest = None
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket"), select.POLLIN)
        if self._transport.is_closing() or poll.poll(0):
            self.abort()
            return False
        return True

    def abort(self) -> None:
        self._transport.abort()
        self._end()

    # --- what the event loop tells ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        for option in _KEEPALIVE:
            transport.get_extra_info("socket").setsockopt(*option)
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._rest is not None:  # more than the answer was
            self.abort()
            return
        self._came.append(data)
        self._size += len(data)
        if self._size >= _PIECE_BYTES:
            self._transport.pause_reading()
        self._heard.set()

    def eof_received(self) -> None:
        self._end()  # and the transport closes itself

    def connection_lost(self, fault: Exception | None) -> None:
        self._fault = self._fault or fault
        self._end()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _end(self) -> None:
        self._ended = True
        self._heard.set()
        self._writable.set()
        if self._rest is not None:
            timer, over = self._rest
            self._rest = None
            timer.cancel()
            over()


async def _soon(event: asyncio.Event, seconds: float | None, late: httpx.TimeoutException) -> None:
    if not event.is_set():
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            raise late from None


@contextlib.contextmanager
def _told(theirs: type[Exception], ours: type[httpx.TransportError]) -> Iterator[None]:
    try:
        yield
    except theirs as fault:
        raise ours(str(fault)) from None


def _origin(url: httpx.URL) -> _Origin:
    if url.scheme not in _PORTS or not url.host:
        raise httpx.UnsupportedProtocol("a URL of http or https is needed")
    return url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]
