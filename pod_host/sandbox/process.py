"""The worker as the host sees it: one process, one socket, and what is left when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, cast

from pod_host.sandbox import cgroup
from pod_host.sandbox.frames import BrokenFrame, Decoder, Header, encode
from pod_host.sandbox.launch import Launched
from pod_host.sandbox.requests import TRACEPARENT
from pod_host.sandbox.tags import Sweep, TagSpace, look, processes_of_session, signal_all

_PIECE: Final = 256 * 1024
_SWEEP_SECONDS: Final = 0.002
_SWEEP_MOST_SECONDS: Final = 10.0


class Connection(asyncio.BufferedProtocol):
    """Frames over the socket. ``received`` for each one; ``lost`` once. Bodies are read into their place, and long
    ones leave in pieces, so that neither holds the loop up."""

    def __init__(self, received: Callable[[Header, memoryview], None], lost: Callable[[str], None]) -> None:
        self._received = received
        self._lost = lost
        self._decoder = Decoder()
        self._queue: deque[memoryview] = deque()
        self._paused = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=4 * _PIECE)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.target()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._decoder.received(nbytes)
        except BrokenFrame as error:
            self._end(f"it sent {error}")
            return
        for header, body in frames:
            self._received(header, body)

    def connection_lost(self, error: Exception | None) -> None:
        self._end("it died")

    def _end(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
            self._lost(reason)

    def send(self, header: Header, body: bytes = b"") -> None:
        for piece in encode(header, body):
            view = memoryview(piece)
            self._queue.extend(view[start : start + _PIECE] for start in range(0, len(view), _PIECE))
        self._pump()

    def close(self) -> None:
        """Ends the socket: the worker then kills what it started, and exits."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def _pump(self) -> None:
        while self._queue and not self._paused and self._transport is not None:
            self._transport.write(self._queue.popleft())


class WorkerProcess:
    """One worker from its start to the end of all it started."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self.connection = connection
        self.space: TagSpace | None = None  # known from the worker's hello on
        self._said: Mapping[str, str] = {}  # the environment of the latest call that had one
        self.leaf: str | None = None  # likewise: the cgroup of its commands, where they have one

    @classmethod
    async def start(
        cls,
        launched: Launched,
        settings: Header,
        received: Callable[[Header, memoryview], None],
        lost: Callable[[str], None],
    ) -> WorkerProcess:
        """Sends a worker that was launched its settings, at once: with them its work begins, and ours can go on beside it."""
        connection = Connection(received, lost)
        process, ours = launched.take()
        with contextlib.suppress(OSError):  # it died: ``lost`` hears of it
            ours.sendall(b"".join(encode(settings)))
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
        except BaseException:  # a cancelled start leaves no process
            ours.close()
            process.kill()
            process.wait()
            raise
        return cls(process, connection)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, header: Header, body: bytes = b"") -> None:
        """One call, or what there is to say of one; takes the header over. An environment is said once for all calls in a
        row that have it."""
        if "environment" in header:
            environment = header.pop("environment")
            header["traceparent"] = traceparent = environment.get(TRACEPARENT)
            if traceparent is not None:
                environment = {name: value for name, value in environment.items() if name != TRACEPARENT}
            if environment is not self._said and environment != self._said:
                self._said = environment
                header["environment"] = dict(environment)
        self.connection.send(header, body)

    async def ended(self) -> None:
        """Returns when the process has."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def settle() -> None:
            if not future.done():
                future.set_result(None)

        loop.add_reader(self._pidfd, settle)
        try:
            await future
        finally:
            loop.remove_reader(self._pidfd)

    async def end(self, patience_seconds: float) -> None:
        """Ends the worker and everything it left: the socket first, SIGKILL after ``patience_seconds``."""
        self.connection.close()
        try:
            async with asyncio.timeout(patience_seconds):
                await self.ended()
        except TimeoutError:
            self._process.kill()
            await self.ended()
        self._process.wait()
        os.close(self._pidfd)
        await self._end_leftovers()

    async def _end_leftovers(self) -> None:
        """Kills and reaps what the worker did not. We are the subreaper above it: all that lived came to us."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _SWEEP_MOST_SECONDS
        sweep = Sweep()
        over = False
        if self.leaf is not None:
            cgroup.kill(self.leaf)
        while not over and loop.time() < end:
            living, vanished = 0, False
            if self.space is not None:
                living, vanished = signal_all(self.space, os.getpid(), lambda _: True, signal.SIGKILL)
                for process in look(self.space, os.getpid()).found:
                    living += not _reap(process.pid)
            # A zygote that had not marked itself yet is still in the worker's session.
            for pid in processes_of_session(self._process.pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                living += not _reap(pid)
            over = sweep.saw(living, vanished)
            await asyncio.sleep(_SWEEP_SECONDS)
        if self.leaf is not None:
            cgroup.dissolve(self.leaf)


def _reap(pid: int) -> bool:
    """Whether there was a child of ours to reap, and it is reaped."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False
