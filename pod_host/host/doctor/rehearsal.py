"""A stage for clients: an egress proxy on loopback that wants a token and ends TLS, as the Runtime's does for some hosts.

Its certificates are files of this package. Their key is no secret and vouches for nothing: the CA is in no bundle but the
one that a rehearsal makes for itself, and is held to names below ``doctor.invalid``.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CA: Final = Path(__file__).with_name("rehearsal-ca.pem")
_SERVER: Final = Path(__file__).with_name("rehearsal-server.pem")
USER: Final = "nylorun"
# Decoded once too often it is another; each of its characters means something in a URL.
TOKEN: Final = "ey.J%41+b/c=d@e-_~"
_SECONDS: Final = 20.0


@dataclass
class Seen:
    """Of one host name: what its client got to."""

    asked: bool = False
    authenticated: bool = False
    secured: bool = False
    requested: bool = False


@dataclass
class Stage:
    """``seen``: by the first part of the host's name."""

    seen: dict[str, Seen] = field(default_factory=dict)
    address: tuple[str, int] = ("127.0.0.1", 0)
    _server: asyncio.Server | None = None

    async def open(self) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.set_alpn_protocols(["http/1.1"])
        self._tls.load_cert_chain(_SERVER)
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                await self._play(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whatever the client did, what it got to is noted
        finally:
            writer.close()

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *headers = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, _, rest = line.partition(" ")
        seen = self.seen.setdefault(rest.partition(".")[0], Seen())
        seen.asked |= method == "CONNECT"
        if method != "CONNECT":
            writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        wanted = base64.b64encode(f"{USER}:{TOKEN}".encode()).decode()
        fields = [(name.lower(), value.split()) for name, _, value in (header.partition(":") for header in headers)]
        if ("proxy-authorization", ["Basic", wanted]) not in fields:
            writer.write(
                b'HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm="egress"\r\n'
                b"Content-Length: 0\r\nConnection: close\r\n\r\n"
            )
            return
        seen.authenticated = True
        writer.write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
        await writer.start_tls(self._tls)
        seen.secured = True
        await reader.readuntil(b"\r\n\r\n")
        seen.requested = True
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
