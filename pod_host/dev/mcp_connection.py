"""One MCP session, held open for the Tool Gate, and what its requests' faults amount to (Harness API v5, section 5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import anyio
import mcp_types
from mcp import Client, MCPError
from mcp.client.session import ClientSession
from pydantic import ValidationError

from pod_host import __version__
from pod_host.contract.base import JsonObject
from pod_host.dev.mcp_transport import ATTEMPT, CALL_SECONDS, Attempt, open_transport
from pod_host.errors import PodHostError

OPEN_SECONDS: Final = 30.0  # to connect and to agree on a version
CLOSE_SECONDS: Final = 2.0
_FAULTS: Final = (MCPError, ValidationError, RuntimeError, anyio.ClosedResourceError, anyio.BrokenResourceError)
_NO_ANSWER: Final = frozenset({mcp_types.CONNECTION_CLOSED, mcp_types.REQUEST_TIMEOUT})
_BY_STATUS: Final = {401: "credential_rejected", 403: "mcp.forbidden"}
REFUSALS: Final = frozenset(_BY_STATUS.values())
"""Codes of a server that was reached and would not have us."""
T = TypeVar("T")
Ask = Callable[[ClientSession], Coroutine[Any, Any, T]]


class McpFailed(PodHostError):
    """``sent``: whether the request reached the server, as far as is known. ``number``: the server's own error code."""

    def __init__(self, code: str, message: str, *, sent: bool, number: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.sent = sent
        self.number = number


class Connection:
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

    @property
    def usable(self) -> bool:
        return not (self._broken or self._holding.done() or self._closing.is_set())

    def when_over(self, call: Callable[[], None]) -> None:
        def over(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                task.exception()  # whoever asked has been told
            call()

        self._holding.add_done_callback(over)

    def retire(self) -> None:
        """Take no more requests, and end once those that are there are answered."""
        self._broken = True
        if not self._asking:
            self._closing.set()

    async def ask(self, ask: Ask[T]) -> T:
        """Raises McpFailed."""
        self._asking += 1
        try:
            return await self._ask(await self._session(), ask)
        finally:
            self._asking -= 1
            self._used.set()
            if self._broken:
                self.retire()

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
