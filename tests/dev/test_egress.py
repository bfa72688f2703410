"""The egress proxy, over raw sockets."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest

from pod_host.dev import egress
from pod_host.dev.agent import Agent
from pod_host.dev.config import Times
from tests.dev.conftest import Build, World
from tests.dev.harness import WAIT

AGENT = Agent(name="netted", network_allow=("localhost", "*.example.com", "nowhere.invalid"))


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """A server that sends back what it gets; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1000):
            writer.write(piece)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0
        self.head = ""
        self.body = b""

    async def read_answer(self) -> None:
        self.head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT)).decode()
        self.status = int(self.head.split()[1])
        if self.status != 200:
            self.body = await asyncio.wait_for(self.reader.read(), WAIT)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def request(world: World, line: str, authorization: str | None) -> Client:
    host, port = world.runtime.egress_url.removeprefix("http://").split(":")
    client = Client(*await asyncio.open_connection(host, int(port)))
    header = f"Proxy-Authorization: {authorization}\r\n" if authorization else ""
    client.writer.write(f"{line} HTTP/1.1\r\nHost: x\r\n{header}\r\n".encode())
    await client.read_answer()
    return client


async def connect(world: World, target: str) -> Client:
    return await request(world, f"CONNECT {target}", basic("nylorun", world.pod.egress_token))


async def test_a_tunnel_carries_bytes_both_ways_to_their_ends(build: Build, echo: int) -> None:
    world = await build(AGENT, egress_loopback=True)
    await world.pod.join()
    for authorization in (
        basic("nylorun", world.pod.egress_token),
        basic(world.pod.egress_token, ""),
        f"Bearer {world.pod.egress_token}",
    ):
        client = await request(world, f"CONNECT localhost:{echo}", authorization)
        assert client.status == 200
        client.writer.write(b"x" * 300_000)
        client.writer.write_eof()
        assert await asyncio.wait_for(client.reader.read(-1), WAIT) == b"x" * 300_000
        client.writer.close()


async def test_all_but_connect_is_405(world: World) -> None:
    await world.pod.join()
    for line in ("GET http://example.com/", "OPTIONS *", "connect a:443"):
        client = await request(world, line, basic("nylorun", world.pod.egress_token))
        assert client.status == 405
        assert "Allow: CONNECT\r\n" in client.head


async def test_a_missing_foreign_or_fenced_token_is_407(build: Build) -> None:
    world = await build(AGENT)
    await world.pod.join()
    fenced = world.pod.egress_token
    await world.pod.join()
    for authorization in (None, "Basic !", basic("nylorun", "x"), basic("n", world.pod.host_token), basic("n", fenced)):
        client = await request(world, "CONNECT localhost:443", authorization)
        assert client.status == 407
        assert 'Proxy-Authenticate: Basic realm="nylorun-egress"\r\n' in client.head
        assert client.body.startswith(b"egress-gate: ")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("localhost:22", "port 22 is not allowed"),
        ("localhost", "localhost is not host:port"),
        ("localhost:443:443", "is not host:port"),
        ("127.0.0.1:443", "is an address"),
        ("[::1]:443", "is an address"),
        ("2130706433:443", "is an address"),
        ("0x7f.1:80", "is an address"),
        ("other.com:443", "other.com is not allowed"),
        ("example.com:443", "example.com is not allowed"),
        ("xexample.com:443", "is not allowed"),
        ("localhost:443", "is no public address"),
    ],
)
async def test_what_is_not_allowed_is_403_and_says_why(build: Build, target: str, reason: str) -> None:
    world = await build(AGENT)
    await world.pod.join()
    client = await connect(world, target)
    assert client.status == 403
    assert client.body.startswith(b"egress-gate: ")
    assert reason in client.body.decode()
    refused = await world.north.until("egress.refused")
    assert (refused["status"], refused["request"]) == (403, f"CONNECT {target} HTTP/1.1")


async def test_a_name_that_does_not_resolve_and_a_port_that_is_shut_are_502(build: Build, echo: int) -> None:
    world = await build(AGENT, egress_loopback=True)
    await world.pod.join()
    assert (await connect(world, "nowhere.invalid:443")).status == 502
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    assert (await connect(world, f"localhost:{port}")).status == 502


async def test_one_tunnel_too_many_is_429_until_another_ends(build: Build, echo: int) -> None:
    world = await build(AGENT, egress_loopback=True)
    await world.pod.join()
    tunnels = [await connect(world, f"localhost:{echo}") for _ in range(egress.TUNNELS)]
    assert {tunnel.status for tunnel in tunnels} == {200}
    assert (await connect(world, f"localhost:{echo}")).status == 429
    tunnels[0].writer.write_eof()
    assert await asyncio.wait_for(tunnels[0].reader.read(), WAIT) == b""
    assert (await connect(world, f"localhost:{echo}")).status == 200
    for tunnel in tunnels:
        tunnel.writer.close()


async def test_an_idle_tunnel_is_closed(build: Build, echo: int) -> None:
    world = await build(AGENT, egress_loopback=True, times=Times(egress_idle=0.2))
    await world.pod.join()
    client = await connect(world, f"localhost:{echo}")
    assert await asyncio.wait_for(client.reader.read(), WAIT) == b""


async def test_a_head_without_an_end_closes_the_connection(world: World) -> None:
    host, port = world.runtime.egress_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"CONNECT " + b"x" * 100_000)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), WAIT)
    writer.close()
