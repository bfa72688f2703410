"""MCP servers as the Tool Gate reaches them (Harness API v5, section 5): a connection for each session and server, opened
when it is needed, kept, and closed when nobody has used it for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
import mcp_types
from mcp import Client, MCPError
from mcp.client.session import ClientSession
from pydantic import RootModel, ValidationError

from pod_host import __version__
from pod_host.contract.base import JsonObject
from pod_host.dev.credentials import CredentialMissing, Credentials, redacted
from pod_host.dev.mcp_transport import ATTEMPT, CALL_SECONDS, Attempt, open_transport
from pod_host.errors import PodHostError

IDLE_SECONDS: Final = 15 * 60.0
OPEN_SECONDS: Final = 30.0  # to connect and to agree on a version
CLOSE_SECONDS: Final = 2.0
IDEMPOTENCY_KEY: Final = "nylorun/idempotency-key"  # in _meta of a tools/call
_TOOL_MEMBERS: Final = ("name", "description", "inputSchema", "outputSchema", "annotations")
_NO_ANSWER: Final = frozenset({mcp_types.CONNECTION_CLOSED, mcp_types.REQUEST_TIMEOUT})
_FAULTS: Final = (MCPError, ValidationError, RuntimeError, anyio.ClosedResourceError, anyio.BrokenResourceError)
_BY_STATUS: Final = {401: "credential_rejected", 403: "mcp.forbidden"}
T = TypeVar("T")
Ask = Callable[[ClientSession], Coroutine[Any, Any, T]]


class _Raw(RootModel[dict[str, Any]]):
    """A result as it came."""


class McpFailed(PodHostError):
    """``sent``: whether the request reached the server, as far as is known. ``number``: the server's own error code."""

    def __init__(self, code: str, message: str, *, sent: bool, number: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.sent = sent
        self.number = number


@dataclass(frozen=True)
class ToolCall:
    """``key``: of the call at the gate, which the server gets too."""

    tool: str
    arguments: JsonObject
    key: str
    traceparent: str | None


class McpServers:
    """``environment``: where credentials come from. ``most_bytes``: of one answer. Whatever is answered or raised holds no
    credential that was sent."""

    def __init__(self, environment: Mapping[str, str], most_bytes: int, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._environment = environment
        self._most_bytes = most_bytes
        self._idle_seconds = idle_seconds
        self._connections: dict[tuple[str, str], _Connection] = {}

    async def connect(self, session_id: str, server: JsonObject) -> tuple[JsonObject | None, int]:
        """``{instructions}`` or None, as the gate answers it, and how many values were redacted. Raises McpFailed."""

        async def instructions(session: ClientSession) -> JsonObject | None:
            return {"instructions": session.instructions} if session.instructions else None

        return await self._ask(session_id, server, instructions)

    async def list(self, session_id: str, server: JsonObject, cursor: str | None) -> tuple[JsonObject, int]:
        """One page: ``{tools, nextCursor?}``, likewise."""

        async def page(session: ClientSession) -> JsonObject:
            params = mcp_types.PaginatedRequestParams(cursor=cursor) if cursor else None
            listed = await session.list_tools(params=params)
            tools = [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in listed.tools]
            answer: JsonObject = {
                "tools": [{name: tool[name] for name in _TOOL_MEMBERS if name in tool} for tool in tools]
            }
            return {**answer, "nextCursor": listed.next_cursor} if listed.next_cursor else answer

        return await self._ask(session_id, server, page)

    async def call(self, session_id: str, server: JsonObject, call: ToolCall) -> tuple[JsonObject, int]:
        """The CallToolResult as the server gave it, likewise."""
        meta: JsonObject = {IDEMPOTENCY_KEY: call.key}
        if call.traceparent:
            meta["traceparent"] = call.traceparent
        request = mcp_types.CallToolRequest.model_validate(
            {"params": {"name": call.tool, "arguments": call.arguments, "_meta": meta}}
        )

        async def send(session: ClientSession) -> JsonObject:
            result = (await session.send_request(request, _Raw)).root
            if result.get("resultType") not in (None, "complete"):
                raise McpFailed("mcp.error", f"{call.tool} asks for more input, which nobody gives here", sent=True)
            return result

        return await self._ask(session_id, server, send)

    async def close(self, session_id: str, name: str) -> None:
        connection = self._connections.pop((session_id, name), None)
        if connection is not None:
            await connection.close()

    async def stop(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections))

    # --- Inside ----------------------------------------------------------------------------------------------------------

    async def _ask(self, session_id: str, server: JsonObject, ask: Ask[T]) -> tuple[T, int]:
        """On the connection that is there; on a new one when the server does not know that any more, or is not reached on
        it: either way nothing ran."""
        key = (session_id, str(server["name"]))
        connection = self._connections.get(key)
        was_open = connection is not None and connection.usable
        if connection is None or not was_open:
            connection = self._connections[key] = self._open(server)
        try:
            answer = await connection.ask(ask)
        except McpFailed as failed:
            if not was_open or failed.sent or failed.code in _BY_STATUS.values():
                raise _shown(failed, connection.secrets) from None
            await self.close(*key)
            connection = self._connections[key] = self._open(server)
            try:
                answer = await connection.ask(ask)
            except McpFailed as again:
                raise _shown(again, connection.secrets) from None
        return redacted(answer, connection.secrets)

    def _open(self, server: JsonObject) -> _Connection:
        credentials = Credentials(self._environment)
        try:
            headers = credentials.filled(server.get("headers"))
        except CredentialMissing as missing:
            message = f"MCP authorization refused: {missing}"
            raise McpFailed("credential_rejected", message, sent=False) from None
        return _Connection(server, headers, credentials.sent, self._most_bytes, self._idle_seconds)


class _Connection:
    """One MCP session. A task of its own holds it: what opens it must also close it."""

    def __init__(
        self, server: JsonObject, headers: Mapping[str, str], secrets: set[str], most_bytes: int, idle_seconds: float
    ) -> None:
        self.secrets = frozenset(secrets)
        self._name = str(server["name"])
        self._opening = Attempt()
        self._one_stream = server.get("type") == "sse"  # a fault of one request ends all
        self._broken = False
        self._closing = asyncio.Event()
        self._used = asyncio.Event()
        self._asking = 0
        self._ready: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._holding = asyncio.create_task(self._hold(open_transport(server, headers, most_bytes), idle_seconds))
        self._holding.add_done_callback(lambda task: task.cancelled() or task.exception())  # whether or not one asks

    @property
    def usable(self) -> bool:
        return not (self._broken or self._holding.done() or self._closing.is_set())

    async def ask(self, ask: Ask[T]) -> T:
        """Raises McpFailed."""
        self._asking += 1
        try:
            return await self._ask(await self._session(), ask)
        finally:
            self._asking -= 1
            self._used.set()
            if self._broken and not self._asking:
                self._closing.set()

    async def close(self) -> None:
        self._closing.set()
        await asyncio.wait({self._holding}, timeout=CLOSE_SECONDS)
        self._holding.cancel()
        await asyncio.gather(self._holding, return_exceptions=True)

    async def _session(self) -> ClientSession:
        waited: set[asyncio.Future[Any]] = {self._ready, self._holding}
        if self._one_stream:  # it would go on waiting for an answer to a request that was refused
            waited.add(asyncio.ensure_future(self._opening.failed.wait()))
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        for wait in waited - {self._ready, self._holding}:
            wait.cancel()
        if self._ready.done():
            return self._ready.result()
        if not self._holding.done():
            self._holding.cancel()
            await asyncio.wait({self._holding})
        fault = None if self._holding.cancelled() else self._holding.exception()
        raise self._failed(self._opening, fault, before=True)

    async def _ask(self, session: ClientSession, ask: Ask[T]) -> T:
        attempt = Attempt()
        ATTEMPT.set(attempt)
        asking = asyncio.create_task(ask(session))
        failing = asyncio.create_task(attempt.failed.wait())
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await asyncio.wait({asking, failing, self._holding}, return_when=asyncio.FIRST_COMPLETED)
                if attempt.failed.is_set() and not self._one_stream:  # the protocol's own word of it comes
                    await asyncio.wait({asking, self._holding}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise self._failed(attempt, None)
        except TimeoutError:
            raise self._failed(attempt, None) from None
        except _FAULTS as fault:
            raise self._failed(attempt, fault) from None
        finally:
            failing.cancel()
            asking.cancel()  # the server is told that nobody waits any more
            await asyncio.gather(asking, failing, return_exceptions=True)

    async def _hold(self, transport: Any, idle_seconds: float) -> None:
        ATTEMPT.set(self._opening)
        info = mcp_types.Implementation(name="pod-host-dev", version=__version__)
        mode = "legacy" if self._one_stream else "auto"  # the older transport has the older handshake alone
        client = Client(transport, cache=None, client_info=info, mode=mode)
        async with asyncio.timeout(OPEN_SECONDS) as opening, client:
            opening.reschedule(None)
            self._ready.set_result(client.session)
            await self._until_idle(idle_seconds)

    async def _until_idle(self, seconds: float) -> None:
        """Until nobody has asked for so long, or it is to be closed."""
        while not self._closing.is_set():
            self._used.clear()
            closing, used = (asyncio.create_task(event.wait()) for event in (self._closing, self._used))
            try:
                done, _ = await asyncio.wait({closing, used}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                closing.cancel()
                used.cancel()
            if not done and not self._asking:
                self._closing.set()

    def _failed(self, attempt: Attempt, fault: BaseException | None, *, before: bool = False) -> McpFailed:
        """What went wrong, as the gate tells it. ``before``: the connection was not there yet, so nothing was asked."""
        at = f"MCP server {self._name}"
        no_answer = isinstance(fault, MCPError) and fault.code in _NO_ANSWER
        self._broken |= self._one_stream and (attempt.failed.is_set() or no_answer)
        if no_answer and not attempt.begun:
            return McpFailed("mcp.unreachable", f"{at} cannot be reached: the connection is gone", sent=False)
        if attempt.too_large:
            return McpFailed("mcp.too-large", f"{at}: the answer is too large", sent=True)
        if attempt.status in _BY_STATUS:
            return McpFailed(_BY_STATUS[attempt.status], f"MCP server returned {attempt.status}", sent=False)
        if attempt.never_sent:
            return McpFailed("mcp.unreachable", f"{at} cannot be reached: {_told(attempt.fault)}", sent=False)
        if attempt.fault is not None and not before:
            return McpFailed("mcp.lost", f"{at}: the answer was lost: {_told(attempt.fault)}", sent=True)
        if attempt.status == 404:
            return McpFailed("mcp.status", f"MCP server returned {attempt.status}", sent=False)
        if attempt.status is not None and not _is_own_error(fault):
            return McpFailed("mcp.status", f"MCP server returned {attempt.status}", sent=not before)
        if before:
            told = _told(fault) if fault else "it did not answer in time"
            return McpFailed("mcp.unreachable", f"{at} cannot be reached: {told}", sent=False)
        if isinstance(fault, MCPError) and not no_answer:
            return McpFailed("mcp.error", f"{at}: {fault.message}", sent=True, number=fault.code)
        if isinstance(fault, ValidationError):
            return McpFailed("mcp.error", f"{at}: its answer is not what MCP says", sent=True)
        return McpFailed("mcp.lost", f"{at}: the answer was lost", sent=True)


def _is_own_error(fault: BaseException | None) -> bool:
    """Whether the server itself wrote the error; a status without one is told in words of the library's own."""
    return isinstance(fault, MCPError) and fault.message != "Server returned an error response"


def _told(fault: BaseException | None) -> str:
    """A fault in one line; of a group, its first."""
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    if isinstance(fault, TimeoutError):
        return "it did not answer in time"
    return f"{fault}" or type(fault).__name__


def _shown(failed: McpFailed, secrets: frozenset[str]) -> McpFailed:
    message, _ = redacted(failed.message, secrets)
    return McpFailed(failed.code, message, sent=failed.sent, number=failed.number)
