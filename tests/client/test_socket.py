"""What comes and what leaves in one turn of the event loop: whole messages, their order, and how many writes they take."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from pod_host import limits
from pod_host.client import Channel, Served
from pod_host.contract.base import Empty, JsonObject
from pod_host.contract.effects import OutcomeParams
from pod_host.contract.work import RunParams
from pod_host.errors import ChannelClosed, RuntimeRefusal
from pod_host.limits import MIB
from tests.client.peers import Core, channel, core, until_closed

RUN = RunParams(run_id="r1")


def request(number: int, **params: Any) -> JsonObject:
    return {"t": "req", "id": number, "m": "workspace.exec", "p": params}


@contextmanager
def writes(ours: Channel) -> Iterator[list[bytes]]:
    """What is handed to the transport, write by write."""
    transport = ours._socket.transport
    seen: list[bytes] = []
    write = transport.write

    def keep(data: bytes) -> None:
        seen.append(bytes(data))
        write(data)

    with patch.object(transport, "write", keep):
        yield seen


# --- In ----------------------------------------------------------------------------------------------------------------


async def test_messages_in_pieces_and_whole_ones_are_heard_in_their_order() -> None:
    """Split within a character, with an empty piece, and with pings between the pieces."""
    heard: list[Any] = []

    def serve(served: Served) -> None:
        heard.append(served.params)
        served.answer({})

    async def behaviour(peer: Core) -> None:
        split = json.dumps(request(1, text="über"), ensure_ascii=False).encode()
        middle = split.index("ü".encode()) + 1
        await peer.say(request(2, text="before"))
        peer.socket.protocol.send_text(split[:middle], fin=False)
        peer.socket.protocol.send_ping(b"between")
        peer.socket.protocol.send_continuation(b"", fin=False)
        peer.socket.protocol.send_continuation(split[middle:], fin=True)
        peer.socket.send_data()
        await peer.say(request(3, text="after"))
        for number in (2, 1, 3):
            assert (await peer.hear())["id"] == number

    async with core(behaviour) as listener, channel(listener.url, on_request=serve) as ours:
        await ours.wait_closed()
    assert heard == [{"text": "before"}, {"text": "über"}, {"text": "after"}]


@pytest.mark.parametrize("pieces", [[b'{"t":"ping\xff"}'], [b'{"t":"\xc3', b'\x28"}'], [b"\xed\xa0", b"\x80"]])
async def test_a_text_that_is_not_utf_8_closes_with_1007(pieces: list[bytes]) -> None:
    codes: list[int | None] = []

    async def behaviour(peer: Core) -> None:
        peer.socket.protocol.send_text(pieces[0], fin=len(pieces) == 1)
        for piece in pieces[1:]:
            peer.socket.protocol.send_continuation(piece, fin=piece is pieces[-1])
        peer.socket.send_data()
        await until_closed(peer)
        codes.append(peer.socket.close_code)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        await ours.wait_closed()
    assert codes == [1007]


async def test_what_comes_with_the_upgrades_answer_is_heard() -> None:
    """A request in the same bytes as the 101: nobody listens yet."""

    def serve(served: Served) -> None:
        served.answer({"was": served.params["n"]})

    answers: list[JsonObject] = []

    async def behaviour(peer: Core) -> None:
        answers.append(await peer.hear())

    def with_request(connection: Any, asked: Any, response: Any) -> None:
        send = connection.protocol.send_response

        def send_more(response: Any) -> None:
            send(response)
            connection.protocol.send_text(json.dumps(request(1, n=7)).encode())

        connection.protocol.send_response = send_more

    async with (
        core(behaviour, process_response=with_request) as listener,
        channel(listener.url, on_request=serve) as ours,
    ):
        await ours.wait_closed()
    assert [answer["r"] for answer in answers] == [{"was": 7}]


async def test_a_peer_that_says_goodbye_and_keeps_the_line_ends_the_channel_all_the_same() -> None:
    over = asyncio.Event()

    async def behaviour(peer: Core) -> None:
        await peer.hear()
        peer.socket.transport.pause_reading()
        peer.socket.protocol.send_close(1001, "core is stopping")
        peer.socket.transport.write(peer.socket.protocol.data_to_send()[0])
        await over.wait()
        peer.socket.transport.resume_reading()
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        with pytest.raises(ChannelClosed, match="core is stopping"):
            await ours.request("lease", Empty())
        assert await ours.wait_closed() == "core is stopping (1001)"
        over.set()


# --- Out ---------------------------------------------------------------------------------------------------------------


async def test_what_is_posted_leaves_in_one_write_with_the_answer_after_it() -> None:
    heard: list[JsonObject] = []
    counts: list[int] = []
    answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def serve(served: Served) -> None:
        with writes(ours) as seen:
            ours.post("event", {"sessionId": "s1"}, answered.set_result)
            served.answer({})
        counts.append(len(seen))

    async def behaviour(peer: Core) -> None:
        await peer.say(request(1))
        heard.extend([await peer.hear(), await peer.hear()])
        await peer.say({"t": "res", "id": heard[0]["id"], "ok": True, "r": {}})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url, on_request=serve) as ours:
        assert await answered == {}
    assert [(frame["t"], frame.get("m")) for frame in heard] == [("req", "event"), ("res", None)]
    assert counts == [1]


async def test_what_is_posted_leaves_by_itself_and_tells_how_it_ended() -> None:
    ends: list[Any] = []
    refused = asyncio.Event()

    def end(how: Any) -> None:
        ends.append(how)
        refused.set()

    async def behaviour(peer: Core) -> None:
        asked = await peer.hear()
        fault = {"code": "invalid", "message": "no such session"}
        await peer.say({"t": "res", "id": asked["id"], "ok": False, "e": fault})
        assert (await peer.hear())["m"] == "event"

    async with core(behaviour) as listener, channel(listener.url) as ours:
        ours.post("event", {}, end)
        await refused.wait()
        ours.post("event", {}, end)
        await ours.wait_closed()
        ours.post("event", {}, end)
    no, cut, late = ends
    assert isinstance(no, RuntimeRefusal)
    assert no.code == "invalid"
    assert isinstance(cut, ChannelClosed)
    assert isinstance(late, ChannelClosed)


async def test_a_small_request_leaves_at_once() -> None:
    async def behaviour(peer: Core) -> None:
        await peer.answer({"ok": True})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        with writes(ours) as seen:
            asked = asyncio.create_task(ours.request("lease.renew", RUN))
            await asyncio.sleep(0)  # one turn of the loop, in which it leaves
            assert len(seen) == 1
        assert (await asked).ok is True


async def test_small_frames_never_lie_between_the_pieces_of_a_large_one_nor_pass_a_full_socket() -> None:
    """A peer that reads slowly: small ones that come meanwhile wait for the large one that is on its way."""
    order: list[int] = []
    reading = asyncio.Event()

    async def behaviour(peer: Core) -> None:
        peer.socket.transport.pause_reading()
        await reading.wait()
        peer.socket.transport.resume_reading()
        for _ in range(102):
            asked = await peer.hear()  # a small one between the pieces would break the connection
            order.append(asked["id"])
            await peer.say({"t": "res", "id": asked["id"], "ok": True, "r": {"ok": True, "status": "completed"}})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        large = OutcomeParams(run_id="r1", effect_id="e1", value="x" * 16 * MIB)
        asked = [asyncio.create_task(ours.request("effect.outcome", large)) for _ in range(2)]
        for _ in range(200):  # turns of the loop: the first large one has begun to leave, and fills the socket
            await asyncio.sleep(0)
        asked += [asyncio.create_task(ours.request("lease.renew", RUN)) for _ in range(100)]
        await asyncio.sleep(0)  # one turn of the loop, in which they are put
        reading.set()
        await asyncio.gather(*asked)
    assert order == [1, *range(3, 103), 2]


async def test_many_answers_to_a_peer_that_reads_nothing_wait_and_arrive_in_their_order() -> None:
    text = "x" * (limits.FRAGMENT_BYTES // 2)
    count = 400

    def serve(served: Served) -> None:
        served.answer({"text": text})

    async def behaviour(peer: Core) -> None:
        peer.socket.transport.pause_reading()
        for number in range(1, count + 1):
            await peer.say(request(number))
        peer.socket.transport.resume_reading()
        for number in range(1, count + 1):
            answer = await peer.hear()
            assert (answer["id"], len(answer["r"]["text"])) == (number, len(text))

    async with core(behaviour) as listener, channel(listener.url, on_request=serve) as ours:
        await ours.wait_closed()
