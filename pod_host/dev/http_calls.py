"""HTTP tools as the Tool Gate calls them (Harness API v5, section 5): the outcome of one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httpx
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import decode, encode
from pod_host.dev.credentials import CredentialMissing, Credentials, redacted
from pod_host.errors import ContractViolation, PodHostError

CONNECT_SECONDS: Final = 10.0
TIMEOUT_MS: Final = 60_000  # for a tool that sets none
SHOWN_CHARACTERS: Final = 2000  # of a refusal's body


class HttpLost(PodHostError):
    """The request was sent and its answer was lost: the call may have run."""

    code = "http.lost"


class _Failed(PodHostError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class HttpCalls:
    """``environment``: where credentials come from. ``most_bytes``: of one answer."""

    def __init__(self, environment: Mapping[str, str], most_bytes: int) -> None:
        self._environment = environment
        self._most_bytes = most_bytes
        self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False)

    async def call(self, tool: JsonObject, arguments: Json, key: str, traceparent: str | None) -> JsonObject:
        """A tool outcome's value, without the credentials that were sent. Raises HttpLost."""
        credentials = Credentials(self._environment)
        server = httpx.URL(tool["http"]["url"]).host
        try:
            output = await self._output(tool, arguments, key, traceparent, credentials)
            value: JsonObject = {"kind": "completed", "output": output}
        except _Failed as failed:
            value = {"kind": "failed", "code": failed.code, "message": str(failed), "server": server}
        except HttpLost as lost:
            raise HttpLost(str(redacted(str(lost), credentials.sent)[0])) from None
        value, count = redacted(value, credentials.sent)
        return {**value, "redacted": count} if count else value

    async def stop(self) -> None:
        await self._client.aclose()

    async def _output(
        self, tool: JsonObject, arguments: Json, key: str, traceparent: str | None, credentials: Credentials
    ) -> Json:
        http = tool["http"]
        try:
            headers = {**credentials.filled(http.get("headers")), "Idempotency-Key": key}
            if http.get("credential"):
                headers["Authorization"] = f"Bearer {credentials.value(http['credential'])}"
        except CredentialMissing as missing:
            raise _Failed("http.credential", str(missing)) from None
        headers |= {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if traceparent:
            headers["traceparent"] = traceparent
        request = self._client.build_request(
            http.get("method", "POST"),
            http["url"],
            headers=headers,
            content=encode(arguments),
            timeout=httpx.Timeout(http.get("timeoutMs", TIMEOUT_MS) / 1000, connect=CONNECT_SECONDS),
        )
        status, content = await self._sent(request)
        if status == 401:
            raise _Failed("credential_rejected", "The server returned 401")
        if not 200 <= status < 300:
            shown = content.decode("utf-8", "replace")[:SHOWN_CHARACTERS]
            raise _Failed("http.status", f"The server returned {status}: {shown}")
        return _fitting(_read(content), tool.get("outputSchema"))

    async def _sent(self, request: httpx.Request) -> tuple[int, bytes]:
        """Raises HttpLost, or _Failed where the call did not run or its answer cannot be had."""
        try:
            response = await self._client.send(request, stream=True)
            try:
                content = bytearray()
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > self._most_bytes:
                        raise _Failed("http.too-large", f"The answer is larger than {self._most_bytes} bytes")
                return response.status_code, bytes(content)
            finally:
                await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as fault:
            raise _Failed("http.unreachable", f"The server cannot be reached: {fault}") from None
        except httpx.TimeoutException:
            raise _Failed("http.timeout", "The server did not answer in time; the call may have run") from None
        except httpx.TransportError as fault:
            raise HttpLost(f"The answer was lost, so the call may have run: {fault}") from None


def _read(content: bytes) -> Json:
    """JSON, else a text; null for an empty body."""
    if not content.strip():
        return None
    try:
        return decode(content)
    except ContractViolation:
        pass
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _Failed("http.invalid-response", "The answer is neither JSON nor text") from None


def _fitting(output: Json, schema: JsonObject | None) -> Json:
    if schema is None:
        return output
    try:
        fault = next(Draft202012Validator(schema, registry=Registry()).iter_errors(output), None)
    except Unresolvable as missing:
        raise _Failed("tool.invalid-output", f"The tool's outputSchema refers to {missing.ref}") from None
    if fault is not None:
        place = "/".join(str(part) for part in fault.absolute_path)
        raise _Failed(
            "tool.invalid-output", f"The answer does not fit the tool's outputSchema: /{place}: {fault.message}"
        )
    return output
