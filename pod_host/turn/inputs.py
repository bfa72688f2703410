"""The turn's message as transcript entries (Harness API v5, sections 3 and 6)."""

from __future__ import annotations

from collections.abc import Iterable

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.transcript import Entry, InputEntry, entry_text
from pod_host.turn.endings import TurnFailure

_EDIT_BYTES = 128  # of the edit that carries an entry, beside it


def input_entries(value: Json, turn_id: str) -> list[Entry]:
    """One ``input`` entry for each message of ``checkpoint.input``; none for a segment that goes on.

    Raises TurnFailure for a shape that v5 does not know.
    """
    if isinstance(value, dict) and value.get("kind") == "continue":
        return []
    if isinstance(value, dict) and value.get("kind") == "messages":
        messages = value.get("messages")
        if not isinstance(messages, list):
            raise _unknown()
        return [_entry(message, turn_id) for message in messages]
    return [_entry(value, turn_id)]


def check_size(entries: Iterable[Entry], most_bytes: int) -> None:
    """Raises TurnFailure ``limit_exceeded`` when one of ``entries`` can never be recorded: before any work is done."""
    for entry in entries:
        size = len(entry_text(entry)) + _EDIT_BYTES
        if size > most_bytes:
            text = f"A message of the turn takes {size} bytes of the record, more than recordEntryBytes, {most_bytes}"
            raise TurnFailure("limit_exceeded", text)


def _entry(message: Json, turn_id: str) -> Entry:
    return InputEntry(kind="input", turn_id=turn_id, event=_event(message)).wire()


def _event(message: Json) -> JsonObject:
    if isinstance(message, str):
        return {"kind": "user-message", "text": message}
    if not isinstance(message, dict):
        raise _unknown()
    text, content, metadata = message.get("text"), message.get("content"), message.get("metadata")
    event: JsonObject = {"kind": "user-message"}
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        event["content"] = content
    elif isinstance(text, str):
        event["text"] = text
    else:
        raise _unknown()
    return event if metadata is None else {**event, "metadata": metadata}


def _unknown() -> TurnFailure:
    return TurnFailure("input.unsupported", "The turn's input is no text, text with metadata, content or messages")
