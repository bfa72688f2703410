"""Joining and renewing over HTTP (Harness API v5, section 9). No token ever stands in a text of ours."""

from __future__ import annotations

import asyncio
import ssl

from pod_host import limits
from pod_host.client import http
from pod_host.client.light import httpx
from pod_host.contract.encoding import encode
from pod_host.contract.hosting import JOIN_PATH, RENEW_PATH, HostJoinAnswer, HostJoinRequest
from pod_host.errors import ContractViolation, JoinRefused, JoinUnavailable

_REFUSED = (400, 401)


class HostApi:
    """``host/join`` and ``host/renew`` of one Runtime. ``tls``: needed for https, see `tls.runtime_tls`."""

    def __init__(
        self, base_url: str, tls: ssl.SSLContext | None, *, timeout_seconds: float = limits.JOIN_TIMEOUT_SECONDS
    ) -> None:
        self._base = base_url.rstrip("/")
        self._timeout = timeout_seconds
        self._client = http.open_client(tls, timeout=httpx.Timeout(timeout_seconds), idle_seconds=0)

    async def join(self, request: HostJoinRequest) -> HostJoinAnswer:
        """Raises JoinRefused (400, 401: all refusals look alike) or JoinUnavailable (try again).

        Every join that succeeds moves the sandbox's epoch and so ends the host before it, this one too: renew while a
        token is held.
        """
        headers = {"Content-Type": "application/json"}
        return await self._ask(JOIN_PATH, headers, encode(request.wire()), request.join_token)

    async def renew(self, host_token: str) -> HostJoinAnswer:
        """A fresh pair of tokens of the same epoch. Raises JoinRefused (join again) or JoinUnavailable (keep what is
        held)."""
        return await self._ask(RENEW_PATH, {"Authorization": f"Bearer {host_token}"}, None, host_token)

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, path: str, headers: dict[str, str], body: bytes | None, secret: str) -> HostJoinAnswer:
        name = path.rpartition("/")[2]
        try:
            async with asyncio.timeout(self._timeout):  # httpx's own timeouts count each read anew
                answer = await http.post(self._client, self._base + path, headers=headers, body=body)
        except TimeoutError:
            raise JoinUnavailable(f"host/{name}: no whole answer within {self._timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as fault:
            raise JoinUnavailable(f"host/{name}: {http.shown(http.told(fault), secret)}") from None
        if answer.status != 200:
            code, message = answer.error()
            words = [str(answer.status), *([code] if code else []), *([message] if message else [])]
            text = f"host/{name} was answered {http.shown(': '.join(words), secret)}"
            raise JoinRefused(answer.status, text) if answer.status in _REFUSED else JoinUnavailable(text)
        try:
            return HostJoinAnswer.read(answer.json())
        except ContractViolation as fault:
            raise JoinUnavailable(f"host/{name} was answered 200, but: {http.shown(str(fault), secret)}") from None
