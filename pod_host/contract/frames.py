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


_Check: TypeAlias = Callable[[Json], str | None]
"""What is wrong with a member, and what is needed; None: nothing is wrong."""


def _any(value: Json) -> str | None:
    return None


def _id(value: Json) -> str | None:
    return None if type(value) is int and value > 0 else "a whole number above 0 is needed"  # True is none


def _text(value: Json) -> str | None:
    if not isinstance(value, str):
        return "a text is needed"
    try:
        if not value.isascii():
            value.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair is no text"
    return None


def _name(value: Json) -> str | None:
    return _text(value) if value != "" else "a text of at least one character is needed"


def _code(value: Json) -> str | None:
    known = isinstance(value, str) and value in HARNESS_ERROR_CODES
    return None if known else f"one of {', '.join(sorted(HARNESS_ERROR_CODES))} is needed"


def _error(value: Json) -> str | None:
    return _fault(value, _ERROR) if isinstance(value, dict) else "an object is needed"


_Members: TypeAlias = Mapping[str, _Check]
_ERROR: _Members = {"code": _code, "message": _text}
_ANSWER: _Members = {"t": _any, "id": _id, "ok": _any, "r": _any}
_REFUSAL: _Members = {"t": _any, "id": _id, "ok": _any, "e": _error}
_FRAMES: Mapping[str, _Members] = {
    "req": {"t": _any, "id": _id, "m": _name, "p": _any},
    "msg": {"t": _any, "m": _name, "p": _any},
    "abort": {"t": _any, "id": _id},
    "ping": {"t": _any},
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
    kind, ok = value.get("t"), value.get("ok")
    if kind == "res":
        if not isinstance(ok, bool):  # 1 equals True, but is not it
            return "ok: true or false is needed"
        return _fault(value, _ANSWER if ok else _REFUSAL)
    members = _FRAMES.get(kind) if isinstance(kind, str) else None
    return f"t: one of res, {', '.join(_FRAMES)} is needed" if members is None else _fault(value, members)


def _fault(value: JsonObject, members: _Members) -> str | None:
    """What is wrong first."""
    for name, check in members.items():
        if name not in value:
            return f"{name} is missing"
        if (wrong := check(value[name])) is not None:
            return f"{name}: {wrong}"
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
