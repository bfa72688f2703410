"""The egress proxy: CONNECT alone, with the egress token, to allowed public hosts (Harness API v5, section 9).

Bytes cross as they are, but for port 443 of a host that is bound to a secret: see `interception`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import logging
import re
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from pod_host.dev.authority import TokenRefused
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.definitions import Definition
from pod_host.dev.interception import Interception, SecretMissing
from pod_host.dev.listening import base_url
from pod_host.dev.record import Record
from pod_host.errors import PodHostError

log = logging.getLogger(__name__)

TUNNELS: Final = 64  # at once, of one sandbox
PORTS: Final = (443, 80)
HEAD_BYTES: Final = 16 * 1024
HEAD_SECONDS: Final = 30.0
PIECE_BYTES: Final = 64 * 1024
_ESTABLISHED: Final = b"HTTP/1.1 200 Connection Established\r\n\r\n"
_TARGET: Final = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[^:/\s\[\]]+):(\d{1,5})\Z")
_REASONS: Final = {
    400: "Bad Request",
    403: "Forbidden",
    405: "Method Not Allowed",
    407: "Proxy Authentication Required",
    429: "Too Many Requests",
    502: "Bad Gateway",
}


class EgressRefused(PodHostError):
    """A request that is not tunnelled: its status and the reason that the body tells."""

    code = "egress_refused"

    def __init__(self, status: int, reason: str, headers: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class Tokens(Protocol):
    """The part of `Sandbox` that is used here."""

    def verify_egress(self, token: str) -> object: ...


class EgressProxy:
    def __init__(
        self,
        config: RuntimeConfig,
        listener: socket.socket,
        record: Record,
        sandbox: Tokens,
        definition: Callable[[], Definition],
        interception: Interception,
    ) -> None:
        self._config = config
        self._listener = listener
        self.url = base_url(listener)
        self._record = record
        self._sandbox = sandbox
        self._definition = definition
        self._interception = interception
        self._tunnels = 0
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._client, sock=self._listener, limit=HEAD_BYTES)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    # --- One client ------------------------------------------------------------------------------------------------------

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as fault:
            log.debug("egress client: %s", fault)
        finally:
            self._clients.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            head, early = await _read_head(reader)
        try:
            host, port = self._admit(head)
            if self._tunnels >= TUNNELS:
                raise EgressRefused(429, f"{TUNNELS} tunnels are open")
            self._tunnels += 1
        except EgressRefused as refusal:
            await self._refuse(writer, head, refusal)
            return
        try:
            try:
                header = self._interception.header_of(host) if port == 443 else None
            except SecretMissing as fault:
                raise EgressRefused(502, str(fault)) from None
            if header is not None:
                await self._intercept(reader, writer, host, port, header, early)
                return
            upstream = await self._connect(host, port)
            writer.write(_ESTABLISHED)
            await writer.drain()
            upstream[1].write(early)
            await self._tunnel(reader, writer, *upstream)
        except EgressRefused as refusal:
            await self._refuse(writer, head, refusal)
        finally:
            self._tunnels -= 1

    async def _intercept(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        port: int,
        header: tuple[str, str],
        early: bytes,
    ) -> None:
        if early:  # it would be read as a part of the handshake, or lost
            raise EgressRefused(400, "nothing may be sent before the answer to CONNECT")
        addresses = await self._resolve(host, port)
        writer.write(_ESTABLISHED)
        await writer.drain()
        try:
            await writer.start_tls(self._interception.leaf(host), ssl_handshake_timeout=HEAD_SECONDS)
        except (ssl.SSLError, OSError) as fault:  # as a client that does not trust the CA ends it
            self._record.add("egress.intercept_failed", host=host, reason=str(fault))
            return
        idle = self._config.times.egress_idle
        async with self._interception.server(host, port, addresses, header, idle) as inner:
            await self._tunnel(reader, writer, *inner)

    def _admit(self, head: bytes) -> tuple[str, int]:
        """The checks before a name is resolved, in the gate's order. Raises EgressRefused."""
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        target = rest.rpartition(" ")[0]
        if method != "CONNECT":
            raise EgressRefused(405, "only CONNECT is served", ("Allow: CONNECT",))
        token = _proxy_token(lines[1:])
        try:
            if token is None:
                raise TokenRefused("a token is needed")
            self._sandbox.verify_egress(token)
        except TokenRefused as fault:
            raise EgressRefused(407, str(fault), ('Proxy-Authenticate: Basic realm="nylorun-egress"',)) from None
        found = _TARGET.match(target)
        if found is None or not 0 < int(found.group(2)) < 65536:
            raise EgressRefused(403, f"{target} is not host:port")
        host, port = found.group(1).lower().rstrip("."), int(found.group(2))
        allowed_anywhere = self._config.egress_loopback
        if port not in PORTS and not allowed_anywhere:
            raise EgressRefused(403, f"port {port} is not allowed")
        if _is_address(host):
            raise EgressRefused(403, f"{host} is an address, not a host name")
        if not _is_allowed(host, self._definition().network_allow):
            raise EgressRefused(403, f"{host} is not allowed")
        return host, port

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        addresses = await self._resolve(host, port)
        try:
            async with asyncio.timeout(self._config.times.egress_connect):
                return await _connect_any(addresses)
        except (OSError, TimeoutError):
            raise EgressRefused(502, f"{host}:{port} cannot be connected to") from None

    async def _resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        """The public addresses of a host, each with the port to connect to."""
        if host in self._config.egress_names:
            return [self._config.egress_names[host]]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._config.times.egress_connect):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError):
            raise EgressRefused(502, f"{host} does not resolve") from None
        addresses = [str(info[4][0]) for info in found]
        public = [(address, port) for address in addresses if self._may_reach(address)]
        if not public:
            raise EgressRefused(403, f"{host} is no public address")
        return public

    def _may_reach(self, address: str) -> bool:
        ip = ipaddress.ip_address(address.split("%")[0])
        mapped = getattr(ip, "ipv4_mapped", None)
        ip = mapped or ip
        return (ip.is_global and not ip.is_multicast) or (self._config.egress_loopback and ip.is_loopback)

    async def _tunnel(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        """Both ways until both are at their end, or nothing crosses for a while."""
        moved = asyncio.Event()
        ways = [
            asyncio.create_task(_pump(reader, up_writer, moved)),
            asyncio.create_task(_pump(up_reader, writer, moved)),
        ]
        idle = self._config.times.egress_idle
        try:
            while True:
                moved.clear()
                done, waiting = await asyncio.wait(ways, timeout=idle, return_when=asyncio.FIRST_EXCEPTION)
                broken = any(way.exception() is not None for way in done)
                if broken or not waiting or not moved.is_set():
                    return
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            up_writer.close()

    async def _refuse(self, writer: asyncio.StreamWriter, head: bytes, refusal: EgressRefused) -> None:
        target = head.split(b"\r\n", 1)[0].decode("latin-1")[:200]
        self._record.add("egress.refused", request=target, status=refusal.status, reason=str(refusal))
        body = f"egress-gate: {refusal}\n".encode()
        lines = [
            f"HTTP/1.1 {refusal.status} {_REASONS[refusal.status]}",
            *refusal.headers,
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()


async def _read_head(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """A request's head with its empty line, and what the client sent after it without waiting for an answer."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = await reader.read(HEAD_BYTES)
        received += piece
        if not piece:
            raise asyncio.IncompleteReadError(received, None)
        if len(received) > 2 * HEAD_BYTES:
            raise asyncio.LimitOverrunError("the head is too long", len(received))
    head, end, early = received.partition(b"\r\n\r\n")
    return head + end, early


async def _connect_any(addresses: list[tuple[str, int]]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The first address that can be connected to. Addresses, not the name: it may mean another one a moment later."""
    for address, port in addresses[:-1]:
        try:
            return await asyncio.open_connection(address, port)
        except OSError as fault:
            log.debug("%s: %s", address, fault)
    return await asyncio.open_connection(*addresses[-1])


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: asyncio.Event) -> None:
    """One way: to its end, which is passed on."""
    while piece := await reader.read(PIECE_BYTES):
        moved.set()
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:  # TLS has no half-close: the end of one way is the end of both
        writer.close()


def _proxy_token(lines: list[str]) -> str | None:
    """The token: the password of Basic, else its user name, or a Bearer."""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() != "proxy-authorization":
            continue
        scheme, _, given = value.strip().partition(" ")
        if scheme.lower() == "bearer":
            return given.strip()
        if scheme.lower() == "basic":
            try:
                user, _, password = base64.b64decode(given.strip(), validate=True).decode("latin-1").partition(":")
            except (binascii.Error, ValueError):
                return None
            return password or user
    return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        # What the resolver would take for an IPv4 address all the same: 127.1, 0x7f000001, 2130706433.
        return bool(re.fullmatch(r"(0x[0-9a-f]*|\d+)(\.(0x[0-9a-f]*|\d+)){0,3}", host))
    return True


def _is_allowed(host: str, allow: list[str]) -> bool:
    """Exact, or ``*.suffix``: any name below the suffix, not the suffix itself."""
    return any(host.endswith(entry[1:].lower()) if entry.startswith("*.") else host == entry.lower() for entry in allow)
