"""Between the host and the harness listener: a relay of bytes that can cut a connection within a frame, or pass nothing on
while every socket stays open. What it did pass on, the witness reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal

from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from pod_host.contract.base import JsonObject
from pod_host.contract.encoding import decode
from tests.endurance.between import Between
from tests.endurance.witness import Conversation, Witness

Direction = Literal["to core", "to host"]
PIECE: Final = 64 * 1024


class Wire(Between):
    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness
        self._cuts: dict[Direction, list[int]] = {"to core": [], "to host": []}
        self._flows = asyncio.Event()
        self._flows.set()

    def cut(self, direction: Direction, pieces: int) -> None:
        """After so many more pieces, half of one is passed on and the connection is gone."""
        self._cuts[direction].append(pieces)

    async def stall(self, seconds: float) -> None:
        self._flows.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._flows.set()

    def heal(self) -> None:
        for cuts in self._cuts.values():
            cuts.clear()
        self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        core_reader, core_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        talk = Conversation(self._witness)
        ways = [
            asyncio.create_task(self._pass(reader, core_writer, "to core", Frames(Side.SERVER, talk.from_host))),
            asyncio.create_task(self._pass(core_reader, writer, "to host", Frames(Side.CLIENT, talk.from_core))),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            core_writer.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction, frames: Frames
    ) -> None:
        while piece := await reader.read(PIECE):
            await self._flows.wait()
            whole = not self._cuts_now(direction)
            passed = piece if whole else piece[: len(piece) // 2]
            writer.write(passed)
            await writer.drain()
            frames.passed(passed)
            if not whole:
                raise ConnectionResetError("cut within a frame")
        with suppress(OSError):
            writer.write_eof()

    def _cuts_now(self, direction: Direction) -> bool:
        cuts = self._cuts[direction]
        if not cuts:
            return False
        cuts[0] -= 1
        if cuts[0] > 0:
            return False
        cuts.pop(0)
        return True


class Frames:
    """The JSON frames in one direction of a WebSocket; of any other connection, none."""

    def __init__(self, side: Side, tell: Callable[[JsonObject], None]) -> None:
        self._tell = tell
        self._protocol = Protocol(side, state=State.OPEN, max_size=None)
        self._head: bytes | None = b""
        self._reads = False
        self._text = bytearray()

    def passed(self, data: bytes) -> None:
        if self._head is not None:
            head, found, data = (self._head + data).partition(b"\r\n\r\n")
            if not found:
                self._head = head
                return
            self._head = None
            self._reads = b"upgrade: websocket" in head.lower()
        if not self._reads or not data:
            return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            assert isinstance(event, Frame)
            if event.opcode in (Opcode.TEXT, Opcode.CONT):
                self._text += event.data
                if event.fin:
                    text = bytes(self._text)
                    self._text.clear()
                    self._tell(decode(text))
        self._protocol.data_to_send()  # nobody gets it: this end only listens
