"""The WebSocket as the channel has it: what comes is told of, and what is small leaves, in the same turn of the event loop.

websockets does what it does for anybody: the handshake, frames and their limits, pings, the closing handshake. Its queue of
messages, and the tasks at both ends of it, are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from websockets.asyncio.client import ClientConnection
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.protocol import Event, State

from pod_host.contract.encoding import Utf8

Hear: TypeAlias = Callable[[Utf8, bool], None]
"""Takes one whole message, and whether it is a text: its bytes then, of which nobody has checked that they are UTF-8."""


class Socket(ClientConnection):
    """``heard_at``: when anything came last, a frame, a ping, a pong or a piece of a large frame. ``room``: set while what is
    written does not pile up."""

    heard_at: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.room = asyncio.Event()
        self.room.set()
        self._hear: Hear = self._keep
        self._lose: Callable[[str], None] | None = None
        self._go_on: Callable[[], None] | None = None
        self._early: list[tuple[Utf8, bool]] = []  # came before there was anybody to hear it
        self._begun = bytearray()  # the message of which not all fragments are there
        self._is_text = True
        self._fault: Exception | None = None  # that broke the connection

    def listen(self, hear: Hear, lose: Callable[[str], None], go_on: Callable[[], None]) -> None:
        """Tell of what came until now and of all that comes: messages; that the connection ends, and why, as soon as that is
        known, perhaps more than once; that there is room again. None of them may raise."""
        self._hear, self._lose, self._go_on = hear, lose, go_on
        for message, is_text in self._early:
            hear(message, is_text)
        self._early.clear()
        self._look()

    @property
    def writable(self) -> bool:
        """Whether a message may leave now, by `say`."""
        return self.protocol.state is State.OPEN and self.room.is_set()

    def say(self, texts: Iterable[bytes]) -> None:
        """Text messages, in one write. Never while a fragmented one is on its way."""
        for text in texts:
            self.protocol.send_text(text)
        self.transport.write(b"".join(self.protocol.data_to_send()))

    # --- What asyncio and websockets call ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.heard_at = self.loop.time()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.loop.time()
        super().data_received(data)
        self._look()

    def process_event(self, event: Event) -> None:
        if not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
            super().process_event(event)
            return
        if event.opcode is not Opcode.CONT:
            self._is_text = event.opcode is Opcode.TEXT
        message: Utf8 = event.data
        if self._begun or not event.fin:
            self._begun += message
            if not event.fin:
                return
            message, self._begun = self._begun, bytearray()
        self._hear(message, self._is_text)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.room.clear()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.room.set()
        if self._go_on is not None:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._fault = exc
        self._look()

    # --- Inside ----------------------------------------------------------------------------------------------------------

    def _keep(self, message: Utf8, is_text: bool) -> None:
        self._early.append((message, is_text))

    def _look(self) -> None:
        if self._lose is not None and self.protocol.state is not State.OPEN:
            self._lose(self._why())

    def _why(self) -> str:
        """The peer's own words and its code; else what broke."""
        for close in (self.protocol.close_rcvd, self.protocol.close_sent):
            if close is not None:
                return f"{close.reason} ({close.code})" if close.reason else f"closed with code {close.code}"
        fault = self._fault or self.protocol.close_exc.__cause__
        return f"the connection was lost ({fault or 'no closing handshake'})"
