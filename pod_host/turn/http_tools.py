"""The manifest's HTTP tools (Harness API v5, sections 4 and 5: target ``http``, http-calls)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
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
from pod_host.turn.manifests import TOOL_NAME, declared_tools
from pod_host.turn.results import failure
from pod_host.turn.text import readable
from pod_host.turn.tool_arguments import ArgumentCheck, is_object_schema
from pod_host.turn.tool_gate import ToolGate
from pod_host.turn.toolset import Tool

_MEMBERS: Final = {  # of an outcome's value, by its kind
    "completed": ("output", "files", "truncated", "redacted"),
    "failed": ("code", "message", "retryable", "server", "vault", "redacted"),
    "denied": ("reason",),
}


@dataclass(frozen=True, slots=True)
class HttpTools:
    """Those of ``manifest``; what it says of a tool's address and credentials is the gate's business. ``agent_id``: of the
    agent used as a tool whose manifest it is."""

    manifest: JsonObject
    turn_id: str
    gate: ToolGate
    agent_id: str | None = None

    def tools(self) -> Iterable[Tool]:
        for name, declared in declared_tools(self.manifest):
            if declared.get("agent") is not None:
                continue  # see `AgentTools`
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
                deferred=None,
            )

    async def _run(self, name: str, arguments: JsonObject, execution: Execution) -> Fate:
        forms = http_call_bodies(name, execution.effect_id, self.turn_id, arguments, self.agent_id)
        answer = await self.gate.call(HTTP_CALLS_PATH, forms, execution, "http.failed")
        return _fate(answer) if isinstance(answer, dict) else answer


def _why_not(name: str, declared: JsonObject, schema: Json) -> str | None:
    """Why a declared tool cannot be offered; None when it can."""
    if not isinstance(declared.get("http"), dict):
        return "nothing runs it: it has no http"
    if not TOOL_NAME.fullmatch(name):
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
    if kind == "failed":
        usual = {"code": "http.failed", "message": "The HTTP call failed"}
        result = {**result, **{name: text for name, text in usual.items() if not isinstance(result.get(name), str)}}
    return Known({"kind": kind, **{name: result[name] for name in _MEMBERS[kind] if result.get(name) is not None}})
