"""Agent memory: small texts under ``/memories`` that every session of the Agent shares (Harness API v5, section 4).

The commands and their parameters are those of the public memory tool that v5 names: ``view``, ``create``, ``str_replace``,
``insert``, ``delete``, ``rename``. Each runs in the intent's own transaction; a failure is text for the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import ToolIntent, tool_failure
from pod_host.dev.database import Database, dump, load
from pod_host.dev.runs import Run
from pod_host.dev.sessions import Sessions

ROOT: Final = "/memories"
INDEX_LINES: Final = 200  # memoryIndexLines
INDEX_BYTES: Final = 16 * 1024  # memoryIndexBytes
FILE_BYTES: Final = 100 * 1024  # one memory: it is read whole into a prompt
_DESCRIPTION: Final = re.compile(r"\A---\n(?:.*\n)*?description:[ \t]*(\S.*)\n(?:.*\n)*?---(?:\n|\Z)")


class MemoryFault(Exception):
    """A call that cannot be done: ``code`` and words for the model."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Memories:
    def __init__(self, db: Database, sessions: Sessions) -> None:
        self._db = db
        self._sessions = sessions
        self._commands: dict[str, Callable[[JsonObject, str], str]] = {
            "view": self._view,
            "create": self._create,
            "str_replace": self._str_replace,
            "insert": self._insert,
            "delete": self._delete,
            "rename": self._rename,
        }

    def call(self, run: Run, intent: ToolIntent) -> JsonObject:
        """One call's outcome value."""
        arguments: JsonObject = intent.input if isinstance(intent.input, dict) else {}
        memory = self._sessions.definition(run.session_id).memory or {}
        try:
            name = arguments.get("command")
            command = self._commands.get(name) if isinstance(name, str) else None
            if command is None:
                raise MemoryFault("memory.invalid", f"command: one of {', '.join(self._commands)} is needed")
            if name != "view" and (memory.get("access") == "read_only" or intent.agent is not None):
                raise MemoryFault("memory.forbidden", f"This memory is read-only here: {name} is not allowed")
            return {"kind": "completed", "output": command(arguments, run.turn_id)}
        except MemoryFault as fault:
            return tool_failure(fault.code, str(fault))

    def index_of(self, turn_id: str) -> JsonObject:
        """The index as the turn began with it: a segment that runs again after a write must get the same prompt."""
        kept = self._db.value("SELECT body FROM turn_memory WHERE turn_id = ?", turn_id)
        if kept is None:
            kept = dump(self.index())
            self._db.run("INSERT INTO turn_memory VALUES (?, ?)", turn_id, kept)
        index: JsonObject = load(kept)
        return index

    def index(self) -> JsonObject:
        """``{index, truncated?}``: a line per memory, newest first."""
        lines: list[str] = []
        size = 0
        rows = self._db.all("SELECT path, content FROM memories ORDER BY changed DESC")
        for row in rows:
            described = _DESCRIPTION.search(row["content"])
            line = f"- {row['path']}" + (f" — {described.group(1).strip()}" if described else "")
            size += len(line.encode()) + 1
            if len(lines) == INDEX_LINES or size > INDEX_BYTES:
                return {"index": "\n".join(lines), "truncated": True}
            lines.append(line)
        return {"index": "\n".join(lines)}

    # --- Commands --------------------------------------------------------------------------------------------------------

    def _view(self, arguments: JsonObject, turn_id: str) -> str:
        path = _path(arguments, "path", root=True)
        content = self._db.value("SELECT content FROM memories WHERE path = ?", path)
        if content is None:
            return self._list(path)
        lines = content.split("\n")
        first, last = _view_range(arguments, len(lines))
        shown = (f"{number:>6}\t{line}" for number, line in enumerate(lines[first - 1 : last], start=first))
        return f"{path} with line numbers:\n" + "\n".join(shown)

    def _list(self, path: str) -> str:
        rows = self._db.all("SELECT path FROM memories ORDER BY path")
        inside = [row["path"] for row in rows if path == ROOT or row["path"].startswith(f"{path}/")]
        if not inside and path != ROOT:
            raise MemoryFault("memory.not_found", f"No memory at {path}")
        return "\n".join([f"Memories in {path}:", *(f"- {name}" for name in inside)]) if inside else f"{path} is empty."

    def _create(self, arguments: JsonObject, turn_id: str) -> str:
        path, text = _path(arguments, "path"), _text(arguments, "file_text")
        self._check_free(path)
        self._write(path, text, turn_id)
        return f"Wrote {path}"

    def _str_replace(self, arguments: JsonObject, turn_id: str) -> str:
        path = _path(arguments, "path")
        old, new = _text(arguments, "old_str"), arguments.get("new_str", "")
        if not isinstance(new, str):
            raise MemoryFault("memory.invalid", "new_str: a text is needed")
        content = self._read(path)
        count = content.count(old) if old else 0
        if count != 1:
            problem = "was not found" if count == 0 else f"is there {count} times; make it unique"
            raise MemoryFault("memory.no_match", f"old_str {problem} in {path}")
        self._write(path, content.replace(old, new), turn_id)
        return f"Edited {path}"

    def _insert(self, arguments: JsonObject, turn_id: str) -> str:
        path, text = _path(arguments, "path"), _text(arguments, "insert_text")
        lines = self._read(path).split("\n")
        at = arguments.get("insert_line")
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at <= len(lines):
            raise MemoryFault("memory.invalid", f"insert_line: a whole number from 0 to {len(lines)} is needed")
        self._write(path, "\n".join([*lines[:at], text.removesuffix("\n"), *lines[at:]]), turn_id)
        return f"Edited {path}"

    def _delete(self, arguments: JsonObject, turn_id: str) -> str:
        path = _path(arguments, "path")
        gone = self._db.run("DELETE FROM memories WHERE path = ? OR path GLOB ?", path, f"{_literal(path)}/*").rowcount
        if not gone:
            raise MemoryFault("memory.not_found", f"No memory at {path}")
        return f"Deleted {path}"

    def _rename(self, arguments: JsonObject, turn_id: str) -> str:
        old, new = _path(arguments, "old_path"), _path(arguments, "new_path")
        if new == old or new.startswith(f"{old}/"):
            raise MemoryFault("memory.invalid", f"{new} is within {old}")
        rows = self._db.all("SELECT path FROM memories WHERE path = ? OR path GLOB ?", old, f"{_literal(old)}/*")
        if not rows:
            raise MemoryFault("memory.not_found", f"No memory at {old}")
        if self._db.value("SELECT 1 FROM memories WHERE path = ? OR path GLOB ?", new, f"{_literal(new)}/*"):
            raise MemoryFault("memory.exists", f"There is a memory at {new} already")
        for row in rows:
            self._check_free(new + row["path"].removeprefix(old))
        for row in rows:
            self._db.run(
                "UPDATE memories SET path = ?, turn_id = ?, changed = ? WHERE path = ?",
                new + row["path"].removeprefix(old),
                turn_id,
                self._next(),
                row["path"],
            )
        return f"Renamed {old} to {new}"

    # --- Rows ------------------------------------------------------------------------------------------------------------

    def _read(self, path: str) -> str:
        content = self._db.value("SELECT content FROM memories WHERE path = ?", path)
        if content is None:
            raise MemoryFault("memory.not_found", f"No memory at {path}")
        return str(content)

    def _write(self, path: str, content: str, turn_id: str) -> None:
        if len(content.encode("utf-8", "replace")) > FILE_BYTES:
            raise MemoryFault("memory.too_large", f"A memory holds at most {FILE_BYTES} bytes")
        self._db.run(
            "INSERT INTO memories VALUES (?, ?, ?, ?) ON CONFLICT (path) DO UPDATE "
            "SET content = excluded.content, turn_id = excluded.turn_id, changed = excluded.changed",
            path,
            content.encode("utf-8", "replace").decode(),
            turn_id,
            self._next(),
        )

    def _check_free(self, path: str) -> None:
        """A memory is a file: it cannot lie within another, nor be a folder of others."""
        parents = [path[:end] for end in range(len(ROOT) + 1, len(path)) if path[end] == "/"]
        for parent in parents:
            if self._db.value("SELECT 1 FROM memories WHERE path = ?", parent):
                raise MemoryFault("memory.exists", f"{parent} is a memory, not a folder")
        if self._db.value("SELECT 1 FROM memories WHERE path GLOB ?", f"{_literal(path)}/*"):
            raise MemoryFault("memory.exists", f"{path} is a folder of memories")

    def _next(self) -> int:
        return 1 + int(self._db.value("SELECT coalesce(max(changed), 0) FROM memories"))


def _path(arguments: Mapping[str, Json], name: str, *, root: bool = False) -> str:
    path = arguments.get(name)
    if not isinstance(path, str) or not path:
        raise MemoryFault("memory.invalid", f"{name}: a path under {ROOT} is needed")
    path = path.rstrip("/") or "/"
    parts = path.split("/")
    outside = path != ROOT and not path.startswith(f"{ROOT}/")
    if outside or any(part in ("", ".", "..") for part in parts[1:]) or not path.isprintable():
        raise MemoryFault("memory.invalid", f"{name}: {path} is not a path under {ROOT}")
    if path == ROOT and not root:
        raise MemoryFault("memory.invalid", f"{name}: {ROOT} itself is no memory")
    return path


def _text(arguments: Mapping[str, Json], name: str) -> str:
    text = arguments.get(name)
    if not isinstance(text, str):
        raise MemoryFault("memory.invalid", f"{name}: a text is needed")
    return text


def _view_range(arguments: Mapping[str, Json], lines: int) -> tuple[int, int]:
    given = arguments.get("view_range")
    if given is None:
        return 1, lines
    if not (
        isinstance(given, list)
        and len(given) == 2
        and all(isinstance(number, int) and not isinstance(number, bool) for number in given)
        and given[0] >= 1
        and (given[1] == -1 or given[1] >= given[0])
    ):
        raise MemoryFault("memory.invalid", "view_range: [first, last] is needed; last may be -1")
    return given[0], lines if given[1] == -1 else min(given[1], lines)


def _literal(path: str) -> str:
    """``path`` within a GLOB: its own ``*``, ``?`` and ``[`` mean themselves."""
    return re.sub(r"([*?\[])", r"[\1]", path)
