"""node's fetch, https and http: of the node that is here, and of any other on PATH by the name nodeNN."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.clients.conftest import TOKEN, Site, need


def _nodes() -> list[str]:
    found = {
        name
        for directory in os.environ["PATH"].split(":")
        if os.path.isdir(directory)
        for name in os.listdir(directory)
        if re.fullmatch(r"node\d+", name)
    }
    return ["node", *sorted(found)]


FETCH = """
(async () => {
  const first = await fetch('https://echo.test/big');
  const bytes = (await first.arrayBuffer()).byteLength;
  const second = await fetch('https://echo.test/up', {method: 'POST', body: 'x'.repeat(70000)});
  console.log(JSON.stringify({bytes, ...(await second.json())}));
})();
"""
HTTPS = """
const https = require('https');
https.get('https://echo.test/big', (answer) => {
  let bytes = 0;
  answer.on('data', (piece) => { bytes += piece.length; });
  answer.on('end', () => {
    const request = https.request('https://echo.test/up', {method: 'POST'}, (second) => {
      let text = '';
      second.on('data', (piece) => { text += piece; });
      second.on('end', () => console.log(JSON.stringify({bytes, ...JSON.parse(text)})));
    });
    request.end('x'.repeat(70000));
  });
});
"""
DIRECT = """
const http = require('http');
const server = http.createServer((request, answer) => answer.end('here')).listen(0, '127.0.0.1', async () => {
  const url = `http://127.0.0.1:${server.address().port}/`;
  const fetched = await (await fetch(url)).text();
  http.get(url, (answer) => answer.on('data', (piece) => {
    console.log(fetched + piece);
    process.exit(0);
  }));
});
"""


@pytest.mark.parametrize("node", _nodes())
@pytest.mark.parametrize("script", [FETCH, HTTPS], ids=["fetch", "https"])
async def test_node_gets_and_posts(site: Site, node: str, script: str) -> None:
    need(node)
    told = json.loads(await site.good(node, "-e", script))
    assert (told["bytes"], told["method"], told["length"]) == (2 << 20, "POST", 70000)
    assert set(site.tokens.shown) == {TOKEN}


@pytest.mark.parametrize("node", _nodes())
async def test_node_reaches_a_server_of_the_workspace_directly(site: Site, node: str) -> None:
    need(node)
    assert await site.good(node, "-e", DIRECT) == "herehere\n"


@pytest.mark.parametrize("node", _nodes())
async def test_node_options_of_the_sessions_own_stay(site: Site, node: str) -> None:
    need(node)
    (site.work / "more.cjs").write_text("globalThis.more = 1")
    session = {"NODE_OPTIONS": f"--require {site.work / 'more.cjs'}"}
    assert await site.good(node, "-p", "more", **session) == "1\n"


@pytest.mark.parametrize("node", _nodes())
async def test_a_refusal_of_the_proxy_fails_a_fetch(site: Site, node: str) -> None:
    need(node)
    site.tokens.good = "another"
    assert await site.good(node, "-e", "fetch('https://echo.test/').catch(() => console.log('failed'))") == "failed\n"


def test_the_preload_names_no_flag_that_an_old_node_would_refuse(site: Site) -> None:
    options = site.environment()["NODE_OPTIONS"].split()
    assert options[0] == "--require"
    assert Path(options[1]).is_file()
