"""Room for large answers: how many bytes of them a host holds at once, however many calls are answered together.

An answer takes its room once, whole, before more than its beginning is read: until then it waits in its socket. Who holds
room never waits for more of it, so nobody waits for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class Room:
    """``most``: bytes. First come, first served: one that needs much is not passed by those that need little."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def claim(self) -> Claim:
        return Claim(self)

    async def take(self, size: int) -> None:
        """Wait until there are ``size`` bytes, at most ``most``: then they are the caller's."""
        if not self._waiting and self.held + size <= self.most:
            self.held += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():  # never had its turn; `_serve` passes it
                self._serve()
            else:
                self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        self.held -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                if self.held + size > self.most:
                    return
                self.held += size
                turn.set_result(None)
            self._waiting.popleft()


class Claim:
    """What one answer holds of a room, until the ``async with`` block of its reader ends: its value is as large."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0

    async def take(self, size: int) -> None:
        """Wait for ``size`` bytes in the stead of those held now; all there are where there are fewer."""
        self.give_back()
        size = min(size, self._room.most)
        await self._room.take(size)
        self._size = size

    def give_back(self) -> None:
        """Idempotent."""
        size, self._size = self._size, 0
        if size:
            self._room.give_back(size)

    async def __aenter__(self) -> Claim:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()
