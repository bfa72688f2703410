"""The relay: clients that cannot authenticate, plain http, tokens that change, and no token in a command's environment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pod_host.host.environment import PROXY_USER
from pod_host.host.relay import Relay
from tests.clients.conftest import TOKEN, Site, need, open_site
from tests.clients.origin import BIG, Origin
from tests.clients.test_node import FETCH, HTTPS
from tests.clients.test_packages import apt_options


@pytest.fixture
async def site(root: Path) -> AsyncIterator[Site]:
    """As everywhere here, but that commands get the relay; and ``http://….example`` leads to an origin without TLS."""
    async with AsyncExitStack() as stack:
        opened = await open_site(stack, root)
        relay = Relay(opened.proxy.url, PROXY_USER)
        await relay.start()
        stack.push_async_callback(relay.stop)
        relay.authorize(TOKEN)
        yield replace(opened, relay=relay)


@pytest.fixture
async def plain(site: Site) -> AsyncIterator[Origin]:
    origin = Origin(site.root / "repositories")
    origin.wants_secret = False
    await origin.start(None)
    names: Any = site.proxy._config.egress_names
    names.update(dict.fromkeys(("plain.example", "apt.example"), ("127.0.0.1", origin.port)))
    yield origin
    await origin.stop()


JAVA = """
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

public class Fetch {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        HttpRequest get = HttpRequest.newBuilder(URI.create("https://echo.test/big")).build();
        int bytes = client.send(get, HttpResponse.BodyHandlers.ofByteArray()).body().length;
        HttpRequest post = HttpRequest.newBuilder(URI.create("https://echo.test/up"))
            .POST(HttpRequest.BodyPublishers.ofString("x".repeat(70000))).build();
        System.out.println(bytes + " " + client.send(post, HttpResponse.BodyHandlers.ofString()).body());
        byte[] old = URI.create("https://echo.test/big").toURL().openStream().readAllBytes();
        System.out.println(old.length);
    }
}
"""


async def test_javas_clients_get_and_post(site: Site) -> None:
    need("java", "javac")
    (site.work / "Fetch.java").write_text(JAVA)
    first, second = (await site.good("java", "-Xshare:auto", "Fetch.java")).splitlines()
    size, _, told = first.partition(" ")
    assert int(size) == int(second) == len(BIG)
    assert (json.loads(told)["method"], json.loads(told)["length"]) == ("POST", 70000)
    assert set(site.tokens.shown) == {TOKEN}


@pytest.mark.parametrize("script", [FETCH, HTTPS], ids=["fetch", "https"])
async def test_node_gets_and_posts(site: Site, script: str) -> None:
    need("node")
    told = json.loads(await site.good("node", "-e", script))
    assert (told["bytes"], told["length"]) == (len(BIG), 70000)


async def test_git_clones(site: Site) -> None:
    need("git")
    await site.good("git", "init", "-q", "--bare", str(site.root / "repositories" / "demo.git"))
    await site.good("git", "clone", "-q", "https://git.test/demo.git")


async def test_plain_http_is_passed_on_by_a_tunnel(site: Site, plain: Origin) -> None:
    need("curl")
    (site.work / "up").write_bytes(BIG)
    said = await site.good(
        "curl", "-sS", "-o", "down", "http://plain.example/big", "--next",
        "-sS", "-T", "up", "-H", "Transfer-Encoding: chunked", "http://plain.example/put?a=%2F", "--next",
        "-sS", "http://plain.example/slow-chunks",
    )  # fmt: skip
    assert (site.work / "down").read_bytes() == BIG
    told, rest = json.JSONDecoder().raw_decode(said)
    assert (told["path"], told["length"]) == ("/put?a=%2F", len(BIG))
    assert said[rest:] == "0\n1\n2\n"
    assert not [name for name in told["headers"] if name.startswith("proxy")]


async def test_apt_takes_its_usual_http_repositories(site: Site, plain: Origin) -> None:
    need("apt-get")
    options = apt_options(site, "http://apt.example/debian/")
    await site.good("apt-get", *options, "-q", "update")
    await site.good("apt-get", *options, "-q", "download", "demo")
    assert (site.work / "demo_1.0_all.deb").exists()


async def test_no_token_is_in_a_commands_environment(site: Site) -> None:
    environment = site.environment()
    assert TOKEN not in str(environment)
    assert environment["https_proxy"] == site.relay_url
    assert "@" not in environment["https_proxy"]


async def test_a_command_outlives_its_token(site: Site) -> None:
    need("curl")
    environment = site.environment()
    await site.run_in(environment, "curl", "-sS", "https://echo.test/")
    site.tokens.good = "the+next/token%21"
    refused = await site.run_in(environment, "curl", "-sS", "https://echo.test/")
    assert "502" in refused.stderr  # and not 407, which would ask the client
    assert site.relay is not None
    site.relay.authorize(site.tokens.good)
    async with asyncio.timeout(20):
        while (await site.run_in(environment, "curl", "-sS", "https://echo.test/")).code != 0:
            pass
    assert site.tokens.shown[-1] == site.tokens.good
