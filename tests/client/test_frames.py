"""Frames of size: what arrives large, what leaves large, what is too large, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from pod_host import limits
from pod_host.contract.base import Empty, JsonObject
from pod_host.contract.effects import OutcomeParams
from pod_host.contract.work import RunParams
from pod_host.errors import RuntimeRefusal
from pod_host.limits import MIB
from tests.client.peers import Core, channel, core, in_task, until_closed

RUN = RunParams(run_id="r1")
COMPLETED = {"status": "completed"}


def outcome(value: object) -> OutcomeParams:
    return OutcomeParams(run_id="r1", effect_id="e1", value=value)


async def test_a_frame_of_20_mib_arrives() -> None:
    text = "ü" * 10 * MIB

    async def behaviour(peer: Core) -> None:
        await peer.answer({"cursor": 3, "entries": [{"text": text}]})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        read = await ours.request("transcript.read", RUN)
    assert read.entries == [{"text": text}]


async def test_a_frame_over_64_mib_from_the_peer_ends_the_channel() -> None:
    async def behaviour(peer: Core) -> None:
        await peer.hear()
        await peer.socket.send("[" + " " * limits.FRAME_BYTES)
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        with pytest.raises(RuntimeRefusal, match="1009"):
            await ours.request("lease", Empty())


@pytest.mark.parametrize(
    "value",
    [
        "x" * 20 * MIB,
        ["ü\ud83d" * 100] * 40_000,
        {f"name-{index}": {"nested": ["y" * 1000] * 10} for index in range(2000)},
        [[[["z" * 5 * MIB], 1, None], True], 2.5, {}],
    ],
    ids=["text", "list", "object", "nested"],
)
async def test_a_large_value_arrives_whole_in_small_fragments(value: object) -> None:
    heard: list[JsonObject] = []
    largest = 0

    async def behaviour(peer: Core) -> None:
        nonlocal largest
        pieces: list[str] = []
        async for piece in peer.socket.recv_streaming(decode=False):
            assert isinstance(piece, bytes)
            largest = max(largest, len(piece))
            pieces.append(piece.decode("latin-1"))
        asked = json.loads("".join(pieces).encode("latin-1"))
        heard.append(asked)
        await peer.say({"t": "res", "id": asked["id"], "ok": True, "r": COMPLETED})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        await ours.request("effect.outcome", outcome(value))
    assert heard[0]["p"]["value"] == value
    assert largest <= limits.FRAGMENT_BYTES


async def test_a_request_over_64_mib_is_refused_here_and_the_connection_stays() -> None:
    async def behaviour(peer: Core) -> None:
        assert (await peer.answer({"ok": True}))["m"] == "lease.renew"
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        with pytest.raises(
            RuntimeRefusal, match=r"The effect\.outcome request passes HARNESS_MAX_PAYLOAD: 67108864"
        ) as no:
            await ours.request("effect.outcome", outcome("x" * limits.FRAME_BYTES))
        assert no.value.code == "limit_exceeded"
        assert (await ours.request("lease.renew", RUN)).ok is True


async def test_the_largest_frame_leaves_and_one_byte_more_does_not() -> None:
    envelope = len(
        json.dumps({"t": "req", "id": 1, "m": "effect.outcome", "p": outcome("").wire()}, separators=(",", ":"))
    )
    room = limits.FRAME_BYTES - envelope

    async def behaviour(peer: Core) -> None:
        heard = await peer.socket.recv()
        assert len(heard) == limits.FRAME_BYTES
        await peer.say({"t": "res", "id": 1, "ok": True, "r": COMPLETED})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        assert (await ours.request("effect.outcome", outcome("x" * room))).status == "completed"
        with pytest.raises(RuntimeRefusal, match="limit_exceeded"):
            await ours.request("effect.outcome", outcome("x" * (room + 1)))


async def test_an_id_that_comes_again_while_its_large_answer_is_written_has_an_answer_too() -> None:
    sent = 0
    answers: list[JsonObject] = []

    async def serve(method: str, params: JsonObject) -> JsonObject:
        return {"kind": "completed", "output": ["x" * 1000] * (8000 if sent == 1 else 1)}

    async def behaviour(peer: Core) -> None:
        nonlocal sent
        read = asyncio.create_task(_answers(peer, answers, lambda: len(answers) == sent >= 20))
        while not answers or sent < 20:
            sent += 1
            await peer.say({"t": "req", "id": 1, "m": "workspace.read", "p": {}})
            await asyncio.sleep(0.0005)  # between two pieces of the large answer
        await read

    async with core(behaviour) as listener, channel(listener.url, on_request=in_task(serve)) as ours:
        await ours.wait_closed()
    assert len(answers) == sent


async def _answers(peer: Core, into: list[JsonObject], all_came: Callable[[], bool]) -> None:
    while not all_came():
        into.append(await peer.hear())


async def test_an_answer_over_64_mib_crosses_as_a_refusal() -> None:
    async def serve(method: str, params: JsonObject) -> JsonObject:
        return {"output": "x" * limits.FRAME_BYTES}

    answers: list[JsonObject] = []

    async def behaviour(peer: Core) -> None:
        await peer.say({"t": "req", "id": 1, "m": "workspace.read", "p": {}})
        answers.append(await peer.hear())

    async with core(behaviour) as listener, channel(listener.url, on_request=in_task(serve)) as ours:
        await ours.wait_closed()
    [answer] = answers
    assert (answer["ok"], answer["e"]["code"]) == (False, "limit_exceeded")


async def test_a_renewal_goes_before_large_frames_that_wait() -> None:
    """The first large frame is on its way and cannot be interrupted; the second is overtaken."""
    order: list[str] = []

    async def behaviour(peer: Core) -> None:
        for _ in range(3):
            asked = await peer.hear()
            order.append(asked["m"])
            await peer.say({"t": "res", "id": asked["id"], "ok": True, "r": {"ok": True, **COMPLETED}})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        large = [asyncio.create_task(ours.request("effect.outcome", outcome("x" * 8 * MIB))) for _ in range(2)]
        for _ in range(40):  # turns of the loop: both are encoded, and the first has begun to leave
            await asyncio.sleep(0)
        await ours.request("lease.renew", RUN)
        await asyncio.gather(*large)
    assert order in (
        ["effect.outcome", "lease.renew", "effect.outcome"],
        ["lease.renew", "effect.outcome", "effect.outcome"],
    )


async def test_pings_are_answered_while_a_large_frame_leaves() -> None:
    """A peer that reads slowly still gets its pongs: they go between the fragments."""
    ponged = asyncio.Event()

    async def behaviour(peer: Core) -> None:
        stream = peer.socket.recv_streaming(decode=False)
        await anext(stream)
        pong = await peer.socket.ping()
        reads = asyncio.create_task(_rest(stream))
        await pong
        assert not reads.done()
        ponged.set()
        await reads
        await peer.say({"t": "res", "id": 1, "ok": True, "r": COMPLETED})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        await ours.request("effect.outcome", outcome("x" * 48 * MIB))
    assert ponged.is_set()


async def _rest(stream: object) -> None:
    async for _ in stream:  # type: ignore[attr-defined]
        await asyncio.sleep(0)


async def test_many_large_and_small_frames_at_once_arrive_whole() -> None:
    heard: dict[int, int] = {}

    async def behaviour(peer: Core) -> None:
        for _ in range(40):
            asked = await peer.hear()
            heard[asked["id"]] = len(asked["p"]["value"])
            await peer.say({"t": "res", "id": asked["id"], "ok": True, "r": COMPLETED})
        await until_closed(peer)

    sizes = [(index % 5) * MIB // 2 + index for index in range(40)]
    async with core(behaviour) as listener, channel(listener.url) as ours:
        await asyncio.gather(*(ours.request("effect.outcome", outcome("x" * size)) for size in sizes))
    assert [heard[index + 1] for index in range(40)] == sizes


@pytest.mark.parametrize("turns", [0, 1, 5, 12, 25, 60, 200])
async def test_a_large_request_given_up_at_any_point_leaves_the_connection_whole(turns: int) -> None:
    """While encoding or waiting nothing is sent; while leaving, the frame is finished and an abort follows."""
    heard: list[JsonObject] = []

    async def behaviour(peer: Core) -> None:
        while not heard or heard[-1].get("m") != "lease.renew":
            heard.append(await peer.hear())
        await peer.say({"t": "res", "id": heard[-1]["id"], "ok": True, "r": {"ok": True}})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        given_up = asyncio.create_task(ours.request("effect.outcome", outcome("x" * 8 * MIB)))
        for _ in range(turns):
            await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert (await ours.request("lease.renew", RUN)).ok is True
    kinds = [frame["t"] for frame in heard]
    assert kinds in (["req"], ["req", "abort", "req"], ["req", "req"])
    if kinds == ["req", "req"]:  # the renewal overtook the abort? never: both are small, in order
        pytest.fail("a request that left was given up without an abort")
