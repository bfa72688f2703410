"""MCP servers as the Tool Gate reaches them (Harness API v5, section 5): a connection for each session and server, opened
when it is needed, kept, and closed when nobody has used it for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import mcp_types
from mcp.client.session import ClientSession
from pydantic import RootModel

from pod_host.contract.base import JsonObject
from pod_host.dev.credentials import CredentialMissing, Credentials, redacted
from pod_host.dev.mcp_connection import REFUSALS, Ask, Connection, McpFailed, T

IDEMPOTENCY_KEY: Final = "nylorun/idempotency-key"  # in _meta of a tools/call
_TOOL_MEMBERS: Final = ("name", "description", "inputSchema", "outputSchema", "annotations")


_Key: TypeAlias = tuple[str, str | None, str]


def _key(session_id: str, server: JsonObject) -> _Key:
    """Agents of one session may each declare a server of the same name."""
    return session_id, server.get("agentId"), str(server["name"])


class _Raw(RootModel[dict[str, Any]]):
    """A result as it came."""


@dataclass(frozen=True)
class ToolCall:
    """``key``: of the call at the gate, which the server gets too."""

    tool: str
    arguments: JsonObject
    key: str
    traceparent: str | None


class McpServers:
    """``environment``: where credentials come from. ``most_bytes``: of one answer. Whatever is answered or raised holds no
    credential that was sent."""

    def __init__(self, environment: Mapping[str, str], most_bytes: int, *, idle_seconds: float) -> None:
        self._environment = environment
        self._most_bytes = most_bytes
        self._idle_seconds = idle_seconds
        self._connections: dict[_Key, Connection] = {}
        self._live: set[Connection] = set()  # with those that only end what they were asked

    async def connect(self, session_id: str, server: JsonObject) -> tuple[JsonObject | None, int]:
        """``{instructions}`` or None, as the gate answers it, and how many values were redacted. Raises McpFailed."""

        async def instructions(session: ClientSession) -> JsonObject | None:
            return {"instructions": session.instructions} if session.instructions else None

        return await self._ask(session_id, server, instructions)

    async def list(self, session_id: str, server: JsonObject, cursor: str | None) -> tuple[JsonObject, int]:
        """One page: ``{tools, nextCursor?}``, likewise."""

        async def page(session: ClientSession) -> JsonObject:
            params = mcp_types.PaginatedRequestParams(cursor=cursor) if cursor else None
            listed = await session.list_tools(params=params)
            tools = [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in listed.tools]
            answer: JsonObject = {
                "tools": [{name: tool[name] for name in _TOOL_MEMBERS if name in tool} for tool in tools]
            }
            return {**answer, "nextCursor": listed.next_cursor} if listed.next_cursor else answer

        return await self._ask(session_id, server, page)

    async def call(self, session_id: str, server: JsonObject, call: ToolCall) -> tuple[JsonObject, int]:
        """The CallToolResult as the server gave it, likewise."""
        meta: JsonObject = {IDEMPOTENCY_KEY: call.key}
        if call.traceparent:
            meta["traceparent"] = call.traceparent
        request = mcp_types.CallToolRequest.model_validate(
            {"params": {"name": call.tool, "arguments": call.arguments, "_meta": meta}}
        )

        async def send(session: ClientSession) -> JsonObject:
            result = (await session.send_request(request, _Raw)).root
            if result.get("resultType") not in (None, "complete"):
                raise McpFailed("mcp.error", f"{call.tool} asks for more input, which nobody gives here", sent=True)
            return result

        return await self._ask(session_id, server, send)

    async def close(self, session_id: str, server: JsonObject) -> None:
        connection = self._connections.pop(_key(session_id, server), None)
        if connection is not None:
            await connection.close()

    async def stop(self) -> None:
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in set(self._live)))

    # --- Inside ----------------------------------------------------------------------------------------------------------

    async def _ask(self, session_id: str, server: JsonObject, ask: Ask[T]) -> tuple[T, int]:
        """On the connection that is there; on a new one when the server does not know that any more, or is not reached on
        it: either way nothing ran."""
        key = _key(session_id, server)
        connection, was_open = self._connection(key, server)
        try:
            answer = await connection.ask(ask)
        except McpFailed as failed:
            if not was_open or failed.sent or failed.code in REFUSALS:
                raise _shown(failed, connection.secrets) from None
            connection.retire()
            connection, _ = self._connection(key, server)  # another call may have opened it already
            try:
                answer = await connection.ask(ask)
            except McpFailed as again:
                raise _shown(again, connection.secrets) from None
        return redacted(answer, connection.secrets)

    def _connection(self, key: _Key, server: JsonObject) -> tuple[Connection, bool]:
        """The one that is there, or a new one; whether it was there."""
        known = self._connections.get(key)
        if known is not None and known.usable:
            return known, True
        made = self._connections[key] = self._open(server)
        self._live.add(made)
        made.when_over(lambda: self._live.discard(made))
        return made, False

    def _open(self, server: JsonObject) -> Connection:
        credentials = Credentials(self._environment)
        try:
            headers = credentials.filled(server.get("headers"))
        except CredentialMissing as missing:
            message = f"MCP authorization refused: {missing}"
            raise McpFailed("credential_rejected", message, sent=False) from None
        return Connection(server, headers, credentials.sent, self._most_bytes, self._idle_seconds)


def _shown(failed: McpFailed, secrets: frozenset[str]) -> McpFailed:
    message, _ = redacted(failed.message, secrets)
    return McpFailed(failed.code, message, sent=failed.sent, number=failed.number)
