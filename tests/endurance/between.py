"""What stands between the host and a listener of core."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod


class Between(ABC):
    """``upstream``: core's port on loopback, known once core runs. ``port``: ours, on which the host finds it."""

    def __init__(self) -> None:
        self.upstream = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, address: str) -> None:
        self._server = await asyncio.start_server(self._connected, address, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def connections(self) -> int:
        """That are open: the host keeps those that it may need again, and closes them when it next needs one."""
        return len(self._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # either end went, and the other's connection goes with it; or the run is over
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    @abstractmethod
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection of the host's; it is closed at the end."""
