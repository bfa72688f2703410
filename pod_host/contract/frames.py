"""Frames: one JSON object per WebSocket text message, at most 64 MiB (Harness API v5, section 1).

    {"t": "req", "id", "m", "p"}            {"t": "res", "id", "ok": true, "r"}
    {"t": "msg", "m", "p"}                  {"t": "res", "id", "ok": false, "e": {"code", "message"}}
    {"t": "abort", "id"}                    {"t": "ping"}

Every frame's members are exact at both ends: an extra one is malformed. ``p`` and ``r`` must be present; they are read
as any JSON here and checked against their method elsewhere (`methods`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pod_host.contract.base import Json, JsonObject
from pod_host.errors import PodHostError

HARNESS_MAX_PAYLOAD = 64 * 1024 * 1024

HARNESS_ERROR_CODES = frozenset(
    {
        "run_not_held",
        "turn_cancelled",
        "ownership_lost",
        "effect_drift",
        "invalid",
        "unavailable",
        "internal",
        "not_found",
        "limit_exceeded",
    }
)


def _is_any(value: Json) -> bool:
    return True


def _is_id(value: Json) -> bool:
    return type(value) is int and value > 0  # True is none


def _is_text(value: Json) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _is_name(value: Json) -> bool:
    return _is_text(value) and value != ""


def _is_code(value: Json) -> bool:
    return isinstance(value, str) and value in HARNESS_ERROR_CODES


def _is_error(value: Json) -> bool:
    return isinstance(value, dict) and _fault(value, _ERROR) is None


_Members: TypeAlias = Mapping[str, tuple[Callable[[Json], bool], str]]
"""By name: what fits, and what to say of what does not."""

_ANY = _is_any, ""
_ID = _is_id, "a whole number above 0 is needed"
_NAME = _is_name, "a text of at least one character is needed"
_ERROR: _Members = {"code": (_is_code, "an error code is needed"), "message": (_is_text, "a text is needed")}
_FRAMES: Mapping[str, _Members] = {
    "req": {"t": _ANY, "id": _ID, "m": _NAME, "p": _ANY},
    "msg": {"t": _ANY, "m": _NAME, "p": _ANY},
    "abort": {"t": _ANY, "id": _ID},
    "ping": {"t": _ANY},
}
_ANSWERS: Mapping[bool, _Members] = {
    True: {"t": _ANY, "id": _ID, "ok": _ANY, "r": _ANY},
    False: {"t": _ANY, "id": _ID, "ok": _ANY, "e": (_is_error, "a code of the contract and a message are needed")},
}


class MalformedFrame(PodHostError):
    """JSON that is no valid frame. ``request_id`` is its id when it was a request with a numeric one: that is answered
    as ``invalid`` and the connection stays; any other malformed frame closes the connection (section 1)."""

    code = "invalid"

    def __init__(self, fault: str, request_id: int | float | None) -> None:
        super().__init__(f"Invalid frame: {fault}")
        self.request_id = request_id


def read_frame(value: Json) -> JsonObject:
    """One decoded frame as it came, once every member is as it must be. Raises MalformedFrame."""
    fault = _frame_fault(value)
    if fault is not None:
        raise MalformedFrame(fault, _request_id(value))
    frame: JsonObject = value
    return frame


def _frame_fault(value: Json) -> str | None:
    if not isinstance(value, dict):
        return "an object is needed"
    kind = value.get("t")
    if kind == "res":
        if not isinstance(ok := value.get("ok"), bool):  # 1 equals True, but is not it
            return "ok: true or false is needed"
        return _fault(value, _ANSWERS[ok])
    members = _FRAMES.get(kind) if isinstance(kind, str) else None
    if members is None:
        return f"t: one of {', '.join(_FRAMES)} and res is needed"
    return _fault(value, members)


def _fault(value: JsonObject, members: _Members) -> str | None:
    """What is wrong first; None: nothing is."""
    for name, (fits, needed) in members.items():
        if name not in value:
            return f"{name} is missing"
        if not fits(value[name]):
            return f"{name}: {needed}"
    if len(value) > len(members):
        return f'Unrecognized key: "{next(name for name in value if name not in members)}"'
    return None


def _request_id(value: Json) -> int | float | None:
    if isinstance(value, dict) and value.get("t") == "req":
        number = value.get("id")
        if isinstance(number, int) and not isinstance(number, bool):
            return number
        if isinstance(number, float) and math.isfinite(number):  # 1e400 is read as infinity, which no answer can name
            return number
    return None


def request(number: int, method: str, params: JsonObject) -> JsonObject:
    return {"t": "req", "id": number, "m": method, "p": params}


def answer(number: int, result: Json) -> JsonObject:
    return {"t": "res", "id": number, "ok": True, "r": result}


def refusal(number: int | float, code: str, message: str) -> JsonObject:
    """A bad answer. A code outside the list would close the connection, so any other crosses as ``internal``."""
    known = code if code in HARNESS_ERROR_CODES else "internal"
    return {"t": "res", "id": number, "ok": False, "e": {"code": known, "message": message}}


def message(method: str, params: JsonObject) -> JsonObject:
    return {"t": "msg", "m": method, "p": params}


def abort(number: int) -> JsonObject:
    return {"t": "abort", "id": number}
