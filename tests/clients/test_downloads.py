"""curl, wget and Python's own clients."""

from __future__ import annotations

import hashlib
import json
import sys

import pytest

from tests.clients.conftest import TOKEN, Site, need
from tests.clients.origin import BIG, SECRET_HEADER


async def test_curl_downloads_and_uploads_over_one_connection(site: Site) -> None:
    need("curl")
    (site.work / "up").write_bytes(BIG)
    said = await site.good(
        "curl", "-sS", "-o", "down", "https://echo.test/big", "--next", "-sS", "-T", "up", "https://echo.test/put?a=%2F"
    )
    assert (site.work / "down").read_bytes() == BIG
    told = json.loads(said)
    assert (told["method"], told["path"], told["length"]) == ("PUT", "/put?a=%2F", len(BIG))
    assert told["sha256"] == hashlib.sha256(BIG).hexdigest()
    assert SECRET_HEADER.lower() in told["headers"]
    assert not [name for name in told["headers"] if name.startswith("proxy")]
    assert set(site.tokens.shown) == {TOKEN}


async def test_the_public_roots_are_trusted_beside_the_cas_own(site: Site) -> None:
    need("curl")
    site.origin.wants_secret = False
    told = json.loads(await site.good("curl", "-sS", "https://plain.example/"))
    assert SECRET_HEADER.lower() not in told["headers"]


async def test_without_the_environment_curl_reaches_nothing(site: Site) -> None:
    need("curl")
    environment = site.environment()
    bare = {name: environment[name] for name in ("PATH", "HOME")}
    assert (await site.run_in(bare, "curl", "-sS", "https://echo.test/")).code != 0
    proxied = bare | {"https_proxy": environment["https_proxy"]}
    untrusting = await site.run_in(proxied, "curl", "-sS", "https://echo.test/")
    assert "certificate" in untrusting.stderr
    assert site.origin.seen == []


async def test_wget_downloads(site: Site) -> None:
    need("wget")
    await site.good("wget", "-nv", "https://echo.test/big")
    assert (site.work / "big").read_bytes() == BIG


async def test_a_wgetrc_of_the_sessions_own_stays(site: Site) -> None:
    assert site.environment({"WGETRC": "/mine"})["WGETRC"] == "/mine"
    assert site.environment(base={"APT_CONFIG": "/mine"})["APT_CONFIG"] == "/mine"


PYTHON = {
    "urllib": "import urllib.request as u; u.urlopen('https://echo.test/big').read(); "
    "print(u.urlopen('https://echo.test/u', data=b'x' * 70000).read().decode())",
    "requests": "import requests; s = requests.Session(); s.get('https://echo.test/big'); "
    "print(s.post('https://echo.test/u', data=b'x' * 70000).text)",
    "httpx": "import httpx; c = httpx.Client(); c.get('https://echo.test/big'); "
    "print(c.post('https://echo.test/u', content=b'x' * 70000).text)",
}


@pytest.mark.parametrize("client", PYTHON)
async def test_python_gets_and_posts(site: Site, client: str) -> None:
    if client != "urllib":
        pytest.importorskip(client, reason=f"{client} is not installed here")
    told = json.loads(await site.good(sys.executable, "-c", PYTHON[client]))
    assert (told["method"], told["length"]) == ("POST", 70000)
