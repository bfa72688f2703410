"""Frames on their way out. One task writes them, so that the fragments of two never mix.

A WebSocket message cannot be interrupted by another. So small frames (a lease.renew, an answer) go before large ones that
still wait, and a large one leaves in fragments with the event loop, pings and reads in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.contract.encoding import encode, encode_in_pieces, is_small
from pod_host.errors import RuntimeRefusal


@dataclass(eq=False)
class Outgoing:
    """One frame's JSON text in pieces, and whether its first byte has left."""

    pieces: list[bytes]
    started: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


async def prepare(frame: JsonObject, what: str) -> Outgoing:
    """Encode ``frame``, a large one in pieces with the event loop in between. Raises RuntimeRefusal ``limit_exceeded``
    when it passes FRAME_BYTES: the peer would drop the connection. Raises ContractViolation for what is not JSON."""
    if is_small(frame, limits.LOOP_PIECE_BYTES):
        return Outgoing([encode(frame)])
    pieces: list[bytes] = []
    held = bytearray()
    size = 0
    for piece in encode_in_pieces(frame, limits.LOOP_PIECE_BYTES):
        size += len(piece)
        if size > limits.FRAME_BYTES:
            raise RuntimeRefusal("limit_exceeded", f"{what} passes HARNESS_MAX_PAYLOAD: {limits.FRAME_BYTES} bytes")
        held += piece
        if len(held) >= limits.LOOP_PIECE_BYTES:
            pieces.append(bytes(held))
            held.clear()
            await asyncio.sleep(0)
    pieces.append(bytes(held))
    return Outgoing(pieces)


class Outbox:
    """The order in which frames leave: small before large, each kind in the order it came."""

    def __init__(self) -> None:
        self._small: deque[Outgoing] = deque()
        self._large: deque[Outgoing] = deque()
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    async def emptied(self) -> None:
        """Until all that was put has been written."""
        await self._empty.wait()

    def put(self, outgoing: Outgoing) -> None:
        (self._small if outgoing.size <= limits.FRAGMENT_BYTES else self._large).append(outgoing)
        self._filled.set()
        self._empty.clear()

    def withdraw(self, outgoing: Outgoing) -> bool:
        """Take back what has not begun to leave; whether that was so."""
        if outgoing.started:
            return False
        (self._small if outgoing in self._small else self._large).remove(outgoing)
        return True

    async def write_to(self, socket: ClientConnection) -> None:
        """Write what comes, for good. Raises ConnectionClosed."""
        while True:
            await self._filled.wait()
            while queue := self._small or self._large:
                outgoing = queue.popleft()
                outgoing.started = True
                if outgoing.size <= limits.FRAGMENT_BYTES:
                    await socket.send(b"".join(outgoing.pieces), text=True)
                else:
                    await socket.send(_fragments(outgoing.pieces), text=True)
            self._filled.clear()
            self._empty.set()


async def _fragments(pieces: list[bytes]) -> AsyncIterator[memoryview]:
    """64 KiB at a time. The pause lets the loop turn: a socket that takes all at once never makes the writer wait."""
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), limits.FRAGMENT_BYTES):
            yield view[start : start + limits.FRAGMENT_BYTES]
            await asyncio.sleep(0)
