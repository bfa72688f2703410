"""Where a tool call goes, and whether it may: by the target's identity, never by the name the model used (section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import (
    SANDBOX_TOOLS,
    HttpTarget,
    McpTarget,
    RuntimeTarget,
    SandboxTarget,
    ToolIntent,
    tool_failure,
)
from pod_host.dev.config import RuntimeConfig, Verdict
from pod_host.dev.definitions import Definition


@dataclass(frozen=True)
class Refused:
    """Answered ``completed`` with this failure; nothing runs."""

    value: JsonObject


@dataclass(frozen=True)
class ByCore:
    """Core runs it itself, in the intent's own transaction."""

    operation: str


@dataclass(frozen=True)
class ByHarness:
    """The harness runs it, through a gate or itself. ``ask``: first a person is asked."""

    ask: bool = False


def decide(
    intent: ToolIntent, definition: Definition, mcp: Json, config: RuntimeConfig
) -> Refused | ByCore | ByHarness:
    """``mcp``: the snapshot that the session recorded, or None.

    An intent that names no ``agent`` may be any agent's: v5 leaves that member to the reference engine. Then a call goes as
    the strictest of the agents that declare its target has it.
    """
    target = intent.target
    agent_ids = [intent.agent.id] if intent.agent else list(definition.agents())
    if target is None:
        return _refused("tool.unavailable", f"The call of {intent.tool_name} names no target")
    if isinstance(target, SandboxTarget):
        if intent.tool_name in SANDBOX_TOOLS:
            return ByHarness()
        return _refused("tool.unavailable", f"The sandbox has no tool {intent.tool_name}")
    if isinstance(target, RuntimeTarget):
        return _of_runtime(target, definition)
    if isinstance(target, HttpTarget):
        tools = [tools[target.tool] for tools in map(definition.http_tools, agent_ids) if target.tool in tools]
        if not tools:
            return _refused("tool.unavailable", f"The agent declares no HTTP tool {target.tool}")
        return _by_policy(config, None, target.tool, tools)
    if isinstance(target, McpTarget):
        return _of_mcp(target, agent_ids, definition, mcp, config)
    return ByHarness()  # harness: always


def _of_mcp(
    target: McpTarget, agent_ids: list[str], definition: Definition, mcp: Json, config: RuntimeConfig
) -> Refused | ByHarness:
    declared = [servers[target.server] for servers in map(definition.servers, agent_ids) if target.server in servers]
    if not declared:
        return _refused("tool.unavailable", f"The agent declares no MCP server {target.server}")
    found = [server for server in declared if _discovered(mcp, server, target.tool, definition)]
    if not found:
        return _refused("tool.unknown", f"The session discovered no tool {target.tool} on {target.server}")
    settings = [tool_setting(server, target.tool) for server in found]
    enabled = [setting for setting in settings if setting.get("enabled") is not False]
    if not enabled:
        return _refused("tool.disabled", f"{target.server} / {target.tool} is disabled")
    return _by_policy(config, target.server, target.tool, enabled)


def _discovered(mcp: Json, server: JsonObject, tool: str, definition: Definition) -> bool:
    agent_id = server.get("agentId", definition.agent_id)
    return any(
        one["name"] == tool
        for listed in (mcp or {}).get("servers", [])
        if listed["name"] == server["name"] and listed.get("agentId", definition.agent_id) == agent_id
        for one in listed["tools"]
    )


def _of_runtime(target: RuntimeTarget, definition: Definition) -> Refused | ByCore:
    if target.operation == "schedule_wake" and not definition.self_wake:
        return _refused("tool.unavailable", "The agent does not set runtime.selfWake")
    if target.operation == "memory" and definition.memory is None:
        return _refused("tool.unavailable", "The agent has no memory")
    return ByCore(target.operation)


def _by_policy(config: RuntimeConfig, server: str | None, tool: str, settings: list[JsonObject]) -> Refused | ByHarness:
    verdict: Verdict = config.verdict(server, tool)
    name = f"{server} / {tool}" if server else tool
    if verdict == "deny":
        return _refused("tool.denied", f"The tool policy denies {name}")
    return ByHarness(ask=verdict == "ask" or any(setting.get("approval") == "always" for setting in settings))


def tool_setting(server: Mapping[str, Json], tool: str) -> JsonObject:
    """What the manifest sets for one tool of a server: the server's own, then ``*``, then the tool's."""
    tools: Mapping[str, JsonObject] = server.get("tools") or {}
    whole = {name: server[name] for name in ("approval", "deferred") if name in server}
    return {**whole, **(tools.get("*") or {}), **(tools.get(tool) or {})}


def identity(intent: JsonObject) -> JsonObject:
    """``server`` and ``tool`` of a call, as the log names them (section 4)."""
    target = intent.get("target") or {}
    named = {name: target[name] for name in ("server", "tool") if name in target}
    return {"kind": target.get("kind"), **named}


def _refused(code: str, message: str) -> Refused:
    return Refused(tool_failure(code, message))
