"""A scripted harness: what a host would say to the embedded Runtime, one frame at a time, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from pod_host.contract.canonical import effect_id, effect_request_hash

WAIT = 20.0  # the most that a test waits for a thing
Json = Any
JsonObject = dict[str, Any]


class Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Pod:
    """One pod's identity: joins, renews, connects."""

    def __init__(self, status: JsonObject, *, pod_uid: str = "pod-1", volume_id: str | None = "volume-1") -> None:
        self.status = status
        self.url: str = status["urls"]["harness"]
        self.pod_uid = pod_uid
        self.volume_id = volume_id
        self.http = httpx.AsyncClient(trust_env=False, timeout=WAIT)
        self.host_token = ""
        self.egress_token = ""

    def join_token(self) -> str:
        return Path(self.status["joinFile"]).read_text().strip()

    async def join_answer(self, **change: Json) -> httpx.Response:
        body = {
            "sandboxId": self.status["sandboxId"],
            "podUid": self.pod_uid,
            "joinToken": self.join_token(),
            "volumeId": self.volume_id,
        } | change
        body = {name: value for name, value in body.items() if value is not None}
        return await self.http.post(f"{self.url}/nylorun/harness/v1/host/join", json=body)

    async def join(self) -> JsonObject:
        response = await self.join_answer()
        assert response.status_code == 200, response.text
        answer: JsonObject = response.json()
        self.host_token, self.egress_token = answer["hostToken"], answer["egressToken"]
        return answer

    async def renew(self, token: str | None = None) -> httpx.Response:
        return await self.http.post(
            f"{self.url}/nylorun/harness/v1/host/renew",
            headers={"Authorization": f"Bearer {token or self.host_token}"},
        )

    @asynccontextmanager
    async def socket(self, *, pings: bool = True) -> AsyncIterator[ClientConnection]:
        async with connect(
            self.url.replace("http", "ws", 1) + "/nylorun/harness/v1",
            additional_headers={"Authorization": f"Bearer {self.host_token}", "Nylorun-Harness-Api": "1"},
            compression=None,
            proxy=None,
            max_size=64 * 1024 * 1024,
            ping_interval=20 if pings else None,
        ) as socket:
            yield socket

    @asynccontextmanager
    async def connected(self, **hello: Json) -> AsyncIterator[Channel]:
        """Join when there is no token yet, connect, say hello."""
        if not self.host_token:
            await self.join()
        async with self.socket() as socket:
            channel = Channel(socket)
            try:
                await channel.ask("hello", hello_params(**hello))
                yield channel
            finally:
                await channel.end()

    async def close(self) -> None:
        await self.http.aclose()


def hello_params(**change: Json) -> JsonObject:
    return {"api": 5, "name": "pod-host", "version": "0", "features": {"workspace": {"backends": ["local"]}}} | change


class Channel:
    """The harness end of one WebSocket: asks, hears messages, serves what it is told to serve."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.messages: asyncio.Queue[JsonObject] = asyncio.Queue()
        self.requests: asyncio.Queue[JsonObject] = asyncio.Queue()  # what core asks, when no server is set
        self.aborts: asyncio.Queue[int] = asyncio.Queue()
        self.serve: Callable[[str, JsonObject], Awaitable[Json]] | None = None
        self._last = 0
        self._pending: dict[int, asyncio.Future[Json]] = {}
        self._reader = asyncio.create_task(self._read())

    async def ask(self, method: str, params: JsonObject) -> Json:
        async with asyncio.timeout(WAIT):  # not wait_for, which in 3.11 may lose a cancellation
            return await (await self.start(method, params))[1]

    async def start(self, method: str, params: JsonObject) -> tuple[int, asyncio.Future[Json]]:
        """Send a request; its id, and its answer to come."""
        self._last += 1
        number = self._last
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        await self.send({"t": "req", "id": number, "m": method, "p": params})
        return number, answer

    async def send(self, frame: JsonObject) -> None:
        await self.socket.send(json.dumps(frame))

    async def answer(self, number: int, result: Json) -> None:
        await self.send({"t": "res", "id": number, "ok": True, "r": result})

    async def lease(self) -> Run:
        return Run(self, await self.ask("lease", {}))

    async def message(self) -> JsonObject:
        return await asyncio.wait_for(self.messages.get(), WAIT)

    async def request(self) -> JsonObject:
        return await asyncio.wait_for(self.requests.get(), WAIT)

    async def closed(self) -> tuple[int, str]:
        """Wait for the other end to close: code and reason."""
        await asyncio.wait_for(self.socket.wait_closed(), WAIT)
        return self.socket.close_code or 0, self.socket.close_reason or ""

    async def drop(self) -> None:
        """As a network does: no closing handshake."""
        self.socket.transport.abort()
        await self.socket.wait_closed()

    async def end(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async for text in self.socket:
                self._hear(json.loads(text))
        except ConnectionClosed:
            pass
        finally:
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(Refused("unavailable", "the connection closed"))
                    answer.exception()  # nobody may be waiting

    def _hear(self, frame: JsonObject) -> None:
        if frame["t"] == "res":
            answer = self._pending.pop(frame["id"], None)
            if answer is not None and not answer.done():
                if frame["ok"]:
                    answer.set_result(frame["r"])
                else:
                    answer.set_exception(Refused(frame["e"]["code"], frame["e"]["message"]))
        elif frame["t"] == "msg":
            self.messages.put_nowait(frame)
        elif frame["t"] == "abort":
            self.aborts.put_nowait(frame["id"])
        elif frame["t"] == "req":
            self.requests.put_nowait(frame)


class Run:
    """One leased run, and the requests that a harness makes for it."""

    def __init__(self, channel: Channel, lease: JsonObject) -> None:
        self.channel = channel
        self.grant: JsonObject = lease["run"]
        self.start: JsonObject = lease["input"]
        self.checkpoint: JsonObject = self.start["checkpoint"]
        self.id: str = self.grant["runId"]
        self.session_id: str = self.grant["sessionId"]
        self.turn_id: str = self.grant["turnId"]
        self.segment: int = self.checkpoint["segment"]

    async def ask(self, method: str, **params: Json) -> Json:
        return await self.channel.ask(method, {"runId": self.id, **params})

    def model_intent(self, step: str = "step-1", **more: Json) -> JsonObject:
        return self._intent("model", step, context={"invocationId": step}, **more)

    def tool_intent(
        self, name: str, target: JsonObject | None, arguments: Json, at: str = "step-1/0", **more: Json
    ) -> JsonObject:
        target_member = {} if target is None else {"target": target}
        context = {"callId": f"call-{at}", "invocationId": at}
        return self._intent("tool", at, toolName=name, input=arguments, context=context, **target_member, **more)

    def _intent(self, kind: str, identity: str, **more: Json) -> JsonObject:
        return {
            "effectId": effect_id(self.turn_id, self.segment, kind, identity),
            "sessionId": self.session_id,
            "turnId": self.turn_id,
            "agentId": self.start["manifest"]["id"],
            "manifestHash": self.checkpoint["manifestHash"],
            "kind": kind,
            **more,
        }

    async def intent(
        self, effect: JsonObject, *, call: JsonObject | None = None, request_hash: str | None = None
    ) -> JsonObject:
        hashed = {**effect, "input": call} if call is not None else effect
        answer: JsonObject = await self.ask(
            "effect.intent", effect=effect, requestHash=request_hash or effect_request_hash(hashed)
        )
        return answer

    async def outcome(self, effect: JsonObject, value: Json) -> JsonObject:
        answer: JsonObject = await self.ask("effect.outcome", effectId=effect["effectId"], value=value)
        return answer

    def model_call(self, text: str = "hello") -> JsonObject:
        part = {"type": "text", "text": text}
        return {
            "prompt": [{"kind": "message", "role": "user", "content": [part]}],
            "tools": [],
            "executionId": self.session_id,
        }

    async def complete(self, output: Json = "done", **more: Json) -> JsonObject:
        answer: JsonObject = await self.ask(
            "turn.completed", **{"status": "completed", "output": output, "state": {"v": 1}, **more}
        )
        return answer

    def input_entry(self, text: str = "hi") -> JsonObject:
        return {"kind": "input", "turnId": self.turn_id, "event": {"kind": "user-message", "text": text}}

    def final_entry(self, output: Json = "done") -> JsonObject:
        return {"kind": "final", "turnId": self.turn_id, "stepId": "s", "output": output}


class North:
    """A client of the north API."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.AsyncClient(base_url=url, trust_env=False, timeout=WAIT)

    async def get(self, path: str) -> Json:
        response = await self.http.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: JsonObject | None = None) -> Json:
        response = await self.http.post(path, json=body or {})
        assert response.status_code in (200, 201, 202), response.text
        return response.json()

    async def session(self) -> str:
        return str((await self.post("/v1/sessions"))["sessionId"])

    async def say(self, session_id: str, given: Json = "hi") -> JsonObject:
        answer: JsonObject = await self.post(f"/v1/sessions/{session_id}/messages", {"input": given})
        return answer

    async def turn(self, session_id: str, number: int = -1) -> JsonObject:
        turn: JsonObject = (await self.get(f"/v1/sessions/{session_id}"))["turns"][number]
        return turn

    async def events(self, session_id: str | None = None) -> list[JsonObject]:
        path = f"/v1/sessions/{session_id}/events" if session_id else "/v1/events"
        response = await self.http.get(path)
        return [json.loads(line) for line in response.text.splitlines()]

    async def until(self, kind: str, session_id: str | None = None, *, after: int = 0) -> JsonObject:
        """The first event of this kind after ``after``, as soon as it is recorded."""
        async with asyncio.timeout(WAIT), aclosing(self.follow(session_id, after)) as events:
            async for event in events:
                if event["type"] == kind:
                    return event
        raise AssertionError(f"the stream ended without {kind}")

    async def hear(self, count: int, session_id: str, *, after: int) -> None:
        """Wait for this many events after ``after``."""
        async with asyncio.timeout(WAIT), aclosing(self.follow(session_id, after)) as events:
            async for _ in events:
                count -= 1
                if count == 0:
                    return

    async def follow(self, session_id: str | None, after: int) -> AsyncGenerator[JsonObject, None]:
        path = f"/v1/sessions/{session_id}/events" if session_id else "/v1/events"
        async with self.http.stream("GET", path, params={"after": after, "follow": 1}) as response:
            async for line in response.aiter_lines():
                yield json.loads(line)

    async def close(self) -> None:
        await self.http.aclose()
