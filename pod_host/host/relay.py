"""The host's side of the relay (``POD_HOST_EGRESS=relay``): its process, its port, its token.

The listening socket is the host's: when the relay dies another takes it over, and commands that know the port connect as
before. Tokens go to it by a socket, at each join and renewal.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pod_host import limits
from pod_host.errors import ConfigurationError
from pod_host.host.log import get_log

# -I and -S: nothing of the environment or of site-packages; the relay needs the standard library and this package.
_BOOT: Final = (
    "import sys; sys.path.append(sys.argv[3]); from pod_host.relay.main import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)
_ROOT: Final = str(Path(__file__).resolve().parents[2])
_NOBODY: Final = 65534  # when the host is root: another user than the commands'
_PACKET_BYTES: Final = 64 * 1024

log = get_log()


class Relay:
    """``proxy``: the egress proxy's URL; ``user``: what stands before the token."""

    def __init__(self, proxy: str, user: str) -> None:
        parts = urlsplit(proxy)
        self._proxy = (parts.hostname or "", parts.port or 80)
        self._user = user
        self._token: str | None = None
        self._listener: socket.socket | None = None
        self._process: _Process | None = None
        self._tried = asyncio.Event()  # the first process came up, or did not
        self._keeper: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """What commands are told, once `start` has returned: no credentials are in it."""
        assert self._listener is not None
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    async def start(self) -> None:
        """Returns once the process is there, with all its threads, or could not be started. From here on it is kept alive.
        Raises ConfigurationError when there is no loopback to listen on."""
        try:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=limits.RELAY_BACKLOG)
        except OSError as fault:
            raise ConfigurationError(
                [f"POD_HOST_EGRESS is 'relay'; 127.0.0.1 cannot be listened on: {fault}"]
            ) from None
        self._keeper = asyncio.create_task(self._keep(), name="relay")
        await self._tried.wait()

    async def stop(self) -> None:
        for task in (self._keeper, self._telling):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._process is not None:
            await self._process.end()
        if self._listener is not None:
            self._listener.close()

    def authorize(self, token: str) -> None:
        """The token of the tunnels from now on."""
        self._token = token
        if self._telling is not None:
            self._telling.cancel()  # an older one; the newest alone counts
        self._telling = asyncio.create_task(self._tell(), name="relay's token")

    async def _keep(self) -> None:
        """Start it; whenever it ends, start it again."""
        wait = limits.RELAY_BACKOFF_FIRST_SECONDS
        while True:
            began = time.monotonic()
            try:
                await self._live()
            except OSError as fault:
                log.warning("relay.failed", reason=str(fault))
                self._tried.set()
            if time.monotonic() - began >= limits.RELAY_BACKOFF_RESET_SECONDS:
                wait = limits.RELAY_BACKOFF_FIRST_SECONDS
            await asyncio.sleep(wait)
            wait = min(2 * wait, limits.RELAY_BACKOFF_MOST_SECONDS)

    async def _live(self) -> None:
        assert self._listener is not None
        process = self._process = _Process(self._listener)
        try:
            came_up = await process.ready()
            self._tried.set()
            if came_up:
                log.info("relay.started", pid=process.pid, url=self.url)
                await self._tell()
            code = await process.ended()
            log.warning("relay.died", code=code)
        finally:
            await process.end()
            self._process = None

    async def _tell(self) -> None:
        """The token and the proxy's addresses, to the process there is. It never looks a name up itself."""
        if self._token is None:
            return
        host, port = self._proxy
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as fault:
            log.warning("relay.failed", reason=f"{host} does not resolve: {fault}")
            found = []  # clients are told so, and do not wait
        addresses = list(dict.fromkeys((str(entry[4][0]), port) for entry in found))
        authorization = "Basic " + base64.b64encode(f"{self._user}:{self._token}".encode()).decode()
        if self._process is not None:
            await self._process.tell({"authorization": authorization, "addresses": addresses})


class _Process:
    """One life of the relay."""

    def __init__(self, listener: socket.socket) -> None:
        """Raises OSError."""
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            descriptors = (theirs.fileno(), listener.fileno())
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT, *map(str, descriptors), _ROOT],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=descriptors,
                    cwd="/",
                    env={"LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "2"},
                    start_new_session=True,
                )
            except BaseException:
                self._ours.close()
                raise
        self._pidfd = os.pidfd_open(self._process.pid)
        self._ours.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> bool:
        """Whether it came up. It is confined by then."""
        await self.tell({"uid": _NOBODY if os.geteuid() == 0 else None})
        try:
            async with asyncio.timeout(limits.RELAY_START_SECONDS):
                return bool(await asyncio.get_running_loop().sock_recv(self._ours, _PACKET_BYTES))
        except OSError:  # a TimeoutError is one
            return False

    async def tell(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # it is gone, and the next one is told at its start
            await asyncio.get_running_loop().sock_sendall(self._ours, json.dumps(message).encode())

    async def ended(self) -> int:
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(self._pidfd, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(self._pidfd)
        return self._process.wait()

    async def end(self) -> None:
        """Ends it, if it has not ended; any number of times."""
        if self._pidfd >= 0:
            self._process.kill()
            self._process.wait()  # after a SIGKILL, at once
            self._ours.close()
            os.close(self._pidfd)
            self._pidfd = -1
