"""How the host is: as data, over a socket of its own, and for people (`pod-host status`).

The socket lies in the host's directory, which is hidden from commands. The kernel lets them connect to it all the same, but
not read a file there. So whoever asks sends the content of such a file first, and hears nothing without it.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from pod_host.errors import PodHostError
from pod_host.host import files
from pod_host.host.log import get_log

SOCKET: Final = "status.sock"
COOKIE: Final = "status.cookie"
_COOKIE_CHARACTERS: Final = 64
_COOKIE_SECONDS: Final = 1.0  # to send it
_ANSWER_SECONDS: Final = 5.0
_CONNECTIONS: Final = 32  # at once: a command may open as many as it likes

Phase = Literal["network gate", "worker", "joining", "connecting", "connected", "draining"]

log = get_log()


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")


class Joined(_Fact):
    """``last_renewal``: seconds since the tokens that are held came, by a join or a renewal. ``next_renewal`` and
    ``token_life``: seconds to go."""

    epoch: int
    last_renewal: float
    next_renewal: float
    token_life: float


class Connected(_Fact):
    tenant_id: str
    seconds: float


class Worker(_Fact):
    """``processes``: of commands that live. ``shares``: what their cgroup limits; empty where none is delegated. Without
    ``alive`` the rest says nothing."""

    alive: bool
    pid: int = 0
    landlock_abi: int = 0
    holds: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    processes: int = 0


class Status(_Fact):
    """A host at one moment. ``setup_note``: what the model is told of a setup that failed."""

    version: str
    sandbox_id: str
    pod_uid: str
    harness_id: str
    phase: Phase
    up_seconds: float
    joined: Joined | None
    connected: Connected | None
    runs: tuple[str, ...]
    slots: int
    worker: Worker
    setup_note: str | None

    def table(self) -> str:
        """For people."""
        rows = [
            ("host", f"pod-host {self.version}, up for {_span(self.up_seconds)}; harness {self.harness_id}"),
            ("sandbox", f"{self.sandbox_id}, pod {self.pod_uid}"),
            ("phase", self.phase),
            ("joined", self._joined()),
            ("connected", self._connected()),
            ("runs", f"{len(self.runs)} of {self.slots}{''.join(f', {run}' for run in self.runs)}"),
            ("worker", self._worker()),
        ]
        if self.worker.alive:
            shares = self.worker.shares
            rows.append(("shares", f"cgroup, {', '.join(shares)}" if shares else "none: no controller is delegated"))
        if self.setup_note is not None:
            rows.append(("setup", self.setup_note.split("\n")[0]))
        return "\n".join(f"{name:<10} {text}" for name, text in rows)

    def _joined(self) -> str:
        if self.joined is None:
            return "no"
        return (
            f"yes, epoch {self.joined.epoch}; tokens came {_span(self.joined.last_renewal)} ago and live"
            f" {_span(self.joined.token_life)} more; renewed in {_span(self.joined.next_renewal)}"
        )

    def _connected(self) -> str:
        return "no" if self.connected is None else f"for {_span(self.connected.seconds)}, {self.connected.tenant_id}"

    def _worker(self) -> str:
        if not self.worker.alive:
            return "not there"
        holds = " and ".join(self.worker.holds) or "nothing"
        return (
            f"alive, pid {self.worker.pid}, {self.worker.processes} processes of commands;"
            f" the kernel protects {holds} (Landlock ABI {self.worker.landlock_abi})"
        )


class StatusServer:
    """``ask`` tells how the host is now."""

    def __init__(self, harness_dir: Path, ask: Callable[[], Awaitable[Status]]) -> None:
        self._directory = harness_dir
        self._ask = ask
        self._cookie = secrets.token_hex(_COOKIE_CHARACTERS // 2).encode()
        self._open = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Without a directory that takes them there is no status, and a host all the same."""
        try:
            files.replace(self._directory / COOKIE, self._cookie, 0o600, durable=False)
            files.remove(self._directory / SOCKET)  # of the host before this one
            self._server = await asyncio.start_unix_server(self._serve, sock=self._listen())
        except OSError as fault:
            log.warning("status.off", reason=os.strerror(fault.errno or 0))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            with suppress(OSError):  # the volume may be gone before us
                files.remove(self._directory / SOCKET)

    def _listen(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        try:
            _at(self._directory, made.bind)
        except OSError:
            made.close()
            raise
        return made

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _CONNECTIONS and await self._knows_the_cookie(reader):
                writer.write((await self._ask()).model_dump_json(by_alias=True).encode())
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await writer.drain()
        except (OSError, TimeoutError):
            pass  # whoever asked has left, or does not read
        finally:
            self._open -= 1
            writer.close()

    async def _knows_the_cookie(self, reader: asyncio.StreamReader) -> bool:
        try:
            async with asyncio.timeout(_COOKIE_SECONDS):
                sent = await reader.readexactly(_COOKIE_CHARACTERS)
        except (asyncio.IncompleteReadError, TimeoutError):
            return False
        return hmac.compare_digest(sent, self._cookie)


class NoStatus(PodHostError):
    code = "no_status"


def read_status(harness_dir: Path) -> Status:
    """Ask the host whose directory it is. Raises NoStatus."""
    try:
        cookie = files.read_small(harness_dir / COOKIE, _COOKIE_CHARACTERS)
        with closing(socket.socket(socket.AF_UNIX)) as asking:
            asking.settimeout(_ANSWER_SECONDS)
            _at(harness_dir, asking.connect)
            asking.sendall(cookie)
            answer = b"".join(iter(lambda: asking.recv(65536), b""))
    except PermissionError:
        raise NoStatus(f"{harness_dir} is not readable: ask as the host's user") from None
    except TimeoutError:
        raise NoStatus(f"the host of {harness_dir} does not answer") from None
    except OSError:
        raise NoStatus(f"no host runs on {harness_dir}, which is POD_HOST_HARNESS_DIR") from None
    try:
        return Status.model_validate_json(answer)
    except ValidationError:
        raise NoStatus(f"the host of {harness_dir} refused to answer") from None


def _at(directory: Path, do: Callable[[str], None]) -> None:
    """``do`` with the socket's name, which may be of 107 bytes only, however long the directory's is."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        do(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.close(descriptor)


def _span(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
