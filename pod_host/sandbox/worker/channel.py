"""The worker's end of the socket to the host: frames in, frames out, neither ever blocking the loop."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from pod_host.sandbox.frames import Decoder, Header, encode
from pod_host.sandbox.worker.loop import Loop

_AT_ONCE: Final = 64  # reads, each the beginning of a frame or a piece of it


class Channel:
    """``received(header, body)`` for each frame; ``ended()`` once, when the host is gone. A broken frame is a fault of
    ours: ``BrokenFrame`` leaves the loop and ends the worker."""

    def __init__(
        self, loop: Loop, peer: socket.socket, received: Callable[[Header, memoryview], None], ended: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._socket = peer
        self._received = received
        self._ended = ended
        self._decoder = Decoder()
        self._unsent: deque[memoryview] = deque()
        peer.setblocking(False)
        loop.watch(peer.fileno(), self._readable)

    def send(self, header: Header, body: bytes = b"") -> None:
        idle = not self._unsent
        self._unsent.extend(memoryview(piece) for piece in encode(header, body))
        if idle:
            self._write()
            if self._unsent:
                self._loop.watch_both(self._socket.fileno(), self._readable, self._writable)

    def _writable(self) -> None:
        self._write()
        if not self._unsent:
            self._loop.watch_both(self._socket.fileno(), self._readable, None)

    def _write(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent[0])
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()  # the host is gone: the read side says so next

    def _readable(self) -> None:
        """All that has come, up to a measure: of many frames none waits for a round of the loop of its own."""
        for _ in range(_AT_ONCE):
            target = self._decoder.target()
            try:
                count = self._socket.recv_into(target)
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if count == 0:
                self._loop.unwatch(self._socket.fileno())
                self._ended()
                return
            for header, body in self._decoder.received(count):
                self._received(header, body)
            if count < len(target):
                return
