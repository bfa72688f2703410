"""A core on loopback, as light as one can be, so that what is measured is the host: it answers at once and keeps little."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

import orjson
from aiohttp import WSMsgType, web

from pod_host.contract.base import JsonObject
from pod_host.contract.hosting import HARNESS_PATH

FRAME_BYTES: Final = 64 * 1024 * 1024
_LARGE: Final = 1024 * 1024  # a frame of which only the id is read: parsing it would hold up what is measured
_NO_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"

Model = Callable[[JsonObject], Awaitable[JsonObject]]
"""The gate's model: a call's body to its outcome."""


@dataclass(frozen=True)
class Asked:
    """A request of the host. ``at``: when it came, on `time.perf_counter`."""

    params: JsonObject
    at: float


async def say_done(body: JsonObject) -> JsonObject:
    return said("Done.")


def said(text: str | orjson.Fragment) -> JsonObject:
    """The outcome of a model that ends its turn."""
    return {"output": [{"type": "text", "text": text}], "finishReason": "stop", "usage": {}}


def calls(*tools: tuple[str, JsonObject]) -> JsonObject:
    """The outcome of a model that asks for tools."""
    blocks = [
        {"type": "tool-call", "id": f"call-{number}", "name": name, "args": arguments}
        for number, (name, arguments) in enumerate(tools)
    ]
    return {"output": blocks, "finishReason": "tool-calls", "usage": {}}


class Core:
    """``model``: answers model calls; ``entries``: of every transcript."""

    def __init__(self, *, renew_every_ms: int = 10_000, certificate: str = _NO_CERTIFICATE) -> None:
        self.model: Model = say_done
        self.entries: list[JsonObject] = []
        self.renew_every_ms = renew_every_ms
        self._certificate = certificate
        self._connections: asyncio.Queue[Connection] = asyncio.Queue()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=FRAME_BYTES)
        app.router.add_post(f"{HARNESS_PATH}/host/join", self._join)
        app.router.add_post(f"{HARNESS_PATH}/host/renew", self._join)
        app.router.add_get(HARNESS_PATH, self._upgrade)
        app.router.add_post("/nylorun/v1/model-calls", self._call_model)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def connected(self) -> Connection:
        """The next connection of a host, when it has asked for its first lease."""
        connection = await self._connections.get()
        await connection.leasing.wait()
        return connection

    async def _join(self, request: web.Request) -> web.Response:
        await request.read()
        pair = {"hostToken": "host", "egressToken": "egress", "sandboxId": "sbx", "epoch": 1}
        ends = (datetime.now(UTC) + timedelta(minutes=15)).isoformat()
        return web.json_response({**pair, "expiresAt": ends, "caCertificate": self._certificate})

    async def _call_model(self, request: web.Request) -> web.Response:
        outcome = await self.model(orjson.loads(await request.read()))
        return web.Response(body=orjson.dumps({"outcome": outcome}), content_type="application/json")

    async def _upgrade(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=FRAME_BYTES, compress=False, autoping=False)
        await socket.prepare(request)
        connection = Connection(socket, self)
        self._connections.put_nowait(connection)
        await connection.read()
        return socket


class Connection:
    """One host's. A lease is answered by `offer`, all else at once."""

    def __init__(self, socket: web.WebSocketResponse, core: Core) -> None:
        self.leasing = asyncio.Event()
        self.asked: defaultdict[str, asyncio.Queue[Asked]] = defaultdict(asyncio.Queue)
        self.pongs: asyncio.Queue[float] = asyncio.Queue()  # when each came
        self._socket = socket
        self._core = core
        self._ids = 0
        self._runs = 0
        self._answers: dict[int, asyncio.Future[JsonObject]] = {}
        self._offers: asyncio.Queue[JsonObject] = asyncio.Queue()
        self._leases: set[asyncio.Task[None]] = set()

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """The host's answer to a request. Raises RuntimeError when it refuses."""
        self._ids += 1
        answer = self._answers[self._ids] = asyncio.get_running_loop().create_future()
        await self._send({"t": "req", "id": self._ids, "m": method, "p": params})
        frame = await answer
        if not frame["ok"]:
            raise RuntimeError(f"{method}: {frame['e']}")
        result: JsonObject = frame["r"]
        return result

    async def use(self, tool: str, tool_input: JsonObject, owner: str = "one") -> JsonObject:
        """A tool call by ``workspace.*``: its output, completed or not at all."""
        kind = "exec" if tool == "bash" else "write" if tool in ("write", "edit") else "read"
        result = await self.ask(f"workspace.{kind}", {"session": {"ownerId": owner}, "tool": tool, "input": tool_input})
        if result["kind"] != "completed":
            raise RuntimeError(f"{tool}: {result}")
        return result

    async def offer(self, message: str = "hello", **members: object) -> float:
        """A run for the host's waiting lease, or its next one. When it left."""
        self._runs += 1
        await self._offers.put({**turn_start(f"session-{self._runs}", f"turn-{self._runs}", message), **members})
        return time.perf_counter()

    async def ping(self) -> float:
        """When it left; the answer comes to ``pongs``."""
        await self._socket.ping(b"bench")
        return time.perf_counter()

    async def read(self) -> None:
        async for message in self._socket:
            at = time.perf_counter()
            if message.type is WSMsgType.PONG:
                self.pongs.put_nowait(at)
            elif message.type is WSMsgType.PING:
                await self._socket.pong(message.data)
            elif message.type is WSMsgType.TEXT:
                await self._take(message.data, at)
        for lease in self._leases:
            lease.cancel()

    async def _take(self, text: str, at: float) -> None:
        frame = orjson.loads(text) if len(text) < _LARGE else _envelope(text)
        if frame["t"] == "res":
            if answer := self._answers.pop(frame["id"], None):
                answer.set_result(frame)
        elif frame["t"] == "req":
            method, params = frame["m"], frame["p"]
            if method != "event":
                self.asked[method].put_nowait(Asked(params, at))
            if method == "lease":
                self.leasing.set()
                lease = asyncio.create_task(self._lease(frame["id"]))
                self._leases.add(lease)
                lease.add_done_callback(self._leases.discard)
            else:
                await self._respond(frame["id"], self._result(method, params))

    async def _lease(self, number: int) -> None:
        start = await self._offers.get()
        checkpoint = start["checkpoint"]
        grant = {
            "runId": f"run of {checkpoint['turnId']}",
            "sessionId": checkpoint["sessionId"],
            "turnId": checkpoint["turnId"],
            "epoch": 1,
            "token": "run",
            "tokenExpiresAt": datetime.now(UTC).isoformat(),
        }
        await self._respond(number, {"run": grant, "input": start})

    def _result(self, method: str, params: JsonObject) -> JsonObject:
        match method:
            case "hello":
                return {
                    "api": 5,
                    "tenantId": "t",
                    "sandbox": {"backend": None},
                    "renewEveryMs": self._core.renew_every_ms,
                }
            case "lease.renew":
                return {"ok": True}
            case "effect.intent":
                return {"status": "execute"}
            case "effect.outcome":
                return {"status": "completed", "outcome": {"value": params.get("value", said("It was large."))}}
            case "transcript.read":
                return {"cursor": len(self._core.entries) - 1, "entries": self._core.entries}
            case "turn.completed" | "turn.failed":
                return {"cursor": len(self._core.entries)}
            case _:
                return {}

    async def _respond(self, number: int, result: JsonObject) -> None:
        await self._send({"t": "res", "id": number, "ok": True, "r": result})

    async def _send(self, frame: JsonObject) -> None:
        if not self._socket.closed:
            await self._socket.send_frame(orjson.dumps(frame), WSMsgType.TEXT)


def _envelope(text: str) -> JsonObject:
    """Of a large frame: what it is, and of what it holds the length alone."""
    kind = {"req": "req", "res": "res"}[text[text.index('"t":"') + 5 :][:3]]
    number = int(text[text.index('"id":') + 5 :].split(",", 1)[0])
    if kind == "res":
        return {"t": kind, "id": number, "ok": True, "r": {"kind": "completed", "output": len(text)}}
    method = text[text.index('"m":"') + 5 :].split('"', 1)[0]
    return {"t": kind, "id": number, "m": method, "p": {"bytes": len(text)}}


def turn_start(session_id: str, turn_id: str, message: str) -> JsonObject:
    """A turn of a session with a sandbox."""
    return {
        "type": "turn.start",
        "engine": "agent",
        "manifest": {"id": "agent", "instructions": "Be brief.", "tools": []},
        "checkpoint": {
            "sessionId": session_id,
            "turnId": turn_id,
            "segment": 0,
            "manifestHash": "0" * 64,
            "input": message,
        },
        "transcript": {"cursor": -1},
        "routing": {"sandbox": {"ownerId": session_id, "environmentId": "agent", "environment": {}}},
        "agent": {"id": "agent", "kind": "pod", "sandbox": {"workspace": "/workspace"}},
    }
