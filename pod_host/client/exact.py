"""Connections that are used again only when the answer before ended where it said it would.

An HTTP answer does not name its request: on a connection that is used again, whatever still lies there is taken for the next
one. So an answer that came twice would become another call's, and be journaled as its outcome. What comes while a connection
is idle, httpcore sees by itself; what came in one piece with the answer, it leaves in its parser. These streams say then that
the idle connection has something to read, upon which httpcore closes it.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_CHUNKS_END = b"\r\n0\r\n\r\n"


class ExactBackend(httpcore.AsyncNetworkBackend):
    """``inner``: makes the connections."""

    def __init__(self, inner: httpcore.AsyncNetworkBackend) -> None:
        self._inner = inner

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return ExactStream(await self._inner.connect_tcp(host, port, timeout, local_address, socket_options))

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None
    ) -> httpcore.AsyncNetworkStream:
        return ExactStream(await self._inner.connect_unix_socket(path, timeout, socket_options))

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class ExactStream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        self._answer = _Answer()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(max_bytes, timeout)
        self._answer.came(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._answer = _Answer()  # nothing of it is read before the whole request is written
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return ExactStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and not self._answer.exact:
            return True
        return self._inner.get_extra_info(info)


class _Answer:
    """How far one answer is. ``exact``: all of it came, and nothing more."""

    def __init__(self) -> None:
        self._head: bytes | None = b""
        self._missing: int | None = None  # of a body that tells its length; negative: so many bytes too many
        self._ends = 0  # of bodies in chunks, so far
        self._at_end = False
        self._tail = b"\r\n"  # of what came: an end may come in two pieces

    @property
    def exact(self) -> bool:
        if self._head is not None:
            return False
        return self._missing == 0 if self._missing is not None else self._at_end and self._ends == 1

    def came(self, data: bytes) -> None:
        if self._head is not None:
            head, end, data = (self._head + data).partition(_HEAD_END)
            if not end:
                self._head = head
                return
            self._head = None
            length = _LENGTH.search(head + b"\r\n")
            if length is not None:
                self._missing = int(length[1])
            elif head[9:12] == b"204":
                self._missing = 0
        if self._missing is not None:
            self._missing -= len(data)
            return
        seen = self._tail + data
        self._ends += seen.count(_CHUNKS_END)
        self._at_end = seen.endswith(_CHUNKS_END)
        self._tail = seen[1 - len(_CHUNKS_END) :]
