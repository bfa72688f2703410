"""Frames: one JSON object per WebSocket text message, at most 64 MiB (Harness API v5, section 1).

    {"t": "req", "id", "m", "p"}            {"t": "res", "id", "ok": true, "r"}
    {"t": "msg", "m", "p"}                  {"t": "res", "id", "ok": false, "e": {"code", "message"}}
    {"t": "abort", "id"}                    {"t": "ping"}

Every frame's members are exact at both ends: an extra one is malformed. ``p`` and ``r`` must be present; they are read
as any JSON here and checked against their method elsewhere (`methods`).
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

from pydantic import Field, TypeAdapter, ValidationError

from pod_host.contract.base import HALF_A_PAIR, Json, JsonObject, Sent, Text1, first_fault
from pod_host.errors import PodHostError

HARNESS_MAX_PAYLOAD = 64 * 1024 * 1024

ErrorCode = Literal[
    "run_not_held",
    "turn_cancelled",
    "ownership_lost",
    "effect_drift",
    "invalid",
    "unavailable",
    "internal",
    "not_found",
    "limit_exceeded",
]
HARNESS_ERROR_CODES: frozenset[str] = frozenset(get_args(ErrorCode))

FrameId = Annotated[int, Field(gt=0, strict=True)]


class RequestFrame(Sent):
    any_json: ClassVar[frozenset[str]] = frozenset({"p"})
    t: Literal["req"]
    id: FrameId
    m: Text1
    p: Json


class ErrorBody(Sent):
    code: ErrorCode
    message: str


class AnswerFrame(Sent):
    any_json: ClassVar[frozenset[str]] = frozenset({"r"})
    t: Literal["res"]
    id: FrameId
    ok: Literal[True]
    r: Json


class RefusalFrame(Sent):
    t: Literal["res"]
    id: FrameId
    ok: Literal[False]
    e: ErrorBody


class MessageFrame(Sent):
    any_json: ClassVar[frozenset[str]] = frozenset({"p"})
    t: Literal["msg"]
    m: Text1
    p: Json


class AbortFrame(Sent):
    t: Literal["abort"]
    id: FrameId


class PingFrame(Sent):
    t: Literal["ping"]


Frame: TypeAlias = RequestFrame | AnswerFrame | RefusalFrame | MessageFrame | AbortFrame | PingFrame

_FRAMES: TypeAdapter[Frame] = TypeAdapter(
    Annotated[
        RequestFrame
        | Annotated[AnswerFrame | RefusalFrame, Field(discriminator="ok")]
        | MessageFrame
        | AbortFrame
        | PingFrame,
        Field(discriminator="t"),
    ]
)


class MalformedFrame(PodHostError):
    """JSON that is no valid frame. ``request_id`` is its id when it was a request with a numeric one: that is answered
    as ``invalid`` and the connection stays; any other malformed frame closes the connection (section 1)."""

    code = "invalid"

    def __init__(self, fault: str, request_id: int | float | None) -> None:
        super().__init__(f"Invalid frame: {fault}")
        self.request_id = request_id


def read_frame(value: Json) -> Frame:
    """Check one decoded frame. Raises MalformedFrame."""
    if isinstance(value, dict) and value.get("t") == "res" and not isinstance(value.get("ok"), bool):
        raise MalformedFrame("ok: true or false is needed", None)  # 1 equals True, but is not it
    try:
        return _FRAMES.validate_python(value)
    except ValidationError as fault:
        raise MalformedFrame(first_fault(fault), _request_id(value)) from None
    except UnicodeEncodeError:
        raise MalformedFrame(HALF_A_PAIR, _request_id(value)) from None


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
