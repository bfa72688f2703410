"""MCP servers and HTTP tools on loopback, real ones, with the faults that networks have."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from aiohttp import web
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ImageContent, TextContent, ToolAnnotations

from pod_host.contract.base import Json, JsonObject
from tests.dev.harness import WAIT
from tests.loopback import on_loopback

Asgi = Callable[[Any, Any, Any], Awaitable[None]]
PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
    b"\x00\x00\x00\nIDATx\x9cc\x00\x01\x00\x00\x05\x00\x01\r\n-\xb4\x00\x00\x00\x00IEND\xaeB`\x82"
)


@dataclass
class Books:
    """What the tools of one server did. ``held``: calls of ``wait`` stay open until it is set."""

    calls: list[tuple[str, Json]] = field(default_factory=list)
    metas: list[JsonObject] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sessions: int = 0
    began: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    status: int | None = None  # every POST is refused so
    cut: bool = False  # the connection of a tools/call is closed once the tool ran

    def note(self, name: str, arguments: Json, ctx: Context[Any]) -> None:
        self.calls.append((name, arguments))
        self.metas.append(dict(ctx.request_context.meta or {}))
        self.began.set()


def library(books: Books) -> MCPServer:
    """A server with tools of every kind of answer."""
    server = MCPServer("library", instructions="Search before you add.", log_level="CRITICAL")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    async def search(query: str, ctx: Context[Any]) -> str:
        """Finds books by their title."""
        books.note("search", query, ctx)
        return f"1 book on {query}"

    @server.tool(structured_output=False)
    async def add(title: str, ctx: Context[Any]) -> str:
        """Adds a book."""
        books.note("add", title, ctx)
        return f"added {title}"

    @server.tool()
    async def count(ctx: Context[Any]) -> dict[str, int]:
        """Counts the books."""
        books.note("count", None, ctx)
        return {"books": 3}

    @server.tool(structured_output=False)
    async def cover(ctx: Context[Any]) -> list[Any]:
        """Shows a book's cover."""
        books.note("cover", None, ctx)
        return ["The cover:", Image(data=PIXEL, format="png")]

    @server.tool(structured_output=False)
    async def burn(ctx: Context[Any]) -> str:
        """Is not allowed."""
        books.note("burn", None, ctx)
        raise ToolError("books are not burnt here")

    @server.tool(structured_output=False)
    async def whole(size: int, ctx: Context[Any]) -> str:
        """Answers so many characters."""
        books.note("whole", size, ctx)
        return "x" * size

    @server.tool(structured_output=False)
    async def echo(ctx: Context[Any]) -> str:
        """Says the headers that came."""
        books.note("echo", None, ctx)
        return json.dumps(books.headers[-1])

    @server.tool(structured_output=False)
    async def wait(ctx: Context[Any]) -> str:
        """Waits."""
        books.note("wait", None, ctx)
        await books.held.wait()
        return "waited"

    @server.tool(structured_output=False)
    async def refuse(ctx: Context[Any]) -> CallToolResult:
        """Both a text and an image, and structured content."""
        return CallToolResult(
            content=[
                TextContent(type="text", text="no"),
                ImageContent(type="image", data="AA==", mime_type="image/png"),
            ],
            structured_content={"why": "closed"},
        )

    return server


class _Server(uvicorn.Server):
    def __init__(self, app: Asgi) -> None:
        super().__init__(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def serving(app: Asgi, port: int = 0) -> AsyncIterator[int]:
    """``app`` on loopback; its port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = _Server(app)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.wait_for(server.ready.wait(), WAIT)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await running
        listener.close()


@asynccontextmanager
async def mcp_server(
    books: Books, *, kind: str = "streamable-http", server: MCPServer | None = None, port: int = 0, **options: Any
) -> AsyncIterator[str]:
    """The library's URL. ``options``: of the streamable HTTP app."""
    made = server or library(books)
    app = made.sse_app() if kind == "sse" else made.streamable_http_app(**options)
    async with serving(_faulty(app, books), port) as at:
        yield f"http://127.0.0.1:{at}/{'sse' if kind == 'sse' else 'mcp'}"


def _faulty(app: Asgi, books: Books) -> Asgi:
    async def faulty(scope: Any, receive: Any, send: Any) -> None:
        post = scope["type"] == "http" and scope["method"] == "POST"
        books.sessions += scope["type"] == "http" and scope["method"] == "GET"
        if post:
            books.headers.append({name.decode().lower(): value.decode() for name, value in scope["headers"]})
        if post and books.status is not None:
            await send({"type": "http.response.start", "status": books.status, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
        else:
            await app(scope, receive, cutting(send) if post and books.cut else send)

    def cutting(send: Any) -> Any:
        """``send``, until the tool has run: then a body that is not whole, so that the connection is closed within it."""
        before = len(books.calls)

        async def sending(message: Any) -> None:
            if len(books.calls) == before:
                await send(message)
            elif message["type"] == "http.response.start":
                head = [(b"content-type", b"application/json"), (b"content-length", b"1000")]
                await send({"type": "http.response.start", "status": 200, "headers": head})
                await send({"type": "http.response.body", "body": b"{", "more_body": True})

        return sending

    return faulty


@dataclass
class Endpoint:
    """An HTTP tool's other end. ``answer``: of the next request, else what came."""

    url: str = ""
    requests: list[tuple[str, dict[str, str], Json]] = field(default_factory=list)
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append((request.method, {k.lower(): v for k, v in request.headers.items()}, body))
        self.began.set()
        if self.answer is not None:
            return await self.answer(request)
        return web.json_response({"got": body})


@asynccontextmanager
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    async with on_loopback(app) as url:
        made.url = f"{url}/tool"
        yield made
