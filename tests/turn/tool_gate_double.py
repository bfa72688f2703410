"""The Tool Gate in memory, strict: each call runs once under its key, of a journaled row with this very target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import decode
from pod_host.contract.model_call import (
    HTTP_CALLS_PATH,
    MCP_CONNECT_PATH,
    MCP_LIST_PATH,
    TOOL_CALLS_PATH,
    McpConnectBody,
    McpListBody,
    ToolCallBody,
)
from pod_host.errors import GateRefusal, RuntimeRefusal


def texts(text: str) -> JsonObject:
    return {"ok": True, "result": {"content": [{"type": "text", "text": text}]}}


def tool(name: str, **members: Json) -> JsonObject:
    return {"name": name, "inputSchema": {"type": "object"}, **members}


@dataclass
class Server:
    """``pages`` of tools. ``failure``: the error of every request to it."""

    pages: list[list[JsonObject]] = field(default_factory=list)
    instructions: str | None = None
    failure: JsonObject | None = None


@dataclass
class ToolGate:
    """``answers``: gives a call's answer from its path and body, once for each key. ``before``: called first, each time; it
    may raise, or return something to await. ``forgets``: answers are gone with the run that asked for them."""

    servers: dict[str, Server] = field(default_factory=dict)
    answers: Callable[[str, JsonObject], Json] = lambda path, body: texts("done")
    before: Callable[[str, JsonObject], Any] | None = None
    forgets: bool = False
    asked: list[tuple[str, str, JsonObject]] = field(default_factory=list)  # path, key, body
    ran: list[str] = field(default_factory=list)  # keys, each time that a call ran
    kept: dict[str, tuple[bytes, Json]] = field(default_factory=dict)
    snapshot: JsonObject | None = None
    recorded: list[JsonObject] = field(default_factory=list)  # params of session.mcp
    facts: Callable[[JsonObject], Json] = lambda snapshot: {"servers": snapshot["servers"]}

    async def call(self, path: str, raw: bytes, key: str, intent: JsonObject | None) -> Json:
        """``intent``: of the row of this key that was answered execute."""
        body = decode(raw)
        self.asked.append((path, key, body))
        if self.before is not None and (waiting := self.before(path, body)) is not None:
            await waiting
        if path == MCP_CONNECT_PATH:
            return self._connect(McpConnectBody.model_validate(body).server.server_name)
        if path == MCP_LIST_PATH:
            return self._list(McpListBody.model_validate(body))
        if intent is None:
            raise GateRefusal(409, "effect_not_journaled", "no intent was answered execute")
        assert body["effectId"] == key
        if path == TOOL_CALLS_PATH:
            call = ToolCallBody.model_validate(body)
            assert intent["target"] == {"kind": "mcp", "server": call.server.server_name, "tool": call.name}
            assert intent["input"] == call.arguments
        else:
            assert path == HTTP_CALLS_PATH
            assert intent["target"] == {"kind": "http", "tool": body["tool"].get("toolName", body["tool"].get("tool"))}
            assert intent["input"] == body["input"]
        if key not in self.kept:
            self.ran.append(key)
            self.kept[key] = (raw, self.answers(path, body))
        if self.kept[key][0] != raw:
            raise GateRefusal(409, "gate_conflict", "another body ran under this key")
        return self.kept[key][1]

    def session_mcp(self, params: JsonObject) -> JsonObject:
        self.recorded.append(params)
        snapshot = params.get("snapshot")
        if snapshot is not None:
            if snapshot.keys() - {"snapshotSchemaVersion", "servers", "manifestHash"}:
                raise RuntimeRefusal("invalid", "snapshot")
            self.snapshot = self.snapshot or snapshot
        return {} if self.snapshot is None else {"mcp": self.facts(self.snapshot)}

    def _connect(self, name: str) -> Json:
        server = self.servers[name]
        if server.failure is not None:
            return {"ok": False, "error": server.failure}
        return {"ok": True, "result": {"instructions": server.instructions} if server.instructions else None}

    def _list(self, body: McpListBody) -> Json:
        server, page = self.servers[body.server.server_name], int(body.cursor or 0)
        result: JsonObject = {"tools": server.pages[page] if server.pages else []}
        if page + 1 < len(server.pages):
            result["nextCursor"] = str(page + 1)
        return {"ok": True, "result": result}
