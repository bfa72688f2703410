"""An answer belongs to one call: whatever a gate sends beyond it is never taken for the next call's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pod_host.client import Gates
from pod_host.client.tls import runtime_tls
from pod_host.errors import GateRefusal
from tests.client.conftest import Authority
from tests.client.peers import raw_listener
from tests.client.test_gates import PATH, token

Form = Callable[[bytes], bytes]


def with_length(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def in_chunks(body: bytes) -> bytes:
    half = len(body) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


class Echo:
    """A gate that answers each call with its key, in what form the test says. ``connections``: how many were made."""

    def __init__(self, form: Form) -> None:
        self.connections = 0
        self.piece_bytes: int | None = None  # None: an answer leaves as one
        self._form = form

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
            except asyncio.IncompleteReadError:
                return
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n"))}
            await reader.readexactly(int(headers["content-length"]))
            answer = self._form(json.dumps({"of": headers["idempotency-key"]}).encode())
            for start in range(0, len(answer), self.piece_bytes or len(answer)):
                writer.write(answer[start : start + (self.piece_bytes or len(answer))])
                await writer.drain()
                await asyncio.sleep(0)


@asynccontextmanager
async def gate(echo: Echo, authority: Authority | None = None) -> AsyncIterator[Gates]:
    async with raw_listener(echo, authority.server if authority else None) as url:
        gates = Gates(url, runtime_tls(authority.ca_file) if authority else None)
        try:
            yield gates
        finally:
            await gates.close()


async def said(gates: Gates, key: str) -> object:
    return (await gates.call(PATH, b"{}", key=key, token=token))["of"]


@pytest.mark.parametrize("form", [with_length, in_chunks])
@pytest.mark.parametrize("extra", [lambda answer: answer, lambda answer: answer[:-1], lambda answer: b"x"])
async def test_what_comes_beyond_an_answer_is_no_other_calls(form: Form, extra: Form) -> None:
    echo = Echo(lambda body: form(body) + extra(form(body)))
    async with gate(echo) as gates:
        assert [await said(gates, key) for key in ("one", "two", "three")] == ["one", "two", "three"]
    assert echo.connections == 3


@pytest.mark.parametrize("form", [with_length, in_chunks])
@pytest.mark.parametrize("piece_bytes", [None, 1, 7])
async def test_a_connection_whose_answer_was_exact_is_used_again(form: Form, piece_bytes: int | None) -> None:
    echo = Echo(form)
    echo.piece_bytes = piece_bytes
    async with gate(echo) as gates:
        assert [await said(gates, key) for key in ("one", "two", "three")] == ["one", "two", "three"]
    assert echo.connections == 1


async def test_an_answer_without_a_body_leaves_its_connection_in_use() -> None:
    echo = Echo(lambda body: b"HTTP/1.1 204 No Content\r\n\r\n")
    async with gate(echo) as gates:
        assert [await gates.call(PATH, b"{}", key=key, token=token) for key in ("one", "two")] == [{}, {}]
    assert echo.connections == 1


async def test_tls_changes_nothing_of_it(authority: Authority) -> None:
    for form, connections in ((with_length, 1), (lambda body: with_length(body) * 2, 2)):
        echo = Echo(form)
        async with gate(echo, authority) as gates:
            assert [await said(gates, key) for key in ("one", "two")] == ["one", "two"]
        assert echo.connections == connections


async def test_a_peer_that_answers_before_it_has_read_all_is_heard() -> None:
    async def gate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        writer.write_eof()
        while await reader.read(1 << 20):
            pass

    async with raw_listener(gate) as url:
        gates = Gates(url, None)
        with pytest.raises(GateRefusal) as refused:
            await gates.call(PATH, b'"' + b"x" * (8 << 20) + b'"', key="one", token=token)
        assert refused.value.status == 413
        await gates.close()


async def test_a_connection_that_its_peer_closed_is_not_used_again() -> None:
    closed = asyncio.Event()
    connections = 0

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(with_length(b'{"of": "one"}'))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        closed.set()

    async with raw_listener(peer) as url:
        gates = Gates(url, None)
        for _ in range(3):
            assert await said(gates, "one") == "one"
            await closed.wait()
            closed.clear()
        await gates.close()
    assert connections == 3


async def test_a_large_call_and_a_large_answer_cross_whole() -> None:
    body = json.dumps({"of": "x" * (8 << 20)}).encode()
    came: list[bytes] = []

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.append(await reader.readexactly(len(body)))
        writer.write(in_chunks(body))
        await writer.drain()

    async with raw_listener(peer) as url:
        gates = Gates(url, None)
        async with gates.claim() as claim:
            answer = await gates.call(PATH, body, key="one", token=token, claim=claim)
        await gates.close()
    assert came == [body]
    assert answer == json.loads(body)
