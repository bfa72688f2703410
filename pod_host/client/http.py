"""HTTP to the Runtime: one client, straight to it (no proxy variables, no netrc), answers of bounded size."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from pod_host import __version__, limits
from pod_host.client.light import httpx
from pod_host.client.room import Claim
from pod_host.client.tls import trusting_nothing
from pod_host.client.transport import Transport
from pod_host.contract.base import Json
from pod_host.contract.encoding import decode
from pod_host.errors import ContractViolation

USER_AGENT = f"pod-host/{__version__}"
_SHOWN_CHARACTERS = 300  # of a peer's text, in an error of ours


def open_client(tls: ssl.SSLContext | None, *, timeout: httpx.Timeout, idle_seconds: float) -> httpx.AsyncClient:
    """``idle_seconds``: how long a connection is kept for the next request; 0: not at all."""
    return httpx.AsyncClient(
        transport=Transport(tls or trusting_nothing(), idle_seconds=idle_seconds),
        trust_env=False,
        timeout=timeout,
        headers={"User-Agent": USER_AGENT, "Accept": "application/json", "Accept-Encoding": "identity"},
    )


@dataclass(frozen=True)
class HttpAnswer:
    """``body`` is whole."""

    status: int
    body: bytes | bytearray

    def json(self) -> Json:
        """Raises ContractViolation."""
        return decode(self.body)

    def error(self) -> tuple[str | None, str]:
        """Code and message of a body ``{error: {code, message}}``, for people; whatever the body really is."""
        try:
            body = self.json()
        except ContractViolation:
            return None, ""
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict):
            return None, ""
        code, message = error.get("code"), error.get("message")
        return code if isinstance(code, str) else None, message if isinstance(message, str) else ""


class AnswerTooLarge(httpx.TransportError):
    """The answer passed FRAME_BYTES, more than any answer of the Runtime may hold."""


async def post(
    client: httpx.AsyncClient, url: str, *, headers: dict[str, str], body: bytes | None, claim: Claim | None = None
) -> HttpAnswer:
    """One POST. With a ``claim`` a large answer takes its room before it is read. Raises httpx.TransportError,
    httpx.InvalidURL."""
    async with client.stream("POST", url, headers=headers, content=body) as response:
        try:
            return HttpAnswer(response.status_code, await _body(response, claim))
        except BaseException:
            if claim is not None:
                claim.give_back()
            raise


async def _body(response: httpx.Response, claim: Claim | None) -> bytearray:
    loop = asyncio.get_running_loop()
    held = bytearray()
    size = _size(response)
    taken = False
    try:
        async with asyncio.timeout(None) as patience:
            async for chunk in response.aiter_bytes():
                held += chunk
                if max(len(held), size) > limits.FRAME_BYTES:
                    raise AnswerTooLarge(f"the answer is larger than {limits.FRAME_BYTES} bytes")
                if claim is not None and len(held) > limits.ANSWER_SMALL_BYTES:
                    if not taken:
                        await claim.take(size)
                        taken = True
                    patience.reschedule(loop.time() + limits.ANSWER_SILENCE_SECONDS)
    except TimeoutError:
        raise httpx.ReadTimeout("the rest of a large answer did not come") from None
    return held


def _size(response: httpx.Response) -> int:
    """Of an answer, in bytes, before it is read: what its head says, else the most that it should be."""
    told = response.headers.get("Content-Length", "")
    return int(told) if told.isascii() and told.isdigit() else limits.TOOL_ANSWER_BYTES


def told(fault: Exception) -> str:
    """What went wrong on the way, for people. The text of a local fault may quote a header, so a token: only its kind
    is told."""
    if isinstance(fault, httpx.LocalProtocolError) or not isinstance(fault, httpx.TransportError):
        return type(fault).__name__
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__


def shown(text: str, *secrets: str) -> str:
    """A peer's text in one of our errors: short, on one line, and without the secrets that it may echo."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[redacted]")
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
