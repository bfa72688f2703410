"""Tool results that fit: every outcome and the step's one entry stay within the record's limits (sections 4 and 5b)."""

from __future__ import annotations

from collections.abc import Sequence

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import tool_failure
from pod_host.contract.encoding import encode
from pod_host.turn.endings import TurnFailure
from pod_host.turn.text import readable, shortened

_SHORTEST = 64  # characters that a cut text keeps at least: below that it says nothing
_LEAST = 256  # bytes of the smallest share: a failure that says what is wrong
_ENVELOPE = 512 + 2 * 256  # bytes of a result beside its payload: members' names, the call's id and name
_STEP_ENVELOPE = 2048  # of the entry and its edit, beside the results: the names of turn and step


def share_bytes(record_entry_bytes: int, calls: int, step_bytes: int = limits.STEP_RESULT_BYTES) -> int:
    """What the outcome of one of a step's ``calls`` calls may hold, as JSON, so that all of them fit one entry, and a model
    can read it: equal shares, whatever ends first. ``step_bytes``: of any of them at most."""
    share = (record_entry_bytes - limits.ENTRY_ENVELOPE_BYTES) // max(calls, 1)
    return max(min(share, step_bytes) - _ENVELOPE, _LEAST)


def json_bytes(value: Json) -> int:
    return len(encode(value))


def fit(value: Json, most_bytes: int) -> Json:
    """``value``, an outcome, in at most ``most_bytes`` of JSON: as it is, with its long texts cut in their middle, or,
    when that is not enough, as the failure ``tool.result-too-large``."""
    size = json_bytes(value)
    if size <= most_bytes:
        return value
    length = min(_longest(value), most_bytes)
    while length >= _SHORTEST:
        shorter = _marked(_cut_texts(value, length))
        if json_bytes(shorter) <= most_bytes:
            return shorter
        length = length * 3 // 4
    return tool_failure(
        "tool.result-too-large",
        f"The result holds {size} bytes, more than the {most_bytes} that fit here, and cannot be cut. Ask for less.",
    )


def failure(code: str, message: str) -> JsonObject:
    """The outcome of a call that failed, for the model to read."""
    return tool_failure(code, readable(message))


def smaller(value: Json) -> Json | None:
    """The next smaller form of an outcome that was refused for its size; None when there is none."""
    shrunk = fit(value, json_bytes(value) // 2)
    if json_bytes(shrunk) < json_bytes(value):
        return shrunk
    # Short, and refused all the same: the Runtime's limit is another than the one that the turn started with.
    last = tool_failure("tool.result-too-large", "The result passes the Runtime's limit for a record entry.")
    return None if value == last else last


def tool_result(call_id: str, tool_name: str, value: Json) -> JsonObject:
    """An outcome's value as the ToolResult that the transcript keeps."""
    head: JsonObject = {"callId": call_id, "toolName": tool_name}
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind == "failed":
        return {**head, "kind": "failed", **_texts(value, "code", "message"), **_present(value, "retryable", "details")}
    if kind == "denied":
        return {**head, "kind": "denied", **_texts(value, "reason")}
    if kind == "completed" and "output" in value:
        return {**head, "kind": "completed", "output": value["output"], **_present(value, "files")}
    return {**head, "kind": "completed", "output": value}


def fit_step(results: Sequence[JsonObject], most_bytes: int) -> list[JsonObject]:
    """A step's results, of which each was fitted to its share, within one entry of ``most_bytes``: of those that even so are
    too many, the last are no more than failures. Raises TurnFailure for so many that not even that is enough."""
    fitted = list(results)
    over = sum(json_bytes(result) + 1 for result in results) - (most_bytes - _STEP_ENVELOPE)
    for index in reversed(range(len(fitted))):
        if over <= 0:
            return fitted
        result = fitted[index]
        code = result.get("code", "tool.result-too-large")
        least = tool_result(result["callId"], result["toolName"], failure(code, "No room is left in this step."))
        over -= max(json_bytes(result) - json_bytes(least), 0)
        fitted[index] = least
    if over <= 0:
        return fitted
    text = f"The results of {len(results)} calls of one step do not fit into recordEntryBytes, {most_bytes}"
    raise TurnFailure("limit_exceeded", text)


def _texts(value: JsonObject, *names: str) -> JsonObject:
    return {name: str(value.get(name) or "unknown") for name in names}


def _present(value: JsonObject, *names: str) -> JsonObject:
    return {name: value[name] for name in names if value.get(name) is not None}


def _longest(value: Json) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return max((_longest(member) for member in value.values()), default=0)
    if isinstance(value, list):
        return max((_longest(item) for item in value), default=0)
    return 0


def _cut_texts(value: Json, length: int) -> Json:
    if isinstance(value, str):
        return shortened(value, length, "omitted: the result is too long")
    if isinstance(value, dict):
        return {name: _cut_texts(member, length) for name, member in value.items()}
    if isinstance(value, list):
        return [_cut_texts(item, length) for item in value]
    return value


def _marked(value: Json) -> Json:
    if isinstance(value, dict) and value.get("kind") == "completed":
        return {**value, "truncated": True}
    return value
