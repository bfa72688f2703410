"""What the Tool Gate answers to an MCP call, as the call's fate (Harness API v5, sections 4, 5 and 5b)."""

from __future__ import annotations

from typing import Final

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.model_call import ToolGateAnswer
from pod_host.errors import ContractViolation
from pod_host.turn.journal import Again, Fate, Known, Unknown
from pod_host.turn.results import failure
from pod_host.turn.text import readable

_TEXT: Final = "\n"  # between the text parts of one answer


def mcp_fate(answer: JsonObject, *, repeatable: bool, asked: int) -> Fate:
    """``repeatable``: the server says that a call may run twice (``readOnlyHint``, ``idempotentHint``). ``asked``: as in
    `Execution`: a call that was lost is sent again once."""
    try:
        read = ToolGateAnswer.read(answer, "answer of the Tool Gate")
    except ContractViolation as fault:
        return Unknown(str(fault))
    if read.ok:
        return Known(_with_redacted(_completed(read.result), answer))
    error = read.error or {}
    reported = error.get("failure")
    detail: JsonObject = reported if isinstance(reported, dict) else {}
    message = _text(detail.get("message"), _text(error.get("message"), "The MCP call failed"))
    code = readable(_text(detail.get("code"), "mcp.error"))
    if error.get("uncertain") is True or code == "mcp.lost":
        if not repeatable:
            return Unknown(message)
        if asked == 1:
            return Again()
        code = "mcp.lost"
    told = {name: detail[name] for name in ("server", "vault", "redacted") if detail.get(name) is not None}
    if isinstance(detail.get("retryable"), bool):
        told["retryable"] = detail["retryable"]
    return Known({**failure(code, message), **told})


def _completed(result: Json) -> JsonObject:
    """A CallToolResult as an outcome's value. What is no CallToolResult is an output as it is."""
    if not isinstance(result, dict):
        return {"kind": "completed", "output": result}
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if _is_text(part)]
    others = [part for part in parts if not _is_text(part)]
    if result.get("isError") is True:
        return failure("mcp.tool", _TEXT.join(texts) or "MCP tool failed")
    structured = result.get("structuredContent")
    if structured is not None:  # its text parts say the same again; images and files do not
        output = {"structuredContent": structured, "content": others} if others else structured
        return {"kind": "completed", "output": output}
    if "content" not in result:
        return {"kind": "completed", "output": {name: item for name, item in result.items() if name != "isError"}}
    return {"kind": "completed", "output": parts if others else _TEXT.join(texts)}


def _is_text(part: Json) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _with_redacted(value: JsonObject, answer: JsonObject) -> JsonObject:
    redacted = answer.get("redacted")
    return {**value, "redacted": redacted} if redacted else value


def _text(value: Json, otherwise: str) -> str:
    return value if isinstance(value, str) and value else otherwise
