"""What a session's MCP servers listed (Harness API v5, section 3, ``mcp``): strict where v5 says, a warning where not."""

from __future__ import annotations

from typing import Any, Final, Literal

from pod_host.contract.base import Json, JsonObject, Sent, Text1
from pod_host.dev.definitions import Definition
from pod_host.dev.record import Record
from pod_host.dev.targets import tool_setting
from pod_host.errors import ContractViolation, RuntimeRefusal


class SnapshotTool(Sent):
    name: Text1
    description: str | None = None
    input_schema: JsonObject
    output_schema: JsonObject | None = None
    annotations: JsonObject | None = None


class SnapshotServer(Sent):
    agent_id: Text1 | None = None
    name: Text1
    instructions: str | None = None
    tools: list[SnapshotTool]


class Snapshot(Sent):
    """Version 2. ``manifest_hash`` was version 1's; whether 2 has it is open, so both are taken."""

    snapshot_schema_version: Literal[2]
    manifest_hash: str | None = None
    servers: list[SnapshotServer]


class Diagnostic(Sent):
    """Proposed: v5 does not say its members."""

    agent_id: Text1 | None = None
    server_name: Text1
    outcome: Literal["connected", "refused", "failed"]
    message: str
    credential_ids: Any = None


_NAMED: Final = "session.mcp"


def read_snapshot(snapshot: JsonObject, definition: Definition, record: Record) -> JsonObject:
    """The snapshot as it is kept. Raises RuntimeRefusal for what v5 forbids."""
    try:
        read = Snapshot.read(_known_members(snapshot, record), f"{_NAMED} request: snapshot")
    except ContractViolation as fault:
        raise RuntimeRefusal("invalid", str(fault)) from None
    for server in read.servers:
        if server.name not in definition.servers(server.agent_id):
            raise RuntimeRefusal("invalid", f"snapshot: the agent declares no MCP server {server.name}")
        for tool in server.tools:
            if tool.input_schema.get("type") != "object":
                record.warn(f"{_NAMED}: {server.name} / {tool.name}: its inputSchema is no object schema")
    return {"servers": [server.wire() for server in read.servers]}


def _known_members(snapshot: JsonObject, record: Record) -> JsonObject:
    """The snapshot without what is no member of its servers and tools: v5 names those only in part, so others are left
    out with a warning."""

    def of(value: Json, kind: type[Sent], where: str) -> Json:
        if not isinstance(value, dict):
            return value
        known = {field.alias for field in kind.model_fields.values()}
        for name in value.keys() - known:
            record.warn(f"{_NAMED}: snapshot: {name} is no member of a {where} that v5's text suggests; left out")
        return {name: member for name, member in value.items() if name in known}

    servers = snapshot.get("servers")
    if not isinstance(servers, list):
        return snapshot
    kept = [of(server, SnapshotServer, "server") for server in servers]
    for server in kept:
        if isinstance(server, dict) and isinstance(server.get("tools"), list):
            server["tools"] = [of(tool, SnapshotTool, "tool") for tool in server["tools"]]
    return {**snapshot, "servers": kept}


def read_diagnostics(diagnostics: list[JsonObject], record: Record) -> None:
    for diagnostic in diagnostics:
        try:
            Diagnostic.read(diagnostic, f"{_NAMED} request: diagnostics")
        except ContractViolation as fault:
            record.warn(str(fault))


def facts(snapshot: JsonObject, definition: Definition) -> JsonObject:
    """McpFacts: what was listed, with the manifest's settings."""
    return {"servers": [_server_fact(server, definition) for server in snapshot["servers"]]}


def _server_fact(server: JsonObject, definition: Definition) -> JsonObject:
    declared = definition.servers(server.get("agentId")).get(server["name"], {})
    return {**server, "tools": [_fact(tool, tool_setting(declared, tool["name"])) for tool in server["tools"]]}


def is_repeatable(mcp: Json, server: JsonObject, tool: str) -> bool:
    """Whether the server said of a tool that a call may run twice. ``mcp``: the snapshot that the session recorded;
    ``server``: as an agent declares it."""
    named = (server["name"], server.get("agentId"))
    for listed in (mcp or {}).get("servers", []):
        for one in listed["tools"] if (listed["name"], listed.get("agentId")) == named else ():
            if one["name"] == tool:
                hints = one.get("annotations") or {}
                return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True
    return False


def _fact(tool: JsonObject, setting: JsonObject) -> JsonObject:
    deferred = {"deferred": setting["deferred"]} if setting.get("deferred") is not None else {}
    return {**tool, "enabled": setting.get("enabled") is not False, **deferred}
