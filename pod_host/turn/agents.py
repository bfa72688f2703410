"""The agents that the manifest's tools name (Harness API v5, section 3: a manifest tool with ``agent``): read once a segment,
as a tree, since an agent used as a tool may use others itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.contract.model_call import ModelChoice
from pod_host.contract.open_points import UsedDefinition, used_definition
from pod_host.contract.turn_start import TurnStart
from pod_host.errors import ContractViolation
from pod_host.turn.log import tell
from pod_host.turn.manifests import TOOL_NAME, declared_tools
from pod_host.turn.text import readable
from pod_host.turn.tool_arguments import is_object_schema

MESSAGE_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "What it is to do, and all that it needs to know for that."}
    },
    "required": ["message"],
    "additionalProperties": False,
}
"""Of an agent whose tool declares no ``inputSchema``."""


@dataclass(frozen=True, slots=True)
class UsedAgent:
    """An agent used as a tool. ``id``: what MCP facts and the gates name it by. ``manifest``: its own, flat. ``model``: of
    its calls; None: the turn's. ``agents``: those that it uses itself."""

    name: str
    description: str
    input_schema: JsonObject
    id: str
    manifest: JsonObject
    model: ModelChoice | None
    agents: tuple[UsedAgent, ...]


def used_agents(start: TurnStart) -> tuple[UsedAgent, ...]:
    """Those of the session's own agent, each with its own. One that cannot be used is left out, and the log says so."""
    own_id = start.manifest.get("id")
    known = {own_id: start.manifest} if isinstance(own_id, str) else {}
    return tuple(_read(start.manifest, (start.manifest, start.routing.root_manifest), known, 1))


def every(agents: Sequence[UsedAgent]) -> Iterator[UsedAgent]:
    """All of a tree, each agent once, however many tools it stands behind."""
    seen: set[str] = set()
    waiting = list(agents)
    while waiting:
        agent = waiting.pop(0)
        waiting.extend(agent.agents)
        if agent.id not in seen:
            seen.add(agent.id)
            yield agent


def _read(
    manifest: JsonObject, roots: tuple[JsonObject, ...], known: dict[str, JsonObject], depth: int
) -> Iterator[UsedAgent]:
    """``roots``: where agents that are named are looked up, after ``manifest`` itself. ``known``: the agents that were read
    before, by id: two that differ cannot share one."""
    for name, declared in declared_tools(manifest):
        if declared.get("agent") is None:
            continue
        schema = declared.get("inputSchema", MESSAGE_SCHEMA)
        used, why = _definition(name, declared, (manifest, *roots))
        if used is None or not TOOL_NAME.fullmatch(name):
            why = why or "its name is not 1 to 64 letters, digits, - and _"
        elif not is_object_schema(schema):
            why = "its inputSchema is no object schema"
        elif depth > limits.AGENT_DEPTH:
            why = f"agents are used {limits.AGENT_DEPTH} deep at most"
        elif known.setdefault(used.id, used.manifest) != used.manifest:
            why = f"another agent has the id {used.id}"
        else:
            description = declared.get("description") or used.manifest.get("description")
            yield UsedAgent(
                name=name,
                description=readable(description) if isinstance(description, str) else "",
                input_schema=schema,
                id=used.id,
                manifest=used.manifest,
                model=used.model,
                agents=tuple(_read(used.manifest, roots, known, depth + 1)),
            )
            continue
        tell(logging.WARNING, "tool.left_out", tool=name, why=why)


def _definition(
    name: str, declared: JsonObject, manifests: tuple[JsonObject, ...]
) -> tuple[UsedDefinition | None, str | None]:
    """It, or why it cannot be read."""
    try:
        return used_definition(name, declared["agent"], manifests), None
    except ContractViolation as fault:
        return None, str(fault)
