"""The manifest's HTTP tools (Harness API v5, sections 4 and 5: target ``http``, http-calls)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import HttpTarget
from pod_host.contract.model_call import HTTP_CALLS_PATH, ToolGateAnswer
from pod_host.contract.open_points import http_call_bodies
from pod_host.errors import ContractViolation
from pod_host.turn.journal import Execution, Fate, Known, Unknown
from pod_host.turn.log import tell
from pod_host.turn.results import failure
from pod_host.turn.text import readable
from pod_host.turn.tool_arguments import ArgumentCheck, is_object_schema
from pod_host.turn.tool_gate import ToolGate
from pod_host.turn.toolset import Tool

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MEMBERS: Final = {  # of an outcome's value, by its kind
    "completed": ("output", "files", "truncated", "redacted"),
    "failed": ("code", "message", "retryable", "server", "vault", "redacted"),
    "denied": ("reason",),
}


@dataclass(frozen=True, slots=True)
class HttpTools:
    """``manifest``: its ``tools``, a list, or an object by name. What the manifest says of a tool's address and credentials
    is the gate's business."""

    manifest: JsonObject
    turn_id: str
    gate: ToolGate

    def tools(self) -> Iterable[Tool]:
        for name, declared in _declared(self.manifest.get("tools")):
            schema = declared.get("inputSchema", {"type": "object"})
            why = _why_not(name, declared, schema)
            if why is not None:
                tell(logging.WARNING, "tool.left_out", tool=name, why=why)
                continue
            description = declared.get("description")
            yield Tool(
                name=name,
                description=readable(description) if isinstance(description, str) else "",
                input_schema=schema,
                target=HttpTarget(kind="http", tool=name),
                parallel=True,
                check=ArgumentCheck(name, schema),
                run=partial(self._run, name),
            )

    async def _run(self, name: str, arguments: JsonObject, execution: Execution) -> Fate:
        forms = http_call_bodies(name, execution.effect_id, self.turn_id, arguments)
        answer = await self.gate.call(HTTP_CALLS_PATH, forms, execution, "http.failed")
        return _fate(answer) if isinstance(answer, dict) else answer


def _declared(tools: Json) -> Iterator[tuple[str, JsonObject]]:
    if isinstance(tools, dict):
        tools = [{"name": name, **tool} for name, tool in tools.items() if isinstance(tool, dict)]
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            yield str(tool.get("name")), tool


def _why_not(name: str, declared: JsonObject, schema: Json) -> str | None:
    """Why a declared tool cannot be offered; None when it can."""
    if isinstance(declared.get("agent"), dict | str):
        return "it is an agent used as a tool"
    if not isinstance(declared.get("http"), dict):
        return "nothing runs it: it has no http"
    if not _NAME.fullmatch(name):
        return "its name is not 1 to 64 letters, digits, - and _"
    return None if is_object_schema(schema) else "its inputSchema is no object schema"


def _fate(answer: JsonObject) -> Fate:
    """``{ok: true, result}`` holds an outcome's value already."""
    try:
        read = ToolGateAnswer.read(answer, "answer of the Tool Gate")
    except ContractViolation as fault:
        return Unknown(str(fault))
    if not read.ok:
        error = read.error or {}
        message = error.get("message")
        text = message if isinstance(message, str) and message else "The HTTP call failed"
        return Unknown(text) if error.get("uncertain") is True else Known(failure("http.failed", text))
    result = read.result
    kind = result.get("kind") if isinstance(result, dict) else None
    if kind not in _MEMBERS:
        return Known({"kind": "completed", "output": result})
    if kind == "failed" and not isinstance(result.get("message"), str):
        result = {**result, "message": "The HTTP call failed"}
    return Known({"kind": kind, **{name: result[name] for name in _MEMBERS[kind] if result.get(name) is not None}})
