"""A provider's HTTP API on loopback: it keeps what it was sent, and answers what the test says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from pod_host.contract.base import JsonObject
from tests.loopback import on_loopback


@dataclass
class Provider:
    """``answers``: one for each request, in order; the last stays. ``url``: its base."""

    url: str = ""
    answers: list[web.Response | BaseException] = field(default_factory=list)
    bodies: list[JsonObject] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.bodies.append(json.loads(await request.read()))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            assert request.transport is not None
            request.transport.close()
            raise answer
        return answer


@asynccontextmanager
async def provider(*answers: web.Response | BaseException) -> AsyncIterator[Provider]:
    served = Provider(answers=list(answers))
    app = web.Application()
    app.router.add_post("/{path:.*}", served.handle)
    async with on_loopback(app) as served.url:
        yield served


def refusal(status: int, body: JsonObject, **headers: str) -> web.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response(body, status=status, headers=named)


A_PROMPT: list[JsonObject] = [
    {"kind": "instructions", "role": "system", "content": [{"type": "text", "text": "Be kind."}]},
    {"kind": "message", "role": "user", "content": [{"type": "text", "text": "What is in it?"}]},
]
A_TOOL: JsonObject = {
    "name": "read",
    "description": "Reads a file.",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
}


def a_call(*items: JsonObject, **members: object) -> JsonObject:
    return {"prompt": [*A_PROMPT, *items], "tools": [A_TOOL], "executionId": "ses_1", **members}


async def a_file(reference: JsonObject) -> tuple[bytes, str]:
    if reference.get("artifactId") != "af_1":
        raise LookupError("no such artifact")
    return b"bytes", "image/png"
