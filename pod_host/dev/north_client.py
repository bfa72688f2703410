"""A client of the embedded Runtime's own API (north): sessions, messages, events, approvals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Literal
from urllib.parse import quote

import httpx

from pod_host.contract.base import Json, JsonObject
from pod_host.errors import PodHostError

REQUEST_SECONDS: Final = 30.0  # loopback; a stream of events has no end of its own


class NorthError(PodHostError):
    """The Runtime refused a request, or did not answer it. ``status`` is HTTP's, 0 without an answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class North:
    """Use as an async context manager. Every method raises NorthError."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, trust_env=False, timeout=REQUEST_SECONDS)

    async def __aenter__(self) -> North:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def status(self) -> JsonObject:
        return await self._object("GET", "/v1/status")

    async def sessions(self) -> list[JsonObject]:
        """The oldest first."""
        answer = await self._request("GET", "/v1/sessions")
        listed: list[JsonObject] = answer["sessions"] if isinstance(answer, dict) else answer
        return listed

    async def session(self, session_id: str) -> JsonObject:
        return await self._object("GET", f"/v1/sessions/{session_id}")

    async def open_session(self) -> str:
        return str((await self._object("POST", "/v1/sessions", {}))["sessionId"])

    async def send(self, session_id: str, text: str) -> JsonObject:
        return await self._object("POST", f"/v1/sessions/{session_id}/messages", {"input": text})

    async def cancel(self, session_id: str, reason: Literal["cancel", "deadline"] = "cancel") -> None:
        await self._request("POST", f"/v1/sessions/{session_id}/cancel", {"reason": reason})

    async def decide(self, session_id: str, interaction_id: str, approved: bool) -> None:
        # An interaction's id is an effect id, which may hold slashes.
        path = f"/v1/sessions/{session_id}/interactions/{quote(interaction_id, safe='')}"
        await self._request("POST", path, {"approved": approved})

    async def events(
        self, after: int = 0, *, session_id: str | None = None, follow: bool = False
    ) -> AsyncIterator[JsonObject]:
        """Record events with a ``seq`` above ``after``, in order. With ``follow`` it goes on until the Runtime ends it."""
        path = f"/v1/sessions/{session_id}/events" if session_id else "/v1/events"
        parameters = {"after": str(after)} | ({"follow": "1"} if follow else {})
        try:
            timeout = httpx.Timeout(REQUEST_SECONDS, read=None)
            async with self._client.stream("GET", path, params=parameters, timeout=timeout) as response:
                if response.is_error:
                    await response.aread()
                    raise _refused(response)
                async for line in response.aiter_lines():
                    if line.strip():
                        yield json.loads(line)
        except httpx.HTTPError as fault:
            raise NorthError(0, "unavailable", f"the embedded Runtime does not answer: {fault}") from None

    async def _object(self, method: str, path: str, body: Json = None) -> JsonObject:
        answer: JsonObject = await self._request(method, path, body)
        return answer

    async def _request(self, method: str, path: str, body: Json = None) -> Json:
        try:
            response = await self._client.request(method, path, json=body)
        except httpx.HTTPError as fault:
            raise NorthError(0, "unavailable", f"the embedded Runtime does not answer: {fault}") from None
        if response.is_error:
            raise _refused(response)
        return response.json() if response.content else None


def _refused(response: httpx.Response) -> NorthError:
    try:
        error = response.json()["error"]
        return NorthError(response.status_code, error["code"], error["message"])
    except (ValueError, LookupError, TypeError):
        return NorthError(response.status_code, "invalid", f"the embedded Runtime answered {response.status_code}")
