"""Transcript entries as prompt items (Harness API v5, sections 5 and 6): a pure function, since the call is hashed.

JSON inside text is canonical JSON: an entry that crossed the Runtime gives the same text, whatever became of its members'
order and its numbers' form on the way. No text part is empty or blank: providers refuse those.
"""

from __future__ import annotations

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.transcript import Entry

_PAYLOAD_MEMBERS = {
    "denied": ("kind", "reason"),
    "failed": ("kind", "code", "message", "retryable", "details"),
}
_EMPTY_MESSAGE = "(empty message)"


def prompt_items(entry: Entry, turn_id: str) -> list[JsonObject]:
    """The items of one entry, as the turn ``turn_id`` sends them."""
    kind = entry.get("kind")
    if kind == "input":
        return _input(entry.get("event") or {})
    if kind == "candidate":
        return _candidate(entry.get("candidate") or {}, current=entry.get("turnId") == turn_id)
    if kind == "tool-results":
        return [_tool_result(result) for result in entry.get("results") or []]
    if kind == "compaction":
        text = (
            "Earlier parts of this conversation were summarized to fit the context window.\n"
            f"<summary>\n{entry.get('summary', '')}\n</summary>"
        )
        return [_message("user", [_text(text)])]
    return []  # final, and what a later release may write: nothing for the model


def depends_on_turn(entry: Entry) -> bool:
    """Whether the entry's items differ between its own turn and later ones."""
    if entry.get("kind") != "candidate":
        return False
    blocks = (entry.get("candidate") or {}).get("output") or []
    return any(block.get("type") == "reasoning" and _only_its_turn(block) for block in blocks)


def json_text(value: Json) -> str:
    """``value`` as canonical JSON text."""
    return canonical(value).decode()


def _input(event: JsonObject) -> list[JsonObject]:
    if event.get("kind") in ("approve", "respond"):
        return []
    parts = event.get("content")
    if not isinstance(parts, list):
        parts = [_text(str(event.get("text", "")))]
    shown = [part for part in parts if part.get("type") != "text" or _visible(part)]
    return [_message("user", shown or [_text(_EMPTY_MESSAGE)])]


def _candidate(candidate: JsonObject, *, current: bool) -> list[JsonObject]:
    parts = [part for block in candidate.get("output") or [] if (part := _part(block, current=current))]
    if not parts:
        return []
    item = _message("assistant", parts)
    producer = ((candidate.get("evidence") or {}).get("extras") or {}).get("producer")
    if isinstance(producer, dict):
        item["producer"] = producer
    return [item]


def _part(block: JsonObject, *, current: bool) -> JsonObject | None:
    kind = block.get("type")
    if kind == "text":
        return _with_metadata(_text(block["text"]), block) if _visible(block) else None
    if kind == "json":
        return _text(json_text(block.get("value")))
    if kind == "reasoning":
        if not block.get("providerMetadata") or (_only_its_turn(block) and not current):
            return None
        return _with_metadata({"type": "reasoning", "text": block.get("text") or ""}, block)
    if kind == "tool-call":
        args = block.get("args")
        call = {"type": "tool-call", "id": block["id"], "name": block["name"]}
        return _with_metadata({**call, "args": args if isinstance(args, dict) else {}}, block)
    return None


def _tool_result(result: JsonObject) -> JsonObject:
    status = result["kind"]
    members = _PAYLOAD_MEMBERS.get(status)
    payload = result.get("output") if members is None else {name: result[name] for name in members if name in result}
    files = [
        {"type": "media", "mediaType": file["mediaType"], "reference": file["reference"]}
        for file in result.get("files") or []
    ]
    return {
        "kind": "tool-result",
        "toolCallId": result["callId"],
        "toolName": result["toolName"],
        "status": status,
        "content": [_text(json_text(payload)), *files],
    }


def _only_its_turn(block: JsonObject) -> bool:
    metadata = block.get("providerMetadata")
    return isinstance(metadata, dict) and metadata.get("replay") == "turn"


def _visible(block: JsonObject) -> bool:
    text = block.get("text")
    return isinstance(text, str) and bool(text.strip())


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _message(role: str, content: list[JsonObject]) -> JsonObject:
    return {"kind": "message", "role": role, "content": content}


def _with_metadata(part: JsonObject, block: JsonObject) -> JsonObject:
    metadata = block.get("providerMetadata")
    return part if metadata is None else {**part, "providerMetadata": metadata}
