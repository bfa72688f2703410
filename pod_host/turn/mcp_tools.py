"""The tools of the session's MCP servers (Harness API v5, sections 3 to 5: ``mcp``, target ``mcp``, tool-calls)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.contract.effects import McpTarget
from pod_host.contract.model_call import TOOL_CALLS_PATH, ToolCallBody, server_name
from pod_host.contract.turn_start import McpFacts, McpServer, McpTool
from pod_host.turn.journal import Execution, Fate
from pod_host.turn.log import tell
from pod_host.turn.mcp_names import mcp_names
from pod_host.turn.mcp_results import mcp_fate
from pod_host.turn.text import readable
from pod_host.turn.tool_arguments import ArgumentCheck, is_object_schema
from pod_host.turn.tool_gate import ToolGate
from pod_host.turn.toolset import Tool


@dataclass(frozen=True, slots=True)
class McpTools:
    """``facts``: those that the turn runs with. ``agent_id``: of the agent whose servers these are: each agent of the
    session has its own. ``used``: it is an agent used as a tool, so that its servers are named with its id."""

    facts: McpFacts
    agent_id: str
    gate: ToolGate
    used: bool = False

    def tools(self) -> Iterable[Tool]:
        """Every tool has its name whether or not it is enabled, so that none is renamed when another is disabled."""
        listed = list(self._listed())
        names = mcp_names((server.name, tool.name) for server, tool in listed)
        offered: set[str] = set()
        for server, tool in listed:
            if not tool.enabled:
                continue
            name = names.get((server.name, tool.name))
            if not (_can_be_given(server.name) and _can_be_given(tool.name)):
                _left_out(server, tool, "it, or its server, has a name that no call can give")
            elif name is None or name in offered:
                _left_out(server, tool, "no name is left for it")
            elif not is_object_schema(tool.input_schema):
                _left_out(server, tool, "its inputSchema is no object schema")
            else:
                offered.add(name)
                yield self._tool(name, server, tool)

    def section(self) -> str:
        """What the servers say of themselves, for the prompt; empty when none says anything."""
        room = limits.MCP_INSTRUCTIONS_TOTAL
        said: list[str] = []
        for server in self._servers():
            text = readable(server.instructions or "").strip()
            if text and any(tool.enabled for tool in server.tools) and room > 0:
                shown = _cut(text, min(limits.MCP_INSTRUCTIONS_CHARACTERS, room))
                room -= len(shown)
                said.append(f"## {server.name}\n{shown}")
        if not said:
            return ""
        return "\n\n".join(["# MCP servers\nWhat each says of its tools, which are named <server>__<tool>:", *said])

    def _servers(self) -> Iterator[McpServer]:
        ids = (self.agent_id,) if self.used else (None, self.agent_id)
        return (server for server in self.facts.servers if server.agent_id in ids)

    def _listed(self) -> Iterator[tuple[McpServer, McpTool]]:
        return ((server, tool) for server in self._servers() for tool in server.tools)

    def _tool(self, name: str, server: McpServer, tool: McpTool) -> Tool:
        return Tool(
            name=name,
            description=_cut(readable(tool.description or ""), limits.MCP_DESCRIPTION_CHARACTERS),
            input_schema=tool.input_schema,
            target=McpTarget(kind="mcp", server=server.name, tool=tool.name),
            parallel=True,
            check=ArgumentCheck(name, tool.input_schema),
            run=partial(self._run, server.name, tool),
            deferred=True if tool.deferred else None,
        )

    async def _run(self, server: str, tool: McpTool, arguments: JsonObject, execution: Execution) -> Fate:
        body = ToolCallBody(
            server=server_name(server, self.agent_id if self.used else None),
            effect_id=execution.effect_id,
            name=tool.name,
            arguments=arguments,
        )
        answer = await self.gate.call(TOOL_CALLS_PATH, [body.wire()], execution, "mcp.error")
        if not isinstance(answer, dict):
            return answer
        return mcp_fate(answer, repeatable=_is_repeatable(tool), asked=execution.asked)


def _can_be_given(name: str) -> bool:
    return bool(name) and name == readable(name)


def _is_repeatable(tool: McpTool) -> bool:
    hints = tool.annotations or {}
    return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _left_out(server: McpServer, tool: McpTool, why: str) -> None:
    tell(logging.WARNING, "tool.left_out", tool=tool.name, server=server.name, why=why)
