"""``tool_search``: the tools that are not offered from the start, found by words (Harness API v5, section 4: ``harness``).

Deferred are the MCP tools of which the manifest says so and, when too many would be offered or their definitions would fill a
model call, those MCP and HTTP tools that are beyond the first. What a search found is offered from the next step on, for the
rest of the session: a search's result names it in the transcript, and the state that every segment leaves goes on naming it
when a compaction has taken the result away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import HarnessTarget, McpTarget
from pod_host.contract.transcript import Entry
from pod_host.turn.checking import OwnSchema
from pod_host.turn.journal import Execution, Fate, Known
from pod_host.turn.state import found_before
from pod_host.turn.toolset import Tool, Toolset, definition_bytes

NAME: Final = "tool_search"
_SHOWN_NAMES: Final = 50  # of all there are, when nothing is found
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")
_IN_NAME, _NAME_BEGINS, _IN_DESCRIPTION, _PARAMETER = 8, 5, 2, 1
_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "description": "Words for what is to be done, or a tool's name."},
        "limit": {"type": "integer", "minimum": 1, "maximum": limits.SEARCH_RESULTS_MOST},
    },
    "required": ["query"],
    "additionalProperties": False,
}
_CHECK: Final = OwnSchema(_SCHEMA)


def with_search(tools: Toolset, state: Json, entries: Iterable[Entry], most_bytes: int) -> Toolset:
    """``tools``, with those deferred that are to be, and those offered again that were found before the segment.
    ``state``, ``entries``: as the segment begins. ``most_bytes``: what the definitions may take that are offered from the
    start, and again those that are found; a tool that somebody declares and that alone takes more is left out."""
    sizes = {tool.name: definition_bytes(tool) for tool in tools}
    for tool in list(tools):
        if sizes[tool.name] > most_bytes and (tool.deferred is not False or tool.runs_first):
            why = f"its definition takes {sizes[tool.name]} bytes of a model call, which has room for {most_bytes}"
            tools.leave_out(tool.name, why)
    deferred = _deferred(list(tools), sizes, most_bytes)
    if deferred:
        tools.defer((tool.name for tool in deferred), _Search(deferred).tool(), most_bytes)
        found = found_before(state)
        if found is None:
            results = (result for entry in entries for result in entry.get("results") or [])
            found = found_in(results)
        tools.find(found)
    return tools


def found_in(results: Iterable[JsonObject]) -> list[str]:
    """The tools that the searches among a transcript's tool results found, in order."""
    return [
        tool["name"]
        for result in results
        if result.get("toolName") == NAME and isinstance(result.get("output"), dict)
        for tool in result["output"].get("tools") or []
    ]


def _deferred(tools: Sequence[Tool], sizes: Mapping[str, int], most_bytes: int) -> list[Tool]:
    may = [tool.name for tool in tools if tool.deferred is None]
    room = limits.OFFERED_TOOLS - sum(tool.deferred is False for tool in tools)
    room_bytes = most_bytes - sum(sizes[tool.name] for tool in tools if tool.deferred is False)
    if len(may) > room or sum(sizes[name] for name in may) > room_bytes or any(tool.deferred for tool in tools):
        room -= 1  # for tool_search itself
    offered: set[str] = set()
    for name in may:
        if len(offered) < room and sizes[name] <= room_bytes:
            offered.add(name)
            room_bytes -= sizes[name]
    return [tool for tool in tools if tool.deferred is not False and tool.name not in offered]


@dataclass(frozen=True, slots=True)
class _Search:
    deferred: Sequence[Tool]

    def tool(self) -> Tool:
        servers = dict.fromkeys(tool.target.server for tool in self.deferred if isinstance(tool.target, McpTarget))
        places = f", of {', '.join(servers)}" if servers else ""
        return Tool(
            name=NAME,
            description=(
                f"Finds tools that are not listed here: {len(self.deferred)}{places}. What it finds is"
                " listed from the next step on."
            ),
            input_schema=_SCHEMA,
            target=HarnessTarget(kind="harness"),
            parallel=True,
            check=_CHECK.issues,
            run=self._run,
        )

    async def _run(self, arguments: JsonObject, execution: Execution) -> Fate:
        words = set(_words(arguments["query"]))
        scored = [(_score(tool, words), -place, tool) for place, tool in enumerate(self.deferred)]
        matches = [tool for score, _, tool in sorted(scored, key=lambda one: one[:2], reverse=True) if score > 0]
        shown = matches[: arguments.get("limit", limits.SEARCH_RESULTS)]
        output: JsonObject = {"tools": [_found(tool) for tool in shown], "matches": len(matches)}
        if not matches:
            names = [tool.name for tool in self.deferred]
            more = f", and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
            output["note"] = f"No tool matches. There are: {', '.join(names[:_SHOWN_NAMES])}{more}"
        return Known({"kind": "completed", "output": output})


def _found(tool: Tool) -> JsonObject:
    return {"name": tool.name, "description": tool.description[: limits.SEARCH_DESCRIPTION_CHARACTERS]}


def _score(tool: Tool, words: set[str]) -> int:
    """How well a tool fits: words of its name count most, then those of its description, then its parameters'."""
    name, described = set(_words(tool.name)), set(_words(tool.description))
    properties = tool.input_schema.get("properties")
    parameters = set(_words(" ".join(properties))) if isinstance(properties, dict) else set()
    score = 0
    for word in words:
        if word in name:
            score += _IN_NAME
        elif len(word) > 2 and any(one.startswith(word) or (len(one) > 2 and word.startswith(one)) for one in name):
            score += _NAME_BEGINS
        score += _IN_DESCRIPTION * (word in described) + _PARAMETER * (word in parameters)
    return score


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
