"""The embedded Runtime's north API as a stand-in: the test says what happens, and sees what was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from pod_host.contract.base import Json, JsonObject
from tests.loopback import on_loopback


class FakeNorth:
    """``asked``: each request as (method, path, body). ``turn_ids``: of the messages to come."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, str, Json]] = []
        self.events: list[JsonObject] = []
        self.turn_ids: list[str | None] = []
        self.view: JsonObject = {"sessionId": "ses_1", "state": "idle", "turns": [], "interactions": []}
        self.refusal: tuple[int, JsonObject] | None = None
        self._news = asyncio.Event()
        self._heard = asyncio.Event()
        self._closed = False

    def tell(self, kind: str, **members: Json) -> None:
        seq = len(self.events) + 1
        self.events.append(
            {"seq": seq, "at": "2026-01-02T03:04:05.000Z", "type": kind, "sessionId": "ses_1", **members}
        )
        self._news.set()

    async def was_asked(self, method: str, path: str) -> Json:
        """Wait for this request; its body. It is taken out of ``asked``."""
        while True:
            for one in self.asked:
                if one[:2] == (method, path):
                    self.asked.remove(one)
                    return one[2]
            self._heard.clear()
            await self._heard.wait()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.method, request.path, body))
        self._heard.set()
        if self.refusal:
            return web.json_response({"error": self.refusal[1]}, status=self.refusal[0])
        if request.path.endswith("/events"):
            return await self._stream(request)
        if request.path.endswith("/messages"):
            turn_id = self.turn_ids.pop(0) if self.turn_ids else None
            return web.json_response({"messageId": "msg_1"} | ({"turnId": turn_id} if turn_id else {}), status=202)
        if request.path == "/v1/sessions":
            given: Json = {"sessionId": "ses_1"} if request.method == "POST" else {"sessions": [self.view]}
            return web.json_response(given)
        return web.json_response(self.view if request.method == "GET" else {})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        sent = int(request.query.get("after", "0"))
        while True:
            for one in self.events[sent:]:
                await response.write(json.dumps(one).encode() + b"\n")
                sent += 1
            if self._closed or "follow" not in request.query:
                return response
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def fake_north() -> AsyncIterator[FakeNorth]:
    north = FakeNorth()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", north.handle)
    async with on_loopback(app) as north.url:
        try:
            yield north
        finally:
            north.close()
