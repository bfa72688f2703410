"""The tools of a turn: what the model is offered, and what runs when it calls one. Providers bring them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final, Protocol

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.contract.canonical import canonical, canonical_array
from pod_host.contract.effects import Target
from pod_host.contract.model_call import ToolDefinition
from pod_host.errors import InputIssue
from pod_host.turn.candidates import Call
from pod_host.turn.journal import Execution, Fate
from pod_host.turn.log import tell

_NAME_TAKEN: Final = "another tool has its name"


@dataclass(frozen=True, slots=True)
class Tool:
    """``target``: what runs it, by identity. ``parallel``: whether its calls may run beside others of their step; if
    not, a call waits for those before it, and those after it wait. ``check``: what in the arguments does not fit.
    ``run``: called once core said ``execute``; a problem is a failed value, only an unknown fate is `Unknown`.

    ``also_named``: other names that a model calls it by, and the arguments that each stands for. ``skill_of``: the skill
    that a call with these arguments uses, for its intent. ``ready``: awaited before ``run``, in the calls' order.

    ``runs_first``: ``run`` comes before the intent, since it has effects of its own: those are what must not run twice.

    ``deferred``: whether it is offered only once it was found; None: only where there are too many others."""

    name: str
    description: str
    input_schema: JsonObject
    target: Target
    parallel: bool
    check: Callable[[JsonObject], Sequence[InputIssue]]
    run: Callable[[JsonObject, Execution], Awaitable[Fate]]
    also_named: Mapping[str, JsonObject] = field(default_factory=dict)
    skill_of: Callable[[JsonObject], str | None] = lambda arguments: None
    ready: Callable[[], Awaitable[None]] | None = None
    runs_first: bool = False
    deferred: bool | None = False


class ToolProvider(Protocol):
    def tools(self) -> Iterable[Tool]:
        """In the order in which the model is offered them: the same for the same turn, always."""
        ...


class Toolset:
    """All tools of a turn. Of two with one name the first provider's stays; the other is left out, and the log says so.

    Those that are deferred can be called, but are offered only once they were found, after all others."""

    def __init__(self, providers: Iterable[ToolProvider]) -> None:
        self._tools: dict[str, Tool] = {}
        self._also: dict[str, Tool] = {}
        self._deferred: frozenset[str] = frozenset()
        self._found: dict[str, None] = {}
        self._found_bytes = 0
        self._definitions: bytes | None = None
        for provider in providers:
            for tool in provider.tools():
                if tool.name in self._tools:
                    _tell_left_out(tool.name, _NAME_TAKEN)
                else:
                    self._tools[tool.name] = tool
                    self._also.update(dict.fromkeys(tool.also_named, tool))

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def get(self, name: str) -> Tool | None:
        """The tool of this name, else the one that is also called so."""
        return self._tools.get(name) or self._also.get(name)

    def meant(self, call: Call) -> Call:
        """``call`` with the arguments that its name itself stands for, if it does."""
        tool = None if call.name in self._tools else self._also.get(call.name)
        if tool is None or not isinstance(call.args, dict):
            return call
        return replace(call, args={**call.args, **tool.also_named[call.name]})

    @property
    def names(self) -> list[str]:
        """Of the tools that are offered, in their order."""
        return [*(name for name in self._tools if name not in self._deferred), *self._found]

    @property
    def found(self) -> list[str]:
        """Deferred tools that were found, in the order of their finding."""
        return list(self._found)

    def leave_out(self, name: str, why: str) -> None:
        """It cannot be called: the log says so."""
        del self._tools[name]
        self._also = {other: tool for other, tool in self._also.items() if tool.name != name}
        _tell_left_out(name, why)

    def defer(self, names: Iterable[str], finder: Tool, most_bytes: int) -> None:
        """Offer these no longer; ``finder`` finds them. It keeps its name, whoever else has it. ``most_bytes``: of the
        definitions that are found, all together."""
        if finder.name in self._tools:
            self.leave_out(finder.name, _NAME_TAKEN)
        self._tools[finder.name] = finder
        self._deferred = frozenset(names)
        self._found_bytes = most_bytes
        self._definitions = None

    def find(self, names: Iterable[str]) -> None:
        """Offer these from now on. Of more than FOUND_TOOLS, or than there is room for, the first that were found are
        offered no longer."""
        new = [name for name in names if name in self._deferred and name not in self._found]
        if new:
            kept = list(dict.fromkeys([*self._found, *new]))[-limits.FOUND_TOOLS :]
            room = accumulate(definition_bytes(self._tools[name]) for name in reversed(kept))
            fitting = sum(size <= self._found_bytes for size in room)
            self._found = dict.fromkeys(kept[len(kept) - fitting :])
            self._definitions = None

    def definitions(self) -> bytes:
        """``tools`` of a ModelCall, as canonical JSON."""
        if self._definitions is None:
            self._definitions = canonical_array(_definition(self._tools[name]) for name in self.names)
        return self._definitions


def definition_bytes(tool: Tool) -> int:
    """What a tool's definition takes of a model call: the same, whatever form its numbers crossed in."""
    return len(_definition(tool))


def _definition(tool: Tool) -> bytes:
    named = {"description": tool.description} if tool.description else {}
    return canonical(ToolDefinition(name=tool.name, input_schema=tool.input_schema, **named).wire())


def _tell_left_out(name: str, why: str) -> None:
    tell(logging.WARNING, "tool.left_out", tool=name, why=why)
