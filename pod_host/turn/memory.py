"""The Agent's memory (Harness API v5, sections 3 and 4): core keeps it and runs its calls, in the intent's own transaction.

Here: the tool that the model is offered, what is checked before a call is sent, the words of the prompt, and the index,
which is pinned as a user-role entry at the head of the session. There it stays as it was, so that the prompt's prefix is
stable, until a compaction pins a fresh one behind its summary (`pinned_entries`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import RuntimeTarget
from pod_host.contract.transcript import Entry, InputEntry
from pod_host.contract.turn_start import TurnMemory, TurnStart
from pod_host.errors import InputIssue
from pod_host.turn.checking import OwnSchema
from pod_host.turn.runtime_calls import run_by_core
from pod_host.turn.toolset import Tool

NAME: Final = "memory"
ROOT: Final = "/memories"
_MARK: Final = {"podHost": "memory-index"}  # the metadata of a pinned index

_PATH: Final[JsonObject] = {"type": "string", "description": f"A path under {ROOT}."}
_TEXT: Final[JsonObject] = {"type": "string"}
_PARAMETERS: Final[Mapping[str, JsonObject]] = {
    "path": _PATH,
    "view_range": {
        "type": "array",
        "items": {"type": "integer", "minimum": -1},
        "minItems": 2,
        "maxItems": 2,
        "description": "view: the first and the last line, from 1; -1 is the end.",
    },
    "file_text": {**_TEXT, "description": "create: the whole text."},
    "old_str": {**_TEXT, "minLength": 1, "description": "str_replace: a text that is there exactly once."},
    "new_str": {**_TEXT, "description": "str_replace: what takes its place."},
    "insert_line": {"type": "integer", "minimum": 0, "description": "insert: after this line; 0 is the top."},
    "insert_text": {**_TEXT, "description": "insert: the text."},
    "old_path": {"type": "string", "description": "rename: the path now."},
    "new_path": {"type": "string", "description": "rename: the path then."},
}
_COMMANDS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {  # required and optional parameters
    "view": (("path",), ("view_range",)),
    "create": (("path", "file_text"), ()),
    "str_replace": (("path", "old_str", "new_str"), ()),
    "insert": (("path", "insert_line", "insert_text"), ()),
    "delete": (("path",), ()),
    "rename": (("old_path", "new_path"), ()),
}
_PATHS: Final = ("path", "old_path", "new_path")


@dataclass(frozen=True, slots=True)
class MemoryTools:
    """``commands``: those that are offered, all of them or ``view`` alone."""

    commands: tuple[str, ...]

    @classmethod
    def of(cls, memory: TurnMemory) -> MemoryTools:
        return cls(("view",) if memory.access == "read_only" else tuple(_COMMANDS))

    def tools(self) -> Iterable[Tool]:
        named = [name for command in self.commands for part in _COMMANDS[command] for name in part]
        yield Tool(
            name=NAME,
            description=(
                f"Reads{' and changes' if len(self.commands) > 1 else ''} your memory: small texts under {ROOT} that"
                f" outlive this conversation. Commands: {'; '.join(_usage(command) for command in self.commands)}."
            ),
            input_schema=_schema(self.commands, ("command",), [name for name in _PARAMETERS if name in named]),
            target=RuntimeTarget(kind="runtime", operation="memory"),
            parallel=True,
            check=self._check,
            run=run_by_core,
            also_named={
                f"{NAME}{separator}{command}": {"command": command} for command in _COMMANDS for separator in "./"
            },
        )

    def _check(self, arguments: JsonObject) -> Sequence[InputIssue]:
        command = arguments.get("command")
        if not isinstance(command, str) or command not in _COMMANDS:
            text = f"one of {', '.join(self.commands)} is needed"
            return [InputIssue(path=["command"], code="enum", message=text)]
        if command not in self.commands:
            text = f"this memory is read-only here: only {', '.join(self.commands)}"
            return [InputIssue(path=["command"], code="read_only", message=text)]
        issues = _SCHEMAS[command].issues(arguments)
        for name in () if issues else _PATHS:
            if name in arguments and (fault := _path_fault(arguments[name], root=command == "view")):
                issues.append(InputIssue(path=[name], code="path", message=fault))
        return issues


def memory_section(memory: TurnMemory) -> str:
    """What the prompt says of it; the agent's own instructions come last."""
    lines = [
        "# Memory",
        f"- {ROOT} holds what you kept in earlier conversations. Its index is at the head of this conversation, as it was"
        " then; view a memory before you rely on it.",
    ]
    if memory.access == "read_write":
        lines.append(
            "- Keep what will be of use later, in small files, each with a head of ---, description: …, --- for the"
            " index. Correct what proves wrong. Keep no secrets."
        )
    return "\n".join(lines) + (f"\n\n{memory.instructions.strip()}" if memory.instructions else "")


def pinned_entries(start: TurnStart) -> list[Entry]:
    """The index as the entries that stand at the head of the session, or behind a compaction's summary. None without
    memory."""
    memory = start.memory
    if memory is None:
        return []
    index = memory.index.strip() or "(empty)"
    cut = "\n(older memories are left out; view the directory for all)" if memory.truncated else ""
    event: JsonObject = {
        "kind": "user-message",
        "text": f"<memory-index>\n{index}{cut}\n</memory-index>",
        "metadata": dict(_MARK),
    }
    return [InputEntry(kind="input", turn_id=start.checkpoint.turn_id, event=event).wire()]


def is_pinned(entry: Entry) -> bool:
    """Whether `pinned_entries` made it: no message of a person."""
    event = entry.get("event")
    return entry.get("kind") == "input" and isinstance(event, dict) and event.get("metadata") == _MARK


def missing_pins(start: TurnStart, entries: Iterable[Entry]) -> list[Entry]:
    """What is to be pinned before the turn's input: nothing once the session has it."""
    return [] if any(is_pinned(entry) for entry in entries) else pinned_entries(start)


def _schema(commands: Sequence[str], required: Sequence[str], names: Sequence[str]) -> JsonObject:
    return {
        "type": "object",
        "properties": {"command": {"enum": list(commands)}, **{name: _PARAMETERS[name] for name in names}},
        "required": list(required),
        "additionalProperties": False,
    }


_SCHEMAS: Final = {
    command: OwnSchema(_schema([command], ["command", *required], [*required, *optional]))
    for command, (required, optional) in _COMMANDS.items()
}


def _usage(command: str) -> str:
    required, optional = _COMMANDS[command]
    return f"{command} ({', '.join([*required, *(f'{name}?' for name in optional)])})"


def _path_fault(path: Json, *, root: bool) -> str | None:
    parts = path.removesuffix("/").split("/")
    if not path.isprintable() or parts[:2] != ["", ROOT[1:]] or any(part in ("", ".", "..") for part in parts[2:]):
        return f"a path under {ROOT} is needed, without . and .."
    if len(parts) == 2 and not root:
        return f"{ROOT} itself is no memory"
    return None
