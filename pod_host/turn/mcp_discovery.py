"""What the session's MCP servers offer, found once and recorded for every later turn (Harness API v5, section 3, ``mcp``).

The servers that the manifest declares, and those of the agents that it uses as tools, are connected beside one another
through the Tool Gate, and what they list goes to core as ``session.mcp``; the facts of its answer are what the turn runs
with. A server that fails leaves a diagnostic, and nothing here fails a turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pod_host import limits
from pod_host.client.room import Claim
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.model_call import (
    MCP_CONNECT_PATH,
    MCP_LIST_PATH,
    McpConnectBody,
    McpListBody,
    ToolGateAnswer,
    server_name,
)
from pod_host.contract.open_points import mcp_snapshots
from pod_host.contract.turn_start import McpFacts, TurnStart
from pod_host.contract.work import SessionMcpParams, SessionMcpResult
from pod_host.errors import ContractViolation, GateRefusal, GateUnavailable, PodHostError
from pod_host.turn.agents import UsedAgent, every
from pod_host.turn.endings import TurnThrown
from pod_host.turn.log import tell
from pod_host.turn.manifests import declared_servers
from pod_host.turn.pieces import is_deep
from pod_host.turn.requests import LimitExceeded, Requests
from pod_host.turn.text import readable
from pod_host.turn.tool_arguments import is_object_schema
from pod_host.turn.tool_gate import ToolGate

_ServerId: TypeAlias = tuple[str | None, str]
"""The id of the agent used as a tool that declares a server (None: the session's own agent does), and the server's name."""


class _ServerFailed(PodHostError):
    """The gate's answer says that the server cannot be had. ``credential_ids``: whose credentials it refused."""

    code = "mcp.server_failed"

    def __init__(self, message: str, credential_ids: Json = None) -> None:
        super().__init__(message)
        self.credential_ids = credential_ids


@dataclass(frozen=True, slots=True)
class _Listed:
    """``server``: as a snapshot holds it; None when it failed."""

    server: JsonObject | None
    diagnostic: JsonObject


@dataclass(frozen=True, slots=True)
class Discovery:
    requests: Requests
    gate: ToolGate
    start: TurnStart
    agents: Sequence[UsedAgent] = ()

    async def facts(self) -> McpFacts:
        """The facts that the turn runs with. Raises Stopped.

        A segment that runs again and has no facts had none the first time: what it asked its model then it must ask
        again, so nothing is discovered until its end.
        """
        start = self.start
        if start.mcp is not None:
            return start.mcp
        declared = dict(self._declared())
        if not declared or start.outcomes:
            return McpFacts()
        listing = [self._list(place, server) for place, server in enumerate(declared)]
        listed = await asyncio.gather(*listing, return_exceptions=True)
        for fault in listed:
            if isinstance(fault, BaseException):
                raise fault
        return await self._record([one for one in listed if isinstance(one, _Listed)], declared)

    def _declared(self) -> Iterator[tuple[_ServerId, JsonObject]]:
        yield from (((None, name), server) for name, server in declared_servers(self.start.manifest))
        for agent in every(self.agents):
            yield from (((agent.id, name), server) for name, server in declared_servers(agent.manifest))

    # --- Core ------------------------------------------------------------------------------------------------------------

    async def _record(self, listed: list[_Listed], declared: Mapping[_ServerId, JsonObject]) -> McpFacts:
        """What is too large to be recorded whole is recorded in part: some tools are better than none."""
        servers = [one.server for one in listed if one.server is not None]
        diagnostics = [one.diagnostic for one in listed]
        refused = await self._recorded(servers, diagnostics, declared)
        if isinstance(refused, LimitExceeded):
            servers, left_out = _lighter(servers, self.start.limits.record_entry_bytes)
            tell(logging.WARNING, "mcp.too_large", tools=left_out)
            refused = await self._recorded(servers, diagnostics, declared)
        return McpFacts() if isinstance(refused, TurnThrown) else refused

    async def _recorded(
        self, servers: list[JsonObject], diagnostics: list[JsonObject], declared: Mapping[_ServerId, JsonObject]
    ) -> McpFacts | TurnThrown:
        """The facts, or why core does not take the snapshot. The first one of a session stays, so one of no servers is not
        sent: the next turn may find some."""
        refused: TurnThrown | None = None
        for snapshot in mcp_snapshots(servers, self.start.checkpoint.manifest_hash) if servers else (None,):
            named = {} if snapshot is None else {"snapshot": snapshot}
            params = SessionMcpParams(run_id=self.requests.run_id, diagnostics=diagnostics, **named)
            try:
                answer: SessionMcpResult = await self.requests.ask("session.mcp", params)
                return _facts(answer, servers, declared)
            except TurnThrown as refusal:
                tell(logging.WARNING, "mcp.not_recorded", code=refusal.code, why=refusal.message)
                refused = refusal
                if refusal.code != "invalid":
                    break
        assert refused is not None  # there is a form, and it was refused
        return refused

    # --- Servers ---------------------------------------------------------------------------------------------------------

    async def _list(self, place: int, of: _ServerId) -> _Listed:
        try:
            async with asyncio.timeout(limits.MCP_DISCOVERY_SECONDS), self.gate.gates.claim() as claim:
                server, left_out = await self._connect(f"{self.requests.run_id}:mcp-{place}", of, claim)
        except TimeoutError:
            return _failed(of, f"It did not answer within {limits.MCP_DISCOVERY_SECONDS:.0f} s")
        except _ServerFailed as fault:
            return _failed(of, str(fault), fault.credential_ids)
        except (GateRefusal, GateUnavailable, ContractViolation) as fault:
            return _failed(of, str(fault))
        told = f"{len(server['tools'])} tools"
        if left_out:
            told += f"; left out: {', '.join(left_out)}"
        return _Listed(server, _diagnostic(of, "connected", told))

    async def _connect(self, key: str, of: _ServerId, claim: Claim) -> tuple[JsonObject, list[str]]:
        """The server as a snapshot holds it, and its tools that cannot be used."""
        agent_id, name = of
        named = server_name(name, agent_id)
        connected = await self._ask(MCP_CONNECT_PATH, McpConnectBody(server=named).wire(), f"{key}:connect", claim)
        server: JsonObject = {"name": name, "tools": [], **_agent(agent_id)}
        instructions = connected.get("instructions") if isinstance(connected, dict) else None
        if isinstance(instructions, str) and instructions:
            server["instructions"] = readable(instructions)
        tools: dict[str, JsonObject] = {}
        left_out: list[str] = []
        room = limits.MCP_SERVER_BYTES
        cursor: Json = None
        for page in range(limits.MCP_LIST_PAGES):
            body = McpListBody(server=named, **({"cursor": cursor} if cursor else {})).wire()
            answer = await self._ask(MCP_LIST_PATH, body, f"{key}:list-{page}", claim)
            listed = answer.get("tools") if isinstance(answer, dict) else None
            for entry in listed if isinstance(listed, list) else ():
                tool = _tool(entry)
                room -= len(canonical(tool)) if tool else 0
                if tool is None or tool["name"] in tools or room < 0:
                    left_out.append(_shown_name(entry))
                else:
                    tools[tool["name"]] = tool
            cursor = answer.get("nextCursor") if isinstance(answer, dict) else None
            claim.give_back()
            if room < 0 or not isinstance(cursor, str) or not cursor:
                break
        return {**server, "tools": list(tools.values())}, left_out

    async def _ask(self, path: str, body: JsonObject, key: str, claim: Claim) -> Json:
        answer = ToolGateAnswer.read(await self.gate.ask(path, body, key=key, claim=claim), "answer of the Tool Gate")
        if answer.ok:
            return answer.result
        error = answer.error or {}
        raise _ServerFailed(str(error.get("message") or "The server cannot be reached"), error.get("credentialIds"))


def _tool(entry: Json) -> JsonObject | None:
    """A listed tool as a snapshot holds it; None for one that cannot be called: no usable name, no object schema."""
    if not isinstance(entry, dict) or not is_object_schema(entry.get("inputSchema")):
        return None
    name = entry.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= limits.MCP_TOOL_NAME_CHARACTERS or name != readable(name):
        return None
    tool: JsonObject = {"name": name, "inputSchema": entry["inputSchema"]}
    if isinstance(entry.get("description"), str):
        tool["description"] = readable(entry["description"])
    for member in ("outputSchema", "annotations"):
        if isinstance(entry.get(member), dict):
            tool[member] = entry[member]
    return None if is_deep(tool, limits.SCHEMA_DEPTH + 1) else tool


def _facts(answer: SessionMcpResult, servers: list[JsonObject], declared: Mapping[_ServerId, JsonObject]) -> McpFacts:
    """Core's facts; our own, with the manifest's settings, when it answers without."""
    if answer.mcp is not None:
        try:
            return McpFacts.read(answer.mcp)
        except ContractViolation as fault:
            tell(logging.WARNING, "mcp.facts_unreadable", why=str(fault))
    own: list[JsonObject] = []
    for server in servers:
        settings = declared[server.get("agentId"), server["name"]]
        own.append({**server, "tools": [{**tool, **_settings(settings, tool["name"])} for tool in server["tools"]]})
    return McpFacts.read({"servers": own})


def _lighter(servers: list[JsonObject], most_bytes: int) -> tuple[list[JsonObject], list[str]]:
    """``servers`` in a snapshot of about ``most_bytes``: without what no call needs and, where that is not enough, without
    their largest tools, whose names are given too."""
    light = [
        {**server, "tools": [{key: tool[key] for key in tool if key != "outputSchema"} for tool in server["tools"]]}
        for server in servers
    ]
    sizes = {
        (place, tool["name"]): len(canonical(tool)) + 1
        for place, server in enumerate(light)
        for tool in server["tools"]
    }
    over = len(canonical(light)) + limits.ENTRY_ENVELOPE_BYTES - most_bytes
    left_out: dict[tuple[int, str], None] = {}
    for named in sorted(sizes, key=lambda named: -sizes[named]):
        if over <= 0:
            break
        over -= sizes[named]
        left_out[named] = None
    for place, server in enumerate(light):
        server["tools"] = [tool for tool in server["tools"] if (place, tool["name"]) not in left_out]
    return light, [name for _, name in left_out]


def _agent(agent_id: str | None) -> JsonObject:
    return {} if agent_id is None else {"agentId": agent_id}


def _settings(server: JsonObject, tool: str) -> JsonObject:
    """``enabled`` and ``deferred`` of a tool, where the manifest sets them: the server's own, then ``*``, then its own."""
    tools = server.get("tools")
    named = tools if isinstance(tools, dict) else {}
    chosen: JsonObject = {}
    for setting in (server, named.get("*"), named.get(tool)):
        if isinstance(setting, dict):
            chosen |= {name: setting[name] for name in ("enabled", "deferred") if isinstance(setting.get(name), bool)}
    return chosen


def _failed(of: _ServerId, message: str, credential_ids: Json = None) -> _Listed:
    refused = message.startswith("MCP authorization refused")
    diagnostic = _diagnostic(of, "refused" if refused else "failed", message)
    if isinstance(credential_ids, list):
        diagnostic["credentialIds"] = credential_ids
    tell(logging.WARNING, "mcp.server_failed", server=of[1], why=diagnostic["message"])
    return _Listed(None, diagnostic)


def _diagnostic(of: _ServerId, outcome: str, message: str) -> JsonObject:
    agent_id, name = of
    text = readable(message)[: limits.MCP_DIAGNOSTIC_CHARACTERS]
    return {**_agent(agent_id), "serverName": name, "outcome": outcome, "message": text}


def _shown_name(entry: Json) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return readable(name)[:64] if isinstance(name, str) and name else "(unnamed)"
