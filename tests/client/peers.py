"""The other ends of the client's sockets: real servers on loopback, one for each oddity."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

from pod_host.client import Channel, OnRequest, Served
from pod_host.contract.base import JsonObject, Wire

TOKEN = "host-token-0123456789"
Behaviour = Callable[["Core"], Awaitable[None]]


class Core:
    """The Runtime's end of one connection: says and hears frames as plain JSON."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket

    async def say(self, frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def hear(self) -> JsonObject:
        heard: JsonObject = json.loads(await self.socket.recv())
        return heard

    async def answer(self, result: JsonObject) -> JsonObject:
        """Answer the next request, and give it."""
        asked = await self.hear()
        await self.say({"t": "res", "id": asked["id"], "ok": True, "r": result})
        return asked


@dataclass
class Listener:
    """Where `core` listens, and the upgrades that it saw."""

    url: str
    upgrades: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@asynccontextmanager
async def core(behaviour: Behaviour, **options: Any) -> AsyncIterator[Listener]:
    """A WebSocket listener whose every connection behaves so. A fault in ``behaviour`` fails the test."""
    faults: list[BaseException] = []
    listener = Listener("")

    async def connected(socket: ServerConnection) -> None:
        assert socket.request is not None
        listener.upgrades.append({name.lower(): value for name, value in socket.request.headers.raw_items()})
        listener.paths.append(socket.request.path)
        try:
            await behaviour(Core(socket))
        except BaseException as fault:
            faults.append(fault)
            raise

    settings: dict[str, Any] = {"compression": None, "max_size": None, "ping_interval": None, "close_timeout": 1}
    async with serve(connected, "127.0.0.1", 0, **{**settings, **options}) as server:
        listener.url = (
            f"http{'s' if options.get('ssl') else ''}://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        )
        yield listener
    assert not faults, faults


@asynccontextmanager
async def raw_listener(
    behaviour: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """A TCP listener that speaks whatever ``behaviour`` writes: for what no WebSocket or HTTP server would do."""
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError):  # ours closed it
            await behaviour(reader, writer)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


@dataclass(frozen=True)
class Asked:
    """One HTTP request as it came. Header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """``body``: JSON to encode, or bytes as they are."""

    status: int = 200
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()

    def text(self) -> bytes:
        body = (
            self.body if isinstance(self.body, bytes) else b"" if self.body is None else json.dumps(self.body).encode()
        )
        lines = [f"HTTP/1.1 {self.status} Said", *(f"{name}: {value}" for name, value in self.headers)]
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@dataclass
class Web:
    """Where `web` listens, and what it was asked."""

    url: str
    asked: list[Asked] = field(default_factory=list)


Answering = Callable[[Asked], Awaitable["Reply | bytes | None"]]


@asynccontextmanager
async def web(answering: Answering, tls: ssl.SSLContext | None = None) -> AsyncIterator[Web]:
    """An HTTP server: a Reply, raw bytes after which the connection is cut, or None: cut without a word."""
    listener = Web("")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            first, *lines = head.strip().split("\r\n")
            method, target, _ = first.split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            asked = Asked(method, target, headers, await reader.readexactly(int(headers.get("content-length", 0))))
            listener.asked.append(asked)
            said = await answering(asked)
            if isinstance(said, Reply):
                writer.write(said.text())
                continue
            if said is not None:
                writer.write(said)
                await writer.drain()
            writer.close()
            return

    async with raw_listener(connected, tls) as url:
        listener.url = url
        yield listener


async def until_closed(core: Core) -> None:
    await core.socket.wait_closed()


def refuse_requests(served: Served) -> None:
    raise AssertionError(f"unasked: {served.method}")


def in_task(serve: Callable[[str, Any], Awaitable[Wire | JsonObject]]) -> OnRequest:
    """Serve each request by a task, which is cancelled when nobody wants the answer any more."""

    def begin(served: Served) -> None:
        task = asyncio.ensure_future(serve(served.method, served.params))
        task.add_done_callback(lambda task: _answer(served, task))
        served.stop = task.cancel

    return begin


def _answer(served: Served, task: asyncio.Future[Wire | JsonObject]) -> None:
    if task.cancelled():
        return
    fault = task.exception()
    if fault is None:
        served.answer(task.result())
    else:
        assert isinstance(fault, Exception)
        served.fail(fault)


def ignore(method: str, params: Wire) -> None:
    """Takes a message and does nothing."""


@asynccontextmanager
async def channel(url: str, **options: Any) -> AsyncIterator[Channel]:
    """A channel that is closed at the end."""
    settings: dict[str, Any] = {"tls": None, "on_request": refuse_requests, "on_message": ignore}
    connected = await Channel.connect(url, TOKEN, **{**settings, **options})
    try:
        yield connected
    finally:
        await connected.close("the test is over")
