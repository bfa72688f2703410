"""One output stream of a command: read without ever blocking its writer, kept in bounded memory."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
from typing import Final

from pod_host import limits
from pod_host.sandbox.raw import StreamCapture
from pod_host.sandbox.worker.spool import Spool, SpoolFile

_SLACK: Final = 1024  # kept beyond what is shown, so that whoever cuts can do so at a line's end
_HALF: Final = limits.STREAM_CHARACTERS // 2 + _SLACK


class Capture:
    """Head and tail of a stream as text, and all its bytes in the spool once the text will have to be cut."""

    def __init__(self, spool: Spool, name: str) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._spool = spool
        self._name = name
        self._file: SpoolFile | None = None
        self._start = b""  # the bytes until they are too many to be shown whole: then they go to the spool
        self._head = ""
        self._tail = ""
        self._characters = 0
        self._bytes = 0

    def feed(self, piece: bytes) -> None:
        self._bytes += len(piece)
        self._keep_bytes(piece)
        if len(piece) > 2 * _HALF and len(self._head) == _HALF and piece.isascii() and not self._decoder.getstate()[0]:
            self._characters += len(piece)  # each is one; only the end can still be shown
            self._tail = piece[-_HALF:].decode("ascii")
        else:
            self._keep_text(self._decoder.decode(piece))

    def _keep_bytes(self, piece: bytes) -> None:
        if self._file is not None:
            self._file.write(piece)
        elif self._bytes <= limits.STREAM_CHARACTERS:
            self._start += piece
        else:
            self._file = self._spool.open(self._name)
            self._file.write(self._start)
            self._file.write(piece)
            self._start = b""

    def _keep_text(self, text: str) -> None:
        self._characters += len(text)
        room = _HALF - len(self._head)
        if room > 0:
            self._head += text[:room]
            text = text[room:]
        if len(text) >= _HALF:
            self._tail = text[-_HALF:]
        elif text:
            self._tail = (self._tail + text)[-_HALF:]

    def finish(self) -> StreamCapture:
        """What is told of the stream. Later bytes are not to be fed: nobody will ask for them."""
        self._keep_text(self._decoder.decode(b"", final=True))
        path = None
        if self._file is not None:
            path = self._file.close(keep=self._characters > limits.STREAM_CHARACTERS)
        omitted = self._characters - len(self._head) - len(self._tail)
        if omitted == 0:
            return StreamCapture(self._head + self._tail, "", 0, path)
        return StreamCapture(self._head, self._tail, omitted, path)


def two_pipes() -> tuple[int, int, int, int]:
    """Reading and writing end of one, then of another. Raises ``OSError`` with nothing left open."""
    first = os.pipe2(os.O_CLOEXEC)
    try:
        return *first, *os.pipe2(os.O_CLOEXEC)
    except OSError:
        for descriptor in first:
            os.close(descriptor)
        raise


NOTHING: Final = StreamCapture("")  # of a command that never ran


class Pipe:
    """The reading end of a command's pipe. ``closed`` once its last writer is gone."""

    _PIECE: Final = 256 * 1024
    _FULL: Final = 64 * 1024  # what a pipe holds that nobody has widened

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.closed = False
        self._wide = False

    def read(self) -> bytes | None:
        """The next bytes; None when there are none now; b"" at the end."""
        try:
            piece = os.read(self.descriptor, self._PIECE)
        except BlockingIOError:
            return None
        if len(piece) >= self._FULL and not self._wide:
            self._widen()
        return piece

    def _widen(self) -> None:
        """Much is coming: let more of it come at once. Not from the start: a user's pipes have a common limit."""
        self._wide = True
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, self._PIECE)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.descriptor)
