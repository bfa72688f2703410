"""The forward proxy itself: one event loop, streams with bounded buffers, the egress proxy as the only way out.

A tunnel's bytes are not looked at. A request for a plain http URL becomes a tunnel to that server, one for each request: the
egress proxy knows no other way.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import socket
import struct
from collections.abc import Coroutine
from typing import Any, Final

from pod_host.relay.requests import (
    BadRequest,
    Connect,
    Forward,
    Target,
    connect_request,
    last_of_its_connection,
    read_answer,
    read_request,
    refusal,
)

TUNNELS: Final = 64  # at once: the egress proxy takes no more of one sandbox
CLIENTS: Final = 2 * TUNNELS  # those that have not yet asked for one included
HEAD_SECONDS: Final = 30.0  # for a client to send its request
CONNECT_SECONDS: Final = 10.0  # to the egress proxy
ANSWER_SECONDS: Final = 40.0  # for the egress proxy to look a name up and to connect
IDLE_SECONDS: Final = 5 * 60.0  # nothing crossed either way: as the egress proxy's own
LINGER_SECONDS: Final = 2.0  # for a client to read an answer while it is still sending
PIECE_BYTES: Final = 64 * 1024
REASON_BYTES: Final = 4096  # of a refusal's body, passed on

_END: Final = b"\r\n\r\n"
_BROKEN: Final = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)  # TimeoutError is an OSError

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Way = Coroutine[Any, Any, None]


class Refused(Exception):
    """A request that is answered by us: the status, and a body for people."""

    def __init__(self, status: int, reason: bytes, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.reason = reason
        self.body = body


class Proxy:
    """``authorize`` before it serves, and again with each new token: tunnels that are open stay open."""

    def __init__(self, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._authorization = b""
        self._addresses: list[tuple[str, int]] = []
        self._clients = 0
        self._tunnels = 0

    def authorize(self, authorization: str, addresses: list[tuple[str, int]]) -> None:
        """``authorization``: the value of Proxy-Authorization. ``addresses``: of the egress proxy, no names."""
        self._authorization = authorization.encode("latin-1")
        self._addresses = addresses

    async def serve(self, listener: socket.socket) -> None:
        """Never returns."""
        server = await asyncio.start_server(self._client, sock=listener, limit=PIECE_BYTES, backlog=CLIENTS)
        await server.serve_forever()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._clients >= CLIENTS:
            _break_off(writer)
            return
        self._clients += 1
        try:
            await self._answer(reader, writer)
            await _let_read(reader, writer)  # a server may answer before it has the whole body
        except Refused as refused:
            writer.write(refusal(refused.status, refused.reason, refused.body))
            await _let_read(reader, writer)
        except _BROKEN:
            _break_off(writer)
        finally:
            await self._close(writer)
            self._clients -= 1

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                request = read_request(await reader.readuntil(_END))
        except BadRequest as fault:
            raise _refused(fault.status, str(fault)) from None
        except asyncio.LimitOverrunError:
            raise _refused(431, "the request's head is too long") from None
        if self._tunnels >= TUNNELS:
            raise _refused(429, f"{TUNNELS} tunnels are open")
        self._tunnels += 1
        try:
            from_server, to_server = await self._open(request.target)
            moved = Moved()
            try:
                if isinstance(request, Connect):
                    writer.write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
                    ways = [_pump(reader, to_server, moved), _pump(from_server, writer, moved)]
                    await self._until_idle(moved, ways, [])
                else:
                    body = _send(request, reader, to_server, moved)
                    await self._until_idle(moved, [_pass_answer(from_server, writer, moved)], [body])
            except BaseException:
                _break_off(to_server)
                raise
            finally:
                await self._close(to_server)
        finally:
            self._tunnels -= 1

    async def _open(self, target: Target) -> Streams:
        """A tunnel to the target. Raises Refused."""
        reader, writer = await self._connect()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                writer.write(connect_request(target, self._authorization))
                status, reason = read_answer(await reader.readuntil(_END))
                if status == 200:
                    return reader, writer
                body = b"" if status == 407 else await _some(reader, REASON_BYTES)
        except BadRequest as fault:
            writer.transport.abort()
            raise _refused(fault.status, str(fault)) from None
        except _BROKEN:
            writer.transport.abort()
            raise _refused(502, "the egress proxy did not answer") from None
        except BaseException:  # we are being stopped
            writer.transport.abort()
            raise
        writer.transport.abort()
        if status == 407:  # a client would take it for a question to itself
            raise _refused(502, "the egress proxy refused the token")
        raise Refused(status, reason, body)

    async def _connect(self) -> Streams:
        for address, port in self._addresses:
            with contextlib.suppress(OSError):  # a TimeoutError is one
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await asyncio.open_connection(address, port, limit=PIECE_BYTES)
        raise _refused(502, "the egress proxy cannot be connected to")

    async def _until_idle(self, moved: Moved, ways: list[Way], beside: list[Way]) -> None:
        """Until all ``ways`` have ended. One that breaks ends all, and so does a while in which nothing crosses."""
        loop = asyncio.get_running_loop()
        waiting = {loop.create_task(way) for way in ways}
        extra = {loop.create_task(way) for way in beside}
        tasks = waiting | extra
        try:
            while waiting:
                moved.yes = False
                done, left = await asyncio.wait(
                    waiting | extra, timeout=self._idle_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                if not done and not moved.yes:
                    raise TimeoutError
                waiting, extra = waiting & left, extra & left
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _close(self, writer: asyncio.StreamWriter) -> None:
        """Close, and see that what is still to be sent leaves in time: a peer that reads no more must hold nothing."""
        writer.close()
        try:
            async with asyncio.timeout(self._idle_seconds):
                await writer.wait_closed()
        except OSError:
            writer.transport.abort()


def _break_off(writer: asyncio.StreamWriter) -> None:
    """A reset rather than an end: what is half sent must not look whole."""
    taken = writer.get_extra_info("socket")
    if taken is not None and not writer.is_closing():
        with contextlib.suppress(OSError):
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _let_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take what the client still sends, for a moment: closed on top of it, the connection would be reset and our answer
    lost with it."""
    with contextlib.suppress(*_BROKEN):
        async with asyncio.timeout(LINGER_SECONDS):
            writer.write_eof()
            while await reader.read(PIECE_BYTES):
                pass


class Moved:
    """Whether anything has crossed of late."""

    yes = False


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: Moved) -> None:
    """One way, to its end, which is passed on: the other way may have more to say."""
    await _copy(reader, writer, moved)
    if writer.can_write_eof():
        writer.write_eof()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: Moved) -> None:
    while piece := await reader.read(PIECE_BYTES):
        await _write(writer, piece, moved)


async def _copy_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int, moved: Moved) -> None:
    while count:
        piece = await reader.read(min(count, PIECE_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(b"", count)
        count -= len(piece)
        await _write(writer, piece, moved)


async def _write(writer: asyncio.StreamWriter, piece: bytes, moved: Moved) -> None:
    writer.write(piece)
    await writer.drain()
    moved.yes = True


async def _send(request: Forward, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: Moved) -> None:
    """The request and exactly its body: what the client sends after it is not for this server."""
    await _write(writer, request.head, moved)
    if request.length is not None:
        await _copy_bytes(reader, writer, request.length, moved)
        return
    while True:
        line = await reader.readuntil(b"\r\n")
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            size = -1
        if size < 0:
            raise asyncio.IncompleteReadError(line, None)
        await _write(writer, line, moved)
        if size == 0:
            break
        await _copy_bytes(reader, writer, size + 2, moved)
    while line != b"\r\n":  # the trailer
        line = await reader.readuntil(b"\r\n")
        await _write(writer, line, moved)


async def _pass_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: Moved) -> None:
    """Raises Refused while nothing has been written."""
    while True:
        try:
            head = await reader.readuntil(_END)
            status, _ = read_answer(head)
            if status >= 200:
                head = last_of_its_connection(head)
        except (BadRequest, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise _refused(502, "the server gave no answer that can be read") from None
        await _write(writer, head, moved)
        if status >= 200:
            break
    await _copy(reader, writer, moved)


async def _some(reader: asyncio.StreamReader, most: int) -> bytes:
    """What comes until the end, at most ``most`` bytes."""
    body = b""
    while len(body) < most and (piece := await reader.read(most - len(body))):
        body += piece
    return body


def _refused(status: int, reason: str) -> Refused:
    return Refused(status, http.HTTPStatus(status).phrase.encode(), f"pod-host relay: {reason}\n".encode())
