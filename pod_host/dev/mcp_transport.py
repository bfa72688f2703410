"""HTTP below an MCP connection: what became of each request, which the protocol's own errors do not tell apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
from mcp.client import Transport
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from pod_host.contract.base import JsonObject

CONNECT_SECONDS: Final = 10.0
CALL_SECONDS: Final = 600.0  # the gate's own patience with one call
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_GONE: Final = 599  # a status of ours: no answer came


@dataclass
class Attempt:
    """What HTTP saw of one MCP request. ``begun``: it came to HTTP at all. ``status``: of the last answer, when it was a
    refusal. ``failed``: set with it, or when no answer came."""

    begun: bool = False
    status: int | None = None
    fault: Exception | None = None
    too_large: bool = False
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def never_sent(self) -> bool:
        return isinstance(self.fault, _NEVER_SENT)

    def refused(self, status: int) -> None:
        self.status = status
        self.failed.set()

    def lost(self, fault: Exception) -> None:
        self.fault = fault
        self.failed.set()


ATTEMPT: ContextVar[Attempt | None] = ContextVar("mcp_attempt", default=None)
"""Whoever makes an MCP request sets it; the request's HTTP runs in a copy of that context."""


def open_transport(server: JsonObject, headers: Mapping[str, str], most_bytes: int) -> Transport:
    """The transport that a declared server names. An answer of more than ``most_bytes`` is given up."""

    def client(
        headers: dict[str, str] | None = None, timeout: object = None, auth: object = None
    ) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=_Watched(most_bytes),
            headers={**sent, **(headers or {})},
            timeout=httpx2.Timeout(CALL_SECONDS, connect=CONNECT_SECONDS),
            trust_env=False,
        )

    sent = {"Accept-Encoding": "identity", **headers}
    if server.get("type") == "sse":
        return sse_client(str(server["url"]), httpx_client_factory=client)
    return _streamable(str(server["url"]), client())


@asynccontextmanager
async def _streamable(url: str, client: httpx2.AsyncClient) -> AsyncIterator[Any]:
    """The library leaves a client that it was given open."""
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=None) as streams:
        yield streams


class _Watched(httpx2.AsyncBaseTransport):
    """Notes what happens to a request in its `Attempt`. A lost request is answered with a status of ours, since a fault
    would end the whole connection, and all calls on it."""

    def __init__(self, most_bytes: int) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self._most_bytes = most_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        attempt = ATTEMPT.get() or Attempt()
        attempt.begun = True
        try:
            response = await self._inner.handle_async_request(request)
            if response.status_code >= 400:
                attempt.refused(response.status_code)
            if request.method != "POST":
                return response
            body = _Bounded(response.stream, self._most_bytes, attempt)
            if "text/event-stream" in response.headers.get("content-type", ""):
                return httpx2.Response(response.status_code, headers=response.headers, stream=body)
            try:
                content = b"".join([chunk async for chunk in body])
            finally:
                await response.aclose()
            return httpx2.Response(response.status_code, headers=response.headers, content=content)
        except httpx2.TransportError as fault:
            attempt.lost(fault)
            return httpx2.Response(_GONE)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(
        self, inner: httpx2.AsyncByteStream | httpx2.SyncByteStream, most_bytes: int, attempt: Attempt
    ) -> None:
        self._inner = inner
        self._left = most_bytes
        self._attempt = attempt

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._inner, httpx2.AsyncByteStream)
        try:
            async for chunk in self._inner:
                self._left -= len(chunk)
                if self._left < 0:
                    self._attempt.too_large = True
                    raise httpx2.ReadError("the answer is too large")
                yield chunk
        except httpx2.TransportError as fault:
            self._attempt.lost(fault)
            raise

    async def aclose(self) -> None:
        assert isinstance(self._inner, httpx2.AsyncByteStream)
        await self._inner.aclose()
