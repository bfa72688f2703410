"""Hosts that are bound to a secret: their TLS ends at the egress proxy, and every request leaves with the secret."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from pod_host.dev.agent import Agent, EnvironmentSecret
from pod_host.dev.authority import Authority
from pod_host.dev.interception import Interception
from tests.dev.conftest import Build, World
from tests.dev.harness import WAIT
from tests.dev.test_egress import Client, basic, request

HOST = "api.example"


def agent(secret: EnvironmentSecret) -> Agent:
    return Agent(name="bound", network_allow=("*.example",), environment_secrets={"KEY": secret})


BOUND = agent(EnvironmentSecret(hosts=(HOST,), prefix="Bearer ", value="s3cret"))


@dataclass
class Origin:
    """An https server under a CA of its own. ``seen``: the requests that came."""

    ca: Path
    port: int = 0
    seen: list[web.BaseRequest] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.content.read())
        match request.path:
            case "/gzip":
                return web.Response(
                    body=b"as it is", headers={"Content-Encoding": "gzip", "Connection": "X-Hop", "X-Hop": "1"}
                )
            case "/moved":
                return web.Response(status=302, headers={"Location": "/", "Set-Cookie": "a=b"})
            case "/cut":
                response = web.StreamResponse(headers={"Content-Length": "100"})
                await response.prepare(request)
                await response.write(b"half")
                assert request.transport is not None
                request.transport.abort()
                return response
        return web.Response(text="hello")


@pytest.fixture
async def origin(tmp_path: Path) -> AsyncIterator[Origin]:
    authority = Authority(tmp_path / "origin-keys", "origin")
    ca = tmp_path / "origin.pem"
    ca.write_text(authority.ca_certificate)
    made = Origin(ca)
    runner = web.ServerRunner(web.Server(made.serve, access_log=None, auto_decompress=False), shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=Interception(authority, {}, {}).leaf(HOST))
    await site.start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


async def world_of(build: Build, origin: Origin, bound: Agent = BOUND, *, trusted: bool = True) -> World:
    world = await build(
        bound,
        egress_names={HOST: ("127.0.0.1", origin.port), "other.example": ("127.0.0.1", origin.port)},
        egress_upstream_ca=origin.ca if trusted else None,
    )
    await world.pod.join()
    return world


async def tunnel(world: World, host: str = HOST, port: int = 443) -> Client:
    return await request(world, f"CONNECT {host}:{port}", basic("nylorun", world.pod.egress_token))


async def opened(build: Build, origin: Origin, bound: Agent = BOUND, *, trusted: bool = True) -> Client:
    """A client inside TLS with the proxy, which is the host to it."""
    world = await world_of(build, origin, bound, trusted=trusted)
    certificate = (await world.pod.join())["caCertificate"]
    client = await tunnel(world)
    assert client.status == 200
    context = ssl.create_default_context(cadata=certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    await client.writer.start_tls(context, server_hostname=HOST)
    assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    return client


async def ask(client: Client, text: str) -> tuple[str, bytes]:
    """The head and the body of the next answer."""
    client.writer.write(text.replace("\n", "\r\n").encode())
    head = (await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), WAIT)).decode()
    length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
    return head, await asyncio.wait_for(client.reader.readexactly(length), WAIT)


async def test_every_request_of_a_connection_leaves_with_the_secret_and_with_nothing_else_changed(
    build: Build, origin: Origin
) -> None:
    client = await opened(build, origin)
    head, body = await ask(
        client, f"GET /a%2Fb?c=%20 HTTP/1.1\nHost: {HOST}\nauthorization: Bearer nylorun_managed\nX-B: 1\n\n"
    )
    assert (head.split()[1], body) == ("200", b"hello")
    await ask(client, f"POST / HTTP/1.1\nHost: {HOST}\nContent-Encoding: gzip\nContent-Length: 5\n\nplain")
    await ask(client, f"PUT / HTTP/1.1\nHost: {HOST}\nTransfer-Encoding: chunked\n\n5\nabcde\n0\n\n")
    assert [request.headers.getall("Authorization") for request in origin.seen] == [["Bearer s3cret"]] * 3
    assert origin.bodies == [b"", b"plain", b"abcde"]
    first = origin.seen[0]
    assert first.raw_path == "/a%2Fb?c=%20"
    assert {name.lower() for name in first.headers} == {"host", "authorization", "x-b"}


async def test_answers_come_back_as_they_are(build: Build, origin: Origin) -> None:
    client = await opened(build, origin)
    head, body = await ask(client, f"GET /gzip HTTP/1.1\nHost: {HOST}\n\n")
    assert body == b"as it is"
    assert "Content-Encoding: gzip\r\n" in head
    assert "X-Hop" not in head
    head, _ = await ask(client, f"GET /moved HTTP/1.1\nHost: {HOST}\n\n")
    assert head.split()[1] == "302"  # the client's to follow
    await ask(client, f"GET / HTTP/1.1\nHost: {HOST}\n\n")
    assert "Cookie" not in origin.seen[-1].headers


async def test_there_are_no_upgrades(build: Build, origin: Origin) -> None:
    client = await opened(build, origin)
    head, _ = await ask(client, f"GET / HTTP/1.1\nHost: {HOST}\nConnection: Upgrade\nUpgrade: websocket\n\n")
    assert head.split()[1] == "200"
    assert not {"Upgrade", "Connection"} & set(origin.seen[0].headers)


async def test_an_answer_that_was_cut_does_not_look_whole(build: Build, origin: Origin) -> None:
    client = await opened(build, origin)
    with pytest.raises((asyncio.IncompleteReadError, OSError)):
        await ask(client, f"GET /cut HTTP/1.1\nHost: {HOST}\n\n")


async def test_a_host_that_cannot_be_trusted_gets_no_secret(build: Build, origin: Origin) -> None:
    client = await opened(build, origin, trusted=False)
    head, body = await ask(client, f"GET / HTTP/1.1\nHost: {HOST}\n\n")
    assert head.split()[1] == "502"
    assert body.startswith(b"egress-gate: ")
    assert origin.seen == []


async def test_a_secret_comes_from_the_runtimes_environment(
    build: Build, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = agent(EnvironmentSecret(hosts=("*.example",), header="X-Key", from_env="POD_HOST_TEST_KEY"))
    monkeypatch.setenv("POD_HOST_TEST_KEY", "from-env")
    client = await opened(build, origin, bound)
    await ask(client, f"GET / HTTP/1.1\nHost: {HOST}\nx-key: mine\n\n")
    assert origin.seen[0].headers.getall("X-Key") == ["from-env"]


async def test_a_secret_without_a_value_is_502(build: Build, origin: Origin) -> None:
    world = await world_of(build, origin, agent(EnvironmentSecret(hosts=(HOST,), from_env="POD_HOST_TEST_NONE")))
    client = await tunnel(world)
    assert client.status == 502
    assert b"POD_HOST_TEST_NONE is not set" in client.body


async def test_other_hosts_and_ports_are_tunnelled_as_they_are(build: Build, origin: Origin) -> None:
    world = await world_of(build, origin)
    client = await tunnel(world, "other.example")
    context = ssl.create_default_context(cafile=origin.ca)
    await client.writer.start_tls(context, server_hostname=HOST)  # the origin's own certificate
    await ask(client, f"GET / HTTP/1.1\nHost: {HOST}\n\n")
    assert "Authorization" not in origin.seen[0].headers


async def test_what_is_sent_before_the_answer_is_refused(build: Build, origin: Origin) -> None:
    world = await world_of(build, origin)
    host, port = world.runtime.egress_url.removeprefix("http://").split(":")
    client = Client(*await asyncio.open_connection(host, int(port)))
    token = basic("nylorun", world.pod.egress_token)
    client.writer.write(f"CONNECT {HOST}:443 HTTP/1.1\r\nProxy-Authorization: {token}\r\n\r\nearly".encode())
    await client.read_answer()
    assert client.status == 400


async def test_a_client_that_does_not_trust_the_ca_leaves_a_trace(build: Build, origin: Origin) -> None:
    world = await world_of(build, origin)
    client = await tunnel(world)
    with pytest.raises(ssl.SSLError):
        await client.writer.start_tls(ssl.create_default_context(), server_hostname=HOST)
    failed = await world.north.until("egress.intercept_failed")
    assert failed["host"] == HOST
