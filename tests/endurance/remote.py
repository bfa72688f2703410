"""Tools outside of the pod, which act once per key as real ones would, and count what came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.dev.tool_rig import Books, mcp_server
from tests.loopback import on_loopback


@dataclass
class Remote:
    """``orders``: by what was ordered, the keys that came, in order. ``books``: of the MCP server."""

    order_url: str = ""
    library_url: str = ""
    orders: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    books: Books = field(default_factory=Books)

    def added(self) -> dict[str, list[str]]:
        """By a book's title, the keys that came."""
        found: dict[str, list[str]] = defaultdict(list)
        for (name, argument), meta in zip(self.books.calls, self.books.metas, strict=True):
            if name == "add":
                found[str(argument)].append(str(meta.get("nylorun/idempotency-key")))
        return found

    async def _order(self, request: web.Request) -> web.Response:
        what = (await request.json())["what"]
        self.orders[what].append(request.headers["Idempotency-Key"])
        return web.json_response({"ordered": what})


@asynccontextmanager
async def remote_tools() -> AsyncIterator[Remote]:
    remote = Remote()
    app = web.Application()
    app.router.add_post("/order", remote._order)
    async with on_loopback(app) as url, mcp_server(remote.books) as remote.library_url:
        remote.order_url = f"{url}/order"
        yield remote
