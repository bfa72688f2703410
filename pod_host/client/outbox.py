"""Frames on their way out: small ones at once, large ones by a task, so that the fragments of two never mix.

A WebSocket message cannot be interrupted by another. So small frames (a lease.renew, an answer) go before large ones that
still wait, and a large one leaves in fragments with the event loop, pings and reads in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pod_host import limits
from pod_host.client.socket import Socket
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
    """The order in which frames leave: small before large, each kind in the order it came. `write_large` must run."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._small: deque[Outgoing] = deque()
        self._large: deque[Outgoing] = deque()
        self._leaving = False  # a large one is on its way
        self._filled = asyncio.Event()  # with a large one
        self.moved = asyncio.Event()  # something left

    @property
    def empty(self) -> bool:
        return not (self._small or self._large or self._leaving)

    def put(self, outgoing: Outgoing, *, at_once: bool = True) -> None:
        """``at_once`` False: a small one leaves together with the next, or when this turn of the event loop is over."""
        if outgoing.size > limits.FRAGMENT_BYTES:
            self._large.append(outgoing)
            self._filled.set()
            return
        self._small.append(outgoing)
        if at_once:
            self.go_on()
        else:
            self._socket.loop.call_soon(self.go_on)

    def withdraw(self, outgoing: Outgoing) -> bool:
        """Take back what has not begun to leave; whether that was so."""
        if outgoing.started:
            return False
        (self._small if outgoing in self._small else self._large).remove(outgoing)
        return True

    def go_on(self) -> None:
        """The small ones that wait leave, in one write while they are few. To be called when the socket has room again."""
        while self._small and not self._leaving and self._socket.writable:
            texts: list[bytes] = []
            size = 0
            while self._small and size < limits.FRAGMENT_BYTES:
                outgoing = self._small.popleft()
                outgoing.started = True
                texts.append(b"".join(outgoing.pieces))
                size += outgoing.size
            self._socket.say(texts)
        self.moved.set()

    async def write_large(self) -> None:
        """Write the large ones that come, for good. Raises ConnectionClosed."""
        while True:
            await self._filled.wait()
            while self._large:
                await self._socket.room.wait()
                if self._large and self._socket.room.is_set():  # else taken back, or full again, meanwhile
                    await self._write(self._large.popleft())
            self._filled.clear()

    async def _write(self, outgoing: Outgoing) -> None:
        outgoing.started = self._leaving = True
        await self._socket.send(_fragments(outgoing.pieces), text=True)  # broken off in the middle, nothing follows it
        self._leaving = False
        self.go_on()


async def _fragments(pieces: list[bytes]) -> AsyncIterator[memoryview]:
    """64 KiB at a time. The pause lets the loop turn: a socket that takes all at once never makes the writer wait."""
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), limits.FRAGMENT_BYTES):
            yield view[start : start + limits.FRAGMENT_BYTES]
            await asyncio.sleep(0)
