"""The gates: model, MCP and HTTP tool calls over HTTP (Harness API v5, section 5).

A keyed call outlives its client: sent again with the same key and the same bytes it is joined, or answered with what is
kept. So a lost hop is sent again; nothing else is.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from urllib.parse import quote

from pod_host import limits
from pod_host.client import http
from pod_host.client.light import httpx
from pod_host.client.retry import retrying
from pod_host.client.room import Claim, Room
from pod_host.contract.base import JsonObject
from pod_host.errors import ContractViolation, GateRefusal, GateUnavailable

_log = logging.getLogger(__name__)

_PASSING = frozenset({408, 425, 429})  # not of a gate, but of what stands before it: as good as a lost hop
_CODES = {
    400: "invalid_request",
    401: "gate_unauthorized",
    403: "gate_forbidden",
    409: "gate_conflict",
    421: "host_rejected",
}


class Gates:
    """The gates of one Runtime. ``tls``: needed for https, see `tls.runtime_tls`. ``room``: for large answers, of all that
    call."""

    def __init__(
        self, base_url: str, tls: ssl.SSLContext | None, *, silence_seconds: float = limits.GATE_CLIENT_SECONDS
    ) -> None:
        self._base = base_url.rstrip("/")
        timeout = httpx.Timeout(silence_seconds, connect=limits.GATE_CONNECT_SECONDS)
        self._client = http.open_client(tls, timeout=timeout, idle_seconds=limits.GATE_IDLE_SECONDS)
        self.room = Room(limits.ANSWERS_BYTES)

    def claim(self) -> Claim:
        """For the answers of calls that may be large: ``async with``, until their values are needed no more."""
        return self.room.claim()

    async def call(
        self,
        path: str,
        body: bytes,
        *,
        key: str,
        token: Callable[[], str],
        traceparent: str | None = None,
        claim: Claim | None = None,
    ) -> JsonObject:
        """POST ``body`` (JSON) under the effect id ``key``; the answer's object, ``{}`` for 204. With a ``claim`` a large
        answer is read when there is room for it, which the claim then holds.

        ``token`` is asked before each attempt, since the run token rotates. A lost hop and a 5xx are sent again, the
        same bytes under the same key. Raises GateRefusal: the gate said no (any 4xx; a body that is no gate error gets
        the status's usual code, or ``http_<status>``). Raises GateUnavailable: no answer after all attempts.
        """
        url = self._base + path
        headers = _headers(key, traceparent)

        def again(fault: BaseException) -> bool:
            # A token that was replaced while its request was on the way is no refusal of the call.
            stale = isinstance(fault, _Refused) and fault.status == 401 and token() not in ("", fault.token)
            return stale or isinstance(fault, _Lost)

        def tell(fault: BaseException) -> None:
            _log.warning("%s %s is sent again: %s", path, key, fault)

        attempts = retrying(
            again,
            first=limits.GATE_BACKOFF_FIRST_SECONDS,
            most=limits.GATE_BACKOFF_MOST_SECONDS,
            attempts=1 + limits.GATE_RESENDS,
            tell=tell,
        )
        return await attempts(self._attempt, url, body, headers, token, claim)

    async def cancel(self, path: str, *, key: str, token: Callable[[], str]) -> None:
        """Abort the call ``key`` at its gate: ``POST {path}/{key}/cancel``. Never raises; a gate that does not answer
        within CANCEL_SECONDS ends the call when the run is over."""
        url = f"{self._base}{path}/{quote(key, safe='')}/cancel"
        held = token()
        try:
            async with asyncio.timeout(limits.CANCEL_SECONDS):
                await http.post(self._client, url, headers={"Authorization": f"Bearer {held}"}, body=None)
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, UnicodeError) as fault:
            _log.info("the cancel of %s went unanswered: %s", key, http.shown(http.told(fault), held))

    async def close(self) -> None:
        await self._client.aclose()

    async def _attempt(
        self, url: str, body: bytes, headers: dict[str, str], token: Callable[[], str], claim: Claim | None
    ) -> JsonObject:
        held = token()
        if not held:
            raise GateRefusal(401, "gate_unauthorized", "the run holds no token for the gates")
        try:
            answer = await http.post(
                self._client, url, headers={**headers, "Authorization": f"Bearer {held}"}, body=body, claim=claim
            )
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError) as fault:
            raise GateUnavailable(http.shown(http.told(fault), held)) from None  # it would fail again
        except httpx.HTTPError as fault:
            raise _Lost(http.shown(http.told(fault), held)) from None
        if answer.status in (200, 204):
            return _object(answer)
        code, message = answer.error()
        if answer.status >= 500 or answer.status in _PASSING:
            raise _Lost(http.shown(": ".join([str(answer.status), code or "no error body", message]), held))
        raise _Refused(
            answer.status,
            code or _CODES.get(answer.status, f"http_{answer.status}"),
            http.shown(message, held) if code else "the answer holds no gate error",
            held,
        )


class _Lost(GateUnavailable):
    """The hop was lost: the same key and bytes may be sent again."""


class _Refused(GateRefusal):
    """``token``: the one that was sent. Never in a text."""

    def __init__(self, status: int, code: str, message: str, token: str) -> None:
        super().__init__(status, code, message)
        self.token = token


def _headers(key: str, traceparent: str | None) -> dict[str, str]:
    if not (key.isascii() and key.isprintable()):
        raise ContractViolation("Idempotency-Key: an effect id of printable ASCII is needed")
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    if traceparent and traceparent.isascii() and traceparent.isprintable():
        headers["traceparent"] = traceparent
    return headers


def _object(answer: http.HttpAnswer) -> JsonObject:
    if answer.status == 204:
        return {}
    try:
        value = answer.json()
    except ContractViolation:
        value = None
    if not isinstance(value, dict):
        raise _Lost("200 with a body that is no JSON object")
    return value
