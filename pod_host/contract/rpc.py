"""The channel without a socket: what one end makes of what it hears (Harness API v5, section 1).

A `Peer` counts its own requests from 1, matches answers to them, checks both ends' messages by the tables of `methods`, and
says what is to be sent, served or closed. The host's channel and the embedded Runtime's connection are thin shells of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pod_host.contract import frames
from pod_host.contract.base import Json, JsonObject, Wire
from pod_host.contract.encoding import Utf8, decode
from pod_host.contract.methods import Method
from pod_host.errors import ContractViolation, RuntimeRefusal

NOT_JSON = (1007, "Harness API frames are JSON text")
CLOSE_REASON_BYTES = 120


@dataclass(frozen=True)
class Send:
    """A frame to send, in answer to what was heard."""

    frame: JsonObject


@dataclass(frozen=True)
class Close:
    """Close the connection with this code and reason; every pending request fails as ``unavailable``."""

    code: int
    reason: str


@dataclass(frozen=True)
class Serve:
    """The peer asks: run ``method`` and answer by `Peer.answer` or `Peer.refuse`."""

    id: int
    method: str
    params: Any


@dataclass(frozen=True)
class Settle:
    """One of our requests is answered: ``result`` is its method's model, or ``refusal`` says why not."""

    id: int
    result: Any = None
    refusal: RuntimeRefusal | None = None


@dataclass(frozen=True)
class Deliver:
    """A one-way message of a known kind."""

    method: str
    params: Wire


@dataclass(frozen=True)
class GiveUp:
    """The peer gave up on its request ``id``: abort its handler; an answer is still owed, and will be dropped."""

    id: int


Event: TypeAlias = Send | Close | Serve | Settle | Deliver | GiveUp


class Peer:
    """One end of one connection. ``asks``: what we may send; ``serves``: what we run; ``hears``: messages we take."""

    def __init__(
        self, *, asks: Mapping[str, Method], serves: Mapping[str, Method], hears: Mapping[str, type[Wire]]
    ) -> None:
        self._asks = asks
        self._serves = serves
        self._hears = hears
        self._last_id = 0
        self._pending: dict[int, Method] = {}
        self._serving: dict[int, Method] = {}

    def request(self, method: str, params: Json) -> tuple[int, JsonObject]:
        """Our next request: its id and its frame. ``params`` is wire JSON."""
        self._last_id += 1
        self._pending[self._last_id] = self._asks[method]
        return self._last_id, frames.request(self._last_id, method, params)

    def abort(self, number: int) -> JsonObject | None:
        """Give up on our request: the frame that says so, or None when it is answered already."""
        return frames.abort(number) if self._pending.pop(number, None) else None

    def answer(self, number: int, result: Json) -> JsonObject:
        """The answer to a request that we served; a result outside its schema crosses as ``invalid``."""
        method = self._serving.pop(number)
        if isinstance(result, Wire):
            return frames.answer(number, result.wire())
        try:
            method.read_result(result)
        except ContractViolation as fault:
            return frames.refusal(number, "invalid", str(fault))
        return frames.answer(number, result)

    def refuse(self, number: int, code: str, text: str) -> JsonObject:
        self._serving.pop(number, None)
        return frames.refusal(number, code, text)

    def receive(self, text: str | Utf8) -> list[Event]:
        """What one WebSocket text message means. A binary one never is a frame: it closes as NOT_JSON."""
        try:
            value = decode(text)
        except ContractViolation:
            return [Close(*NOT_JSON)]
        return self.receive_json(value)

    def receive_json(self, value: Json) -> list[Event]:
        """What one decoded frame means."""
        try:
            frame = frames.read_frame(value)
        except frames.MalformedFrame as fault:
            if fault.request_id is not None:
                return [Send(frames.refusal(fault.request_id, "invalid", str(fault)))]
            return [Close(1000, close_reason(f"invalid frame: {fault}"))]
        match frame["t"]:
            case "req":
                return [self._requested(frame["id"], frame["m"], frame["p"])]
            case "res":
                return self._answered(frame["id"], frame)
            case "msg":
                return self._told(frame["m"], frame["p"])
            case "abort":
                return [GiveUp(frame["id"])] if frame["id"] in self._serving else []
            case _:
                return []  # a ping: that it was heard is all of it

    def _requested(self, number: int, name: str, params: Json) -> Event:
        if number in self._serving:
            return Send(frames.refusal(number, "invalid", f"Request {number} is still being served"))
        method = self._serves.get(name)
        if method is None:
            return Send(frames.refusal(number, "invalid", f"Unknown {name} request"))
        try:
            params = method.read_params(params)
        except ContractViolation as fault:
            return Send(frames.refusal(number, "invalid", str(fault)))
        self._serving[number] = method
        return Serve(number, name, params)

    def _answered(self, number: int, frame: JsonObject) -> list[Event]:
        method = self._pending.pop(number, None)
        if method is None:
            return []
        if not frame["ok"]:
            return [Settle(number, refusal=RuntimeRefusal(frame["e"]["code"], frame["e"]["message"]))]
        try:
            return [Settle(number, result=method.read_result(frame["r"]))]
        except ContractViolation as fault:
            return [Settle(number, refusal=RuntimeRefusal("invalid", str(fault)))]

    def _told(self, name: str, params: Json) -> list[Event]:
        kind = self._hears.get(name)
        if kind is None:
            return []
        try:
            return [Deliver(name, kind.read(params))]
        except ContractViolation:
            return []  # the contract: a message that does not fit its schema is dropped


def close_reason(reason: str) -> str:
    return reason.encode()[:CLOSE_REASON_BYTES].decode(errors="ignore")
