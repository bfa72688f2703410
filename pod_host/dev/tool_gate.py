"""The Tool Gate: MCP servers and HTTP tools, each call run once under its key (Harness API v5, section 5).

An answer is kept on disk for a day, so a re-send gets the same bytes from the next Runtime too. A call that a killed Runtime
left has none: its row goes on as invoking, and core counts who asks for it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import tool_failure
from pod_host.contract.encoding import encode
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import Database
from pod_host.dev.http_calls import HttpCalls, HttpLost
from pod_host.dev.keyed_calls import KeyedCalls, body_hash, conflict
from pod_host.dev.mcp_connection import McpFailed
from pod_host.dev.mcp_servers import McpServers, ToolCall

KEPT_SECONDS: Final = 24 * 3600.0
Answer = JsonObject
"""``{ok: true, result, redacted?}`` or ``{ok: false, error}``."""
TooLarge = Callable[[str], Answer]
"""The answer in the place of one that is too large, from words for it."""


class ToolGate:
    """``session_id`` everywhere: the run token's. ``server`` and ``tool``: as the agent declares them. Answers are
    JSON text."""

    def __init__(self, config: RuntimeConfig, db: Database) -> None:
        self._most_bytes = config.limits.tool_answer_bytes
        self._db = db
        self._mcp = McpServers(config.credentials, self._most_bytes, idle_seconds=config.times.mcp_idle)
        self._http = HttpCalls(config.credentials, self._most_bytes)
        self._calls = KeyedCalls[bytes](kept_seconds=0.0)  # what is to be kept is on disk
        db.run("DELETE FROM tool_answers WHERE at < ?", time.time() - KEPT_SECONDS)

    def knows(self, key: str) -> bool:
        """Whether the call runs, or its answer is kept: a re-send joins it."""
        return self._calls.knows(key) or self._db.value("SELECT 1 FROM tool_answers WHERE key = ?", key) is not None

    async def connect(self, session_id: str, server: JsonObject) -> bytes:
        return self._fitted(await _of_mcp(server, self._mcp.connect(session_id, server)), _mcp_too_large)

    async def list(self, session_id: str, server: JsonObject, cursor: str | None) -> bytes:
        return self._fitted(await _of_mcp(server, self._mcp.list(session_id, server, cursor)), _mcp_too_large)

    async def close(self, session_id: str, server: JsonObject) -> None:
        await self._mcp.close(session_id, server)

    async def call_mcp(self, session_id: str, server: JsonObject, call: ToolCall, *, repeatable: bool) -> bytes:
        """``repeatable``: the server says that the call may run twice; an answer that was lost is then not kept, so that
        a re-send runs it again. Raises GateRefusal."""

        async def run() -> bytes:
            answer = await self._uncancelled(_of_mcp(server, self._mcp.call(session_id, server, call)))
            return self._kept(call.key, body, answer, _mcp_too_large, keep=not (repeatable and _is_lost(answer)))

        body = body_hash([session_id, server["name"], call.tool, call.arguments])
        return await self._once(call.key, session_id, body, run)

    async def call_http(
        self, session_id: str, tool: JsonObject, arguments: Json, *, key: str, traceparent: str | None
    ) -> bytes:
        """Raises GateRefusal."""

        async def run() -> bytes:
            answer = await self._uncancelled(_of_http(self._http.call(tool, arguments, key, traceparent)))
            return self._kept(key, body, answer, _http_too_large, keep=True)

        body = body_hash([session_id, tool["name"], arguments])
        return await self._once(key, session_id, body, run)

    def cancel(self, key: str, session_id: str) -> None:
        """Abort a call that runs. Raises GateRefusal for another session's."""
        self._calls.cancel(key, session_id)

    async def stop(self) -> None:
        """Calls that run are dropped without an answer: the next Runtime is asked for them again."""
        await self._calls.stop()
        await self._mcp.stop()
        await self._http.stop()

    # --- Inside ----------------------------------------------------------------------------------------------------------

    async def _once(self, key: str, session_id: str, body: str, run: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        kept = self._db.one("SELECT body_hash, answer FROM tool_answers WHERE key = ?", key)
        if kept is None:
            return await self._calls.call(key, session_id, body, run)
        if kept["body_hash"] != body:
            raise conflict()
        return bytes(kept["answer"])

    async def _uncancelled(self, answering: Awaitable[Answer]) -> Answer:
        try:
            return await answering
        except asyncio.CancelledError:
            if self._calls.stopping:
                raise
            return {"ok": False, "error": {"message": "The call was cancelled; it may have run", "uncertain": True}}

    def _kept(self, key: str, body: str, answer: Answer, too_large: TooLarge, *, keep: bool) -> bytes:
        raw = self._fitted(answer, too_large)
        if keep:
            self._db.run("INSERT OR REPLACE INTO tool_answers VALUES (?, ?, ?, ?)", key, body, raw, time.time())
        return raw

    def _fitted(self, answer: Answer, too_large: TooLarge) -> bytes:
        raw = encode(answer)
        if len(raw) <= self._most_bytes:
            return raw
        return encode(too_large(f"The answer holds {len(raw)} bytes; toolAnswerBytes is {self._most_bytes}"))


def _mcp_too_large(message: str) -> Answer:
    failure = {"code": "mcp.too-large", "message": message, "sent": True, "retryable": False}
    return {"ok": False, "error": {"message": message, "failure": failure}}


def _http_too_large(message: str) -> Answer:
    return {"ok": True, "result": tool_failure("http.too-large", message)}


async def _of_mcp(server: JsonObject, asking: Awaitable[tuple[Json, int]]) -> Answer:
    try:
        result, count = await asking
    except McpFailed as failed:
        failure: JsonObject = {
            "code": failed.code,
            "message": failed.message,
            "sent": failed.sent,
            "retryable": failed.code == "mcp.unreachable",
            "server": server["name"],
        }
        number = {} if failed.number is None else {"code": failed.number}
        return {"ok": False, "error": {"message": failed.message, **number, "failure": failure}}
    return {"ok": True, "result": result, **({"redacted": count} if count else {})}


async def _of_http(calling: Awaitable[JsonObject]) -> Answer:
    try:
        return {"ok": True, "result": await calling}
    except HttpLost as lost:
        return {"ok": False, "error": {"message": str(lost), "uncertain": True}}


def _is_lost(answer: Answer) -> bool:
    error = answer.get("error") or {}
    return error.get("uncertain") is True or (error.get("failure") or {}).get("code") == "mcp.lost"
