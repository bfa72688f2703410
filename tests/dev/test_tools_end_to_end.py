"""An agent file with an MCP server and an HTTP tool, end to end: ``pod-host dev`` as processes, real servers behind it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.dev.test_command import PATIENCE, REPOSITORY, environment, place
from tests.dev.tool_rig import Books, Endpoint, endpoint, mcp_server

__all__ = ["place"]

AGENT = """
name: librarian
instructions: Be exact.
mcpServers:
  - name: library
    url: {library}
    headers: {{Authorization: "Bearer ${{LIBRARY_KEY}}"}}
    tools: {{burn: {{enabled: false}}, cover: {{deferred: true}}}}
  - name: closed
    url: http://127.0.0.1:1/mcp
tools:
  - name: order
    description: Orders things.
    inputSchema: {{type: object, properties: {{what: {{type: string}}}}, required: [what]}}
    http: {{url: "{shop}", credential: SHOP}}
"""


@dataclass
class Setting:
    place: Path
    agent: Path
    books: Books
    shop: Endpoint

    async def dev(self, *messages: str) -> str:
        """What the terminal shows of a talk; it must end well."""
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "pod_host", "dev", "--agent", str(self.agent)],
            cwd=REPOSITORY,
            env={**environment(self.place), "LIBRARY_KEY": "key-of-the-library", "SHOP": "token-of-the-shop"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        shown, faults = await asyncio.wait_for(process.communicate("\n".join(messages).encode() + b"\n"), PATIENCE)
        assert process.returncode == 0, faults.decode() + shown.decode()
        assert "key-of-the-library" not in shown.decode()
        assert "token-of-the-shop" not in shown.decode()
        return shown.decode()


@asynccontextmanager
async def setting(place: Path) -> AsyncIterator[Setting]:
    books = Books()
    async with mcp_server(books) as url, endpoint() as shop:
        agent = place / "agent.yaml"
        agent.write_text(AGENT.format(library=url, shop=shop.url))
        yield Setting(place, agent, books, shop)


async def test_an_mcp_tool_and_an_http_tool_are_called_by_the_model(place: Path) -> None:
    async with setting(place) as made:
        shown = await made.dev(
            'use the tool library__search with {"query": "ships"} and use the tool order with {"what": "tea"}',
            'use the tool library__add with {"title": "Ships"}',
        )
        assert "1 book on ships" in shown
        assert "added Ships" in shown
        assert made.books.calls == [("search", "ships"), ("add", "Ships")]
        assert made.books.headers[-1]["authorization"] == "Bearer key-of-the-library"
        ((_, headers, body),) = made.shop.requests
        assert (headers["authorization"], body) == ("Bearer token-of-the-shop", {"what": "tea"})
        keys = [meta["nylorun/idempotency-key"] for meta in made.books.metas]
        assert len({*keys, headers["idempotency-key"]}) == 3


async def test_what_is_not_offered_or_does_not_fit_is_told(place: Path) -> None:
    async with setting(place) as made:
        shown = await made.dev(
            'use the tool library__burn with {"x": 1}',
            'use the tool library__search with {"query": 7}',
            "use the tool library__cover with {}",
            'use the tool tool_search with {"query": "cover of a book"} then use library__cover with {}',
            "use the tool library__cover with {}",
        )
        assert "There is no tool named library__burn" in shown
        assert "tool.invalid-input" in shown
        assert shown.count("There is no tool named library__cover") == 1  # not until it was found
        assert made.books.calls == [("cover", None), ("cover", None)]
