"""Between the host and the gates: answers that come late, twice, or never, refusals of what stands before a gate, and
connections that break."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final, Literal

import aiohttp

from tests.endurance.between import Between

Trouble = Literal["late", "twice", "never", "swallowed", "reset", "busy"]
"""``late``: answered after a while. ``twice``: asked twice at once, and its answer comes twice. ``never``: the gate hears of
it, nobody hears of its answer. ``swallowed``: not even the gate hears of it. ``reset``: the connection breaks once it was
answered. ``busy``: a 503 in the gate's stead."""

ANSWER_SECONDS: Final = 120.0  # of a gate: longer than any call of a plan takes
_HOP: Final = {"connection", "content-length", "keep-alive", "transfer-encoding"}


class GateRelay(Between):
    def __init__(self) -> None:
        super().__init__()
        self._troubles: deque[tuple[Trouble, float]] = deque()
        self._http: aiohttp.ClientSession

    async def start(self, address: str) -> None:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        self._http = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        await super().start(address)

    async def stop(self) -> None:
        await super().stop()
        await self._http.close()

    def trouble(self, kind: Trouble, calls: int, seconds: float) -> None:
        """The next ``calls`` calls meet it."""
        self._troubles.extend([(kind, seconds)] * calls)

    def heal(self) -> None:
        self._troubles.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(aiohttp.ClientError):  # the gate went: the connection of the host breaks with it
            while await self._serve_one(reader, writer):
                continue

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request, *lines = head.rstrip("\r\n").split("\r\n")
        _, path, _ = request.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        headers = {name: value for name, value in headers.items() if name not in _HOP}
        trouble, seconds = ("", 0.0)
        if self._troubles and not path.endswith("/cancel"):
            trouble, seconds = self._troubles.popleft()
        if trouble == "busy":
            writer.write(_answer(503, b"", "text/plain"))
            await writer.drain()
            return True
        if trouble == "swallowed":
            return await _until_gone(reader)
        answers = await asyncio.gather(*[self._ask(path, headers, body) for _ in range(2 if trouble == "twice" else 1)])
        if trouble == "never":
            return await _until_gone(reader)
        if trouble == "reset":
            return False
        if trouble == "late":
            await asyncio.sleep(seconds)
        writer.write(b"".join(answers))
        await writer.drain()
        return True

    async def _ask(self, path: str, headers: dict[str, str], body: bytes) -> bytes:
        url = f"http://127.0.0.1:{self.upstream}{path}"
        patience = aiohttp.ClientTimeout(ANSWER_SECONDS)
        async with self._http.post(url, data=body, headers=headers, timeout=patience) as answer:
            return _answer(answer.status, await answer.read(), answer.headers.get("Content-Type", "application/json"))


async def _until_gone(reader: asyncio.StreamReader) -> bool:
    with suppress(OSError):
        await reader.read()
    return False


def _answer(status: int, body: bytes, content_type: str) -> bytes:
    head = f"HTTP/1.1 {status} as-is\r\nContent-Type: {content_type}\r\n"
    length = "" if status == 204 else f"Content-Length: {len(body)}\r\n"
    return f"{head}{length}\r\n".encode() + body
