"""How a channel ends: refused upgrades, closes, malformed frames, silence, a peer that is gone. All reasons are told."""

from __future__ import annotations

import asyncio
import http
import socket

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from pod_host.client import Channel
from pod_host.contract.base import Empty
from pod_host.contract.effects import OutcomeParams
from pod_host.contract.work import RunParams
from pod_host.errors import ChannelClosed, ConnectRefused
from pod_host.limits import MIB
from tests.client.peers import TOKEN, Core, channel, core, ignore, raw_listener, refuse_requests, until_closed

RUN = RunParams(run_id="r1")


async def connect(url: str) -> Channel:
    return await Channel.connect(url, TOKEN, tls=None, on_request=refuse_requests, on_message=ignore)


@pytest.mark.parametrize("status", [401, 404, 421, 426, 503, 200, 302])
async def test_a_refused_upgrade_tells_its_status(status: int) -> None:
    def refuse(connection: ServerConnection, request: Request) -> Response:
        return connection.respond(http.HTTPStatus(status), "")

    async with core(until_closed, process_request=refuse) as listener:
        with pytest.raises(ConnectRefused) as refused:
            await connect(listener.url)
    assert refused.value.status == status
    assert TOKEN not in str(refused.value)


async def test_nobody_listening_is_a_closed_channel() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ChannelClosed, match="no connection: ConnectionRefusedError") as closed:
            await connect(f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert closed.value.code == "unavailable"


@pytest.mark.parametrize(
    "said", [b"", b"220 mail.example ESMTP\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"\0" * 64]
)
async def test_a_listener_that_speaks_no_websocket_is_a_closed_channel(said: bytes) -> None:
    async def behaviour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with raw_listener(behaviour) as url:
        with pytest.raises(ChannelClosed, match="no connection") as closed:
            await connect(url)
    assert TOKEN not in str(closed.value)


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (1000, "the sandbox's host epoch moved", "the sandbox's host epoch moved (1000)"),
        (1001, "core is stopping", "core is stopping (1001)"),
        (1011, "", "closed with code 1011"),
        (4999, "an odd one", "an odd one (4999)"),
    ],
)
async def test_the_peers_close_fails_what_waits_with_its_words(code: int, words: str, told: str) -> None:
    async def behaviour(peer: Core) -> None:
        await peer.hear()
        await peer.socket.close(code, words)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        with pytest.raises(ChannelClosed) as closed:
            await ours.request("lease", Empty())
        assert closed.value.message == f"The Harness API connection closed: {told}"
        assert await ours.wait_closed() == told
        with pytest.raises(ChannelClosed, match="closed"):
            await ours.request("lease.renew", RUN)


async def test_a_connection_cut_in_the_middle_of_a_frame_is_lost() -> None:
    async def behaviour(peer: Core) -> None:
        await peer.hear()
        peer.socket.transport.write(b"\x81\x7e\x10\x00" + b"{" * 100)  # a text of 4096 bytes, of which 100 come
        peer.socket.transport.close()

    async with core(behaviour) as listener, channel(listener.url) as ours:
        with pytest.raises(ChannelClosed, match="the connection was lost"):
            await ours.request("lease", Empty())


@pytest.mark.parametrize(
    ("said", "code", "reason"),
    [
        (b"{}", 1007, "Harness API frames are JSON text"),
        ([b"{", b"}"], 1007, "Harness API frames are JSON text"),
        ("{", 1007, "Harness API frames are JSON text"),
        ("", 1007, "Harness API frames are JSON text"),
        ('{"t":"ping","at":NaN}', 1007, "Harness API frames are JSON text"),
        ("[" * 100_000, 1007, "Harness API frames are JSON text"),
        ('{"t":"ping","at":1}', 1000, "invalid frame: "),
        ('{"t":"res","id":1,"ok":true}', 1000, "invalid frame: "),
        ('{"t":"res","id":1,"ok":1,"r":{}}', 1000, "invalid frame: "),
        ('{"t":"req","id":"7","m":"workspace.read","p":{}}', 1000, "invalid frame: "),
        ("null", 1000, "invalid frame: "),
    ],
)
async def test_a_malformed_frame_closes_the_connection(said: str | bytes | list[bytes], code: int, reason: str) -> None:
    ends: list[tuple[int | None, str | None]] = []

    async def behaviour(peer: Core) -> None:
        await peer.hear()
        await peer.socket.send(said)
        await peer.socket.wait_closed()
        ends.append((peer.socket.close_code, peer.socket.close_reason))

    async with core(behaviour) as listener, channel(listener.url) as ours:
        with pytest.raises(ChannelClosed):
            await ours.request("lease", Empty())
        assert (await ours.wait_closed()).startswith(reason)
    [(closed_with, words)] = ends
    assert closed_with == code
    assert words is not None
    assert words.startswith(reason)
    assert len(words.encode()) <= 123


async def test_our_own_close_says_why_and_fails_what_waits() -> None:
    ends: list[tuple[int | None, str | None]] = []
    asked = asyncio.Event()

    async def behaviour(peer: Core) -> None:
        await peer.hear()
        asked.set()
        await peer.socket.wait_closed()
        ends.append((peer.socket.close_code, peer.socket.close_reason))

    async with core(behaviour) as listener, channel(listener.url) as ours:
        lease = asyncio.create_task(ours.request("lease", Empty()))
        await asked.wait()
        await ours.close("harness stopped")
        with pytest.raises(ChannelClosed, match="harness stopped"):
            await lease
        await ours.close("a second close changes nothing")
        assert await ours.wait_closed() == "harness stopped"
    assert ends == [(1000, "harness stopped")]


# --- A peer that is gone -------------------------------------------------------------------------------------------------


async def test_silence_ends_the_channel() -> None:
    """A half-open connection: the peer's machine is gone, the socket stays. Nothing at all comes, pongs neither."""

    async def behaviour(peer: Core) -> None:
        peer.socket.transport.pause_reading()
        await until_closed(peer)

    async with core(behaviour) as listener:
        ours = await Channel.connect(
            listener.url, TOKEN, tls=None, on_request=refuse_requests, on_message=ignore, silence_seconds=0.3
        )
        with pytest.raises(ChannelClosed, match=r"nothing heard for 0\.3 s"):
            await ours.request("lease", Empty())
        assert await ours.wait_closed() == "nothing heard for 0.3 s"


@pytest.mark.parametrize("sign", ["frame", "ping", "piece"])
async def test_whatever_is_heard_breaks_the_silence(sign: str) -> None:
    """A frame, a protocol ping, and each piece of a large frame on its slow way: all are signs of life."""
    pieces, silence = 6, 2.0

    async def behaviour(peer: Core) -> None:
        await peer.hear()
        answer = b'{"t":"res","id":1,"ok":true,"r":{"ok":true}}'.ljust(100 * pieces)
        if sign == "piece":
            peer.socket.transport.write(b"\x81\x7e" + len(answer).to_bytes(2))
        for index in range(pieces):
            await asyncio.sleep(silence / 3)  # together twice the silence
            if sign == "frame":
                await peer.say({"t": "ping"})
            elif sign == "ping":
                await peer.socket.ping()
            else:
                peer.socket.transport.write(answer[100 * index : 100 * (index + 1)])
        if sign != "piece":
            await peer.socket.send(answer.decode())
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url, silence_seconds=silence) as ours:
        assert (await ours.request("lease.renew", RUN)).ok is True


async def test_a_peer_that_reads_nothing_cannot_hold_up_our_close() -> None:
    """The socket's buffer is full, so that not even the closing frame would leave."""

    async def behaviour(peer: Core) -> None:
        peer.socket.transport.pause_reading()
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        large = OutcomeParams(run_id="r1", effect_id="e1", value="x" * 32 * MIB)
        stuck = asyncio.create_task(ours.request("effect.outcome", large))
        for _ in range(1000):  # turns of the loop: the writer is far beyond what the socket takes
            await asyncio.sleep(0)
        await ours.close("harness stopped")
        with pytest.raises(ChannelClosed, match="harness stopped"):
            await stuck
