"""The relay's proxy over real sockets, in front of an egress proxy that the test plays."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from pod_host.relay import proxy as relay
from pod_host.relay.proxy import Proxy

WAIT = 20.0
AUTHORIZATION = "Basic bnlsb3J1bjp0b2tlbg=="

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Egress:
    """An egress proxy. ``heads``: of the requests that came; ``serve``: what is at the end of a tunnel; ``answer``: of a
    refusal."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.answer = b"HTTP/1.1 200 Connection Established\r\n\r\n"
        self.serve: Serve = echo
        self.address = ("", 0)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.answer)
            if self.answer.startswith(b"HTTP/1.1 200"):
                await self.serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()


def reset(writer: asyncio.StreamWriter) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


class Relayed:
    """A proxy in this process, and clients of it."""

    def __init__(self, egress: Egress, proxy: Proxy, port: int) -> None:
        self.egress = egress
        self.proxy = proxy
        self.port = port
        self.clients: list[Streams] = []

    async def client(self) -> Streams:
        streams = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(streams)
        return streams

    async def ask(self, request: bytes) -> tuple[bytes, Streams]:
        """The head of the answer."""
        reader, writer = await self.client()
        writer.write(request)
        return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT), (reader, writer)

    async def tunnel(self) -> Streams:
        head, streams = await self.ask(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        return streams

    async def whole(self, request: bytes) -> bytes:
        """The whole answer, to the end of the connection."""
        reader, writer = await self.client()
        writer.write(request)
        return await asyncio.wait_for(reader.read(-1), WAIT)


Start = Callable[..., Awaitable[Relayed]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[tuple[Relayed, asyncio.Task[None]]] = []

    async def make(*, idle_seconds: float = relay.IDLE_SECONDS) -> Relayed:
        egress = Egress()
        await egress.start()
        proxy = Proxy(idle_seconds=idle_seconds)
        proxy.authorize(AUTHORIZATION, [egress.address])
        listener = socket.create_server(("127.0.0.1", 0))
        relayed = Relayed(egress, proxy, listener.getsockname()[1])
        started.append((relayed, asyncio.create_task(proxy.serve(listener))))
        return relayed

    yield make
    for relayed, serving in started:
        for _, writer in relayed.clients:
            writer.transport.abort()
        serving.cancel()
        await asyncio.wait({serving})
        await relayed.egress.stop()


async def test_a_tunnel_carries_bytes_both_ways_to_their_ends(start: Start) -> None:
    relayed = await start()
    reader, writer = await relayed.tunnel()
    sent = bytes(range(256)) * 20_000
    writer.write(sent)
    writer.write_eof()  # our end alone: what comes back comes after it
    assert await asyncio.wait_for(reader.read(-1), WAIT) == sent
    assert relayed.egress.heads == [
        b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nProxy-Authorization: "
        + AUTHORIZATION.encode()
        + b"\r\n\r\n"
    ]


async def test_a_client_may_send_before_the_answer_and_the_server_speak_first(start: Start) -> None:
    relayed = await start()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n" + await reader.readexactly(5))

    relayed.egress.serve = greet
    said = await relayed.whole(b"CONNECT a.test:443 HTTP/1.1\r\n\r\nearly")
    assert said.partition(b"\r\n\r\n")[2] == b"220 hello\r\nearly"


async def test_a_side_that_does_not_read_stops_the_other(start: Start) -> None:
    relayed = await start()
    taken = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await taken.wait()

    relayed.egress.serve = deaf
    _, writer = await relayed.tunnel()
    writer.transport.set_write_buffer_limits(high=0)
    sent = 0
    try:
        while sent < 1 << 30:
            writer.write(bytes(1 << 20))
            sent += 1 << 20
            await asyncio.wait_for(writer.drain(), 2.0)
    except TimeoutError:
        pass
    taken.set()
    assert sent < 64 << 20  # what kernel and relay hold between them


async def test_a_side_that_breaks_off_is_broken_off_on_the_other(start: Start) -> None:
    relayed = await start()

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        reset(writer)

    relayed.egress.serve = break_off
    reader, writer = await relayed.tunnel()
    writer.write(b"x")
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(-1), WAIT)


async def test_a_tunnel_in_which_nothing_crosses_is_ended(start: Start) -> None:
    relayed = await start(idle_seconds=0.2)
    reader, writer = await relayed.tunnel()
    writer.write(b"x")
    assert await asyncio.wait_for(reader.readexactly(1), WAIT) == b"x"
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(-1), WAIT)


async def test_one_tunnel_too_many_is_429_until_another_ends(start: Start) -> None:
    relayed = await start()
    tunnels = [await relayed.tunnel() for _ in range(relay.TUNNELS)]
    request = b"CONNECT a.test:443 HTTP/1.1\r\n\r\n"
    assert (await relayed.whole(request)).startswith(b"HTTP/1.1 429 ")
    tunnels[0][1].write_eof()
    assert await asyncio.wait_for(tunnels[0][0].read(-1), WAIT) == b""
    async with asyncio.timeout(WAIT):
        while not (await relayed.ask(request))[0].startswith(b"HTTP/1.1 200 "):
            pass


async def test_connections_that_ask_for_nothing_are_bounded(start: Start) -> None:
    relayed = await start()
    for _ in range(relay.CLIENTS):
        await relayed.client()
    reader, _ = await relayed.client()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(-1), WAIT)


async def test_a_refusal_is_passed_on_and_one_of_the_token_is_not_asked_of_the_client(start: Start) -> None:
    relayed = await start()
    request = b"CONNECT a.test:443 HTTP/1.1\r\n\r\n"
    relayed.egress.answer = b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\negress-gate: a.test is not allowed\n"
    head, _, body = (await relayed.whole(request)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert body == b"egress-gate: a.test is not allowed\n"
    relayed.egress.answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n"
    said = await relayed.whole(request)
    assert said.startswith(b"HTTP/1.1 502 ")
    assert b"Proxy-Authenticate" not in said


async def test_what_it_cannot_do_is_told(start: Start) -> None:
    relayed = await start()
    assert (await relayed.whole(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    long = b"CONNECT a.test:443 HTTP/1.1\r\nA: " + b"x" * 200_000 + b"\r\n\r\n"
    assert (await relayed.whole(long)).startswith(b"HTTP/1.1 431 ")
    await relayed.egress.stop()
    assert (await relayed.whole(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502 ")


async def test_a_plain_request_and_its_body_go_to_the_server_and_nothing_after_it(start: Start) -> None:
    relayed = await start()
    got: list[bytes] = []
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        got.append(head + await reader.readuntil(b"0\r\nX: y\r\n\r\n"))
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.write_eof()
        got.append(await reader.read(-1))  # to the end of what the relay has for us
        over.set()

    relayed.egress.serve = serve
    said = await relayed.whole(
        b"POST http://a.test/x HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5;e=1\r\nhello\r\n0\r\nX: y\r\n\r\n"
        b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n"
    )
    assert said == (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    assert relayed.egress.heads[0].startswith(b"CONNECT a.test:80 HTTP/1.1\r\n")
    await asyncio.wait_for(over.wait(), WAIT)
    head, _, body = got[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /x HTTP/1.1\r\nHost: a.test\r\n")
    assert body == b"5;e=1\r\nhello\r\n0\r\nX: y\r\n\r\n"
    assert got[1] == b""


async def test_an_answer_before_the_whole_body_arrives(start: Start) -> None:
    relayed = await start()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    relayed.egress.serve = serve
    reader, writer = await relayed.client()
    writer.write(b"PUT http://a.test/ HTTP/1.1\r\nContent-Length: 99000000\r\n\r\n" + bytes(1 << 20))
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT)).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nnever ending", b"SSH-2.0-x\r\n\r\n"])
async def test_a_server_that_gives_no_answer_is_502(start: Start, answer: bytes) -> None:
    relayed = await start()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    relayed.egress.serve = serve
    assert (await relayed.whole(b"GET http://a.test/ HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502 ")


async def test_an_answer_that_breaks_off_does_not_look_whole(start: Start) -> None:
    relayed = await start()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await writer.drain()
        await asyncio.wait_for(seen.wait(), WAIT)
        reset(writer)

    seen = asyncio.Event()
    relayed.egress.serve = serve
    _, (reader, _) = await relayed.ask(b"GET http://a.test/ HTTP/1.1\r\n\r\n")
    assert await asyncio.wait_for(reader.readexactly(4), WAIT) == b"half"
    seen.set()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(-1), WAIT)
