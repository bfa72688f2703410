"""A scripted Runtime on loopback: it answers as a test tells it to, and keeps what it was sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from aiohttp import WSMsgType, web

from tests.host.test_trust import certificate

PATH = "/nylorun/harness/v1"
PATIENCE = 180.0  # seconds: a host's start is one second's work, of imports, which forty busy processes make a minute
HELLO = {"api": 5, "tenantId": "t", "sandbox": {"backend": None}, "renewEveryMs": 10_000}

OnRequest = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any] | None]]
"""How to answer a request: a result, ``{"refuse": code}``, or None for what is usual."""


class Watched:
    """Values that a test can wait for."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._came = asyncio.Condition()

    async def add(self, value: Any) -> None:
        async with self._came:
            self.all.append(value)
            self._came.notify_all()

    async def first(self, wanted: Callable[[Any], bool] = lambda value: True, after: int = 0) -> Any:
        """The first value from index ``after`` on that is ``wanted``, waited for."""
        async with asyncio.timeout(PATIENCE), self._came:
            await self._came.wait_for(lambda: any(wanted(value) for value in self.all[after:]))
            return next(value for value in self.all[after:] if wanted(value))

    async def count(self, wanted: int) -> None:
        async with asyncio.timeout(PATIENCE), self._came:
            await self._came.wait_for(lambda: len(self.all) >= wanted)


class Core:
    """``on_join``, ``on_renew``: a status to refuse with, or None to answer. ``setup``: members added to a join's answer.
    ``on_hello``: None, or the error code to refuse the params with."""

    def __init__(self) -> None:
        self.joins = Watched()
        self.renewals = Watched()
        self.upgrades = Watched()  # the status that each was answered with
        self.connections = Watched()
        self.on_join: Callable[[dict[str, Any]], int | None] = lambda body: None
        self.on_renew: Callable[[str], int | None] = lambda token: None
        self.on_upgrade: Callable[[str], int | None] = lambda token: None
        self.on_hello: Callable[[dict[str, Any]], str | None] = lambda params: None
        self.on_request: OnRequest | None = None
        self.model: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: said("Done.")
        self.hello: dict[str, Any] = HELLO
        self.setup: dict[str, Any] = {}
        self.certificate = certificate("Egress one")
        self.life = timedelta(minutes=15)
        self.epoch = 0
        self.egress_suffix = ""
        self._minted = 0
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post(f"{PATH}/host/join", self._join)
        app.router.add_post(f"{PATH}/host/renew", self._renew)
        app.router.add_get(PATH, self._upgrade)
        app.router.add_post("/nylorun/v1/model-calls", self._call_model)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        for connection in self.connections.all:
            await connection.close("core is stopping")
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def connected(self, number: int = 1) -> Connection:
        """Connection ``number``, from 1, after its hello was answered."""
        await self.connections.count(number)
        connection: Connection = self.connections.all[number - 1]
        await connection.asked("hello")
        return connection

    def _pair(self) -> dict[str, Any]:
        self._minted += 1
        return {
            "hostToken": f"host-{self.epoch}-{self._minted}",
            "egressToken": f"egress-{self.epoch}-{self._minted}{self.egress_suffix}",
            "sandboxId": "sbx",
            "epoch": self.epoch,
            "expiresAt": (datetime.now(UTC) + self.life).isoformat(),
            "caCertificate": self.certificate,
        }

    async def _join(self, request: web.Request) -> web.Response:
        body = await request.json()
        refusal = self.on_join(body)
        await self.joins.add(body)
        if refusal is not None:
            return _refused(refusal)
        self.epoch += 1
        return web.json_response({**self._pair(), **self.setup})

    async def _renew(self, request: web.Request) -> web.Response:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        refusal = self.on_renew(token)
        if refusal is None and not token.startswith(f"host-{self.epoch}-"):
            refusal = 401
        await self.renewals.add((token, refusal))
        return _refused(refusal) if refusal is not None else web.json_response(self._pair())

    async def _call_model(self, request: web.Request) -> web.Response:
        return web.json_response({"outcome": self.model(await request.json())})

    async def _upgrade(self, request: web.Request) -> web.StreamResponse:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        refusal = self.on_upgrade(token)
        if refusal is None and not token.startswith(f"host-{self.epoch}-"):
            refusal = 401
        await self.upgrades.add((token, refusal))
        if refusal is not None:
            return web.Response(status=refusal)
        socket = web.WebSocketResponse(max_msg_size=64 * 1024 * 1024)
        await socket.prepare(request)
        connection = Connection(socket, self.on_hello, self.hello)
        connection.on_request = self.on_request
        await self.connections.add(connection)
        await connection.read()
        return socket


class Connection:
    """One host's WebSocket, at core's end. hello, lease.renew, lease.release, event and outputs are answered by themselves;
    other requests when `on_request` says how; lease waits for `offer`."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        on_hello: Callable[[dict[str, Any]], str | None],
        hello: dict[str, Any],
    ) -> None:
        self.frames = Watched()
        self.closed: asyncio.Future[tuple[int | None, str]] = asyncio.get_running_loop().create_future()
        self.on_request: OnRequest | None = None
        self.renewal: dict[str, Any] = {"ok": True}
        self._socket = socket
        self._on_hello = on_hello
        self._hello = hello
        self._ids = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._offers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                continue
            frame = json.loads(message.data)
            if frame["t"] == "res" and (answer := self._answers.pop(frame["id"], None)):
                answer.set_result(frame)
            if frame["t"] == "req":
                task = asyncio.create_task(self._answer(frame))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await self.frames.add(frame)
        for task in self._tasks:
            task.cancel()
        self.closed.set_result((self._socket.close_code, ""))

    async def asked(self, method: str, after: int = 0) -> dict[str, Any]:
        """The params of the host's first ``method`` request, from frame ``after`` on."""
        frame = await self.frames.first(lambda frame: frame.get("m") == method and frame["t"] == "req", after)
        params: dict[str, Any] = frame["p"]
        return params

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request; the host's whole answer frame."""
        number, answer = await self.begin(method, params)
        del number
        async with asyncio.timeout(PATIENCE):
            return await answer

    async def begin(self, method: str, params: dict[str, Any]) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        self._ids += 1
        answer = self._answers[self._ids] = asyncio.get_running_loop().create_future()
        number = self._ids
        await self.send({"t": "req", "id": number, "m": method, "p": params})
        return number, answer

    async def send(self, frame: dict[str, Any]) -> None:
        await self._socket.send_str(json.dumps(frame))

    async def offer(self, run_id: str, start: dict[str, Any]) -> None:
        """Answer the host's waiting lease, or the next one, with a run."""
        checkpoint = start["checkpoint"]
        grant = {
            "runId": run_id,
            "sessionId": checkpoint["sessionId"],
            "turnId": checkpoint["turnId"],
            "epoch": 1,
            "token": f"token of {run_id}",
            "tokenExpiresAt": datetime.now(UTC).isoformat(),
        }
        await self._offers.put({"run": grant, "input": start})

    async def cancel(self, run_id: str, reason: str) -> None:
        await self.send({"t": "msg", "m": "cancel", "p": {"runId": run_id, "reason": reason}})

    async def close(self, reason: str) -> None:
        with suppress(ConnectionError):
            await self._socket.close(code=1000, message=reason.encode())

    async def _answer(self, frame: dict[str, Any]) -> None:
        method, params = frame["m"], frame["p"]
        if method == "hello" and (code := self._on_hello(params)):
            await self._refuse(frame, code)
            return
        told = await self.on_request(method, params) if self.on_request else None
        if method == "lease" and told is None:
            await self._respond(frame, await self._offers.get())
            return
        defaults: dict[str, Any] = {
            "hello": self._hello,
            "lease.renew": self.renewal,
            "lease.release": {},
            "event": {},
            "effect.intent": {"status": "execute"},
            "effect.outcome": {"status": "completed", "outcome": {"value": params.get("value")}},
            "transcript.read": {"cursor": -1, "entries": []},
            "turn.completed": {"cursor": 1},
            "turn.failed": {"cursor": 1},
        }
        if told is not None and "refuse" in told:
            await self._refuse(frame, told["refuse"])
        elif told is not None or method in defaults:
            await self._respond(frame, defaults[method] if told is None else told)

    async def _respond(self, frame: dict[str, Any], result: dict[str, Any]) -> None:
        with suppress(ConnectionError):
            await self.send({"t": "res", "id": frame["id"], "ok": True, "r": result})

    async def _refuse(self, frame: dict[str, Any], code: str) -> None:
        error = {"code": code, "message": f"{frame['m']} is refused"}
        await self.send({"t": "res", "id": frame["id"], "ok": False, "e": error})


def said(text: str) -> dict[str, Any]:
    """A ModelCandidate that ends the turn."""
    return {"output": [{"type": "text", "text": text}], "finishReason": "stop", "usage": {}}


def calls(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A ModelCandidate that asks for one tool call."""
    block = {"type": "tool-call", "id": "call-1", "name": tool, "args": arguments}
    return {"output": [block], "finishReason": "tool-calls", "usage": {}}


def turn_start(session_id: str = "session-1", turn_id: str = "turn-1", **members: Any) -> dict[str, Any]:
    """A TurnStart of a session with a sandbox."""
    return {
        "type": "turn.start",
        "engine": "agent",
        "manifest": {"id": "agent", "instructions": "Be brief.", "tools": []},
        "checkpoint": {
            "sessionId": session_id,
            "turnId": turn_id,
            "segment": 0,
            "manifestHash": "0" * 64,
            "input": "hello",
        },
        "transcript": {"cursor": -1},
        "routing": {
            "rootManifest": {},
            "sandbox": {"ownerId": session_id, "environmentId": "agent", "environment": {"COLOUR": "blue"}},
        },
        "agent": {"id": "agent", "kind": "pod", "sandbox": {"workspace": "/workspace"}},
        **members,
    }


def _refused(status: int) -> web.Response:
    return web.json_response({"error": {"code": "refused", "message": "The join was refused"}}, status=status)
