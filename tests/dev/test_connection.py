"""The WebSocket from core's side: odd frames, liveness, size, hello."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from pod_host.contract.base import JsonObject
from pod_host.dev.config import Times
from pod_host.limits import FRAME_BYTES
from tests.dev.conftest import Build, World
from tests.dev.harness import WAIT, Refused, hello_params

VECTORS = {
    vector["name"]: vector
    for vector in json.loads((Path(__file__).parents[1] / "vectors" / "rpc-vectors.json").read_text())["vectors"]
}
OUTWARD = {
    # These test an end's own handlers and requests: below, and in test_north.
    "handler returns nothing",
    "handler throws with a known code",
    "handler answers outside the schema",
    "our pending request when the peer's malformed frame closes the channel",
    "requester aborts a pending request",
}


async def heard(socket: ClientConnection) -> JsonObject:
    frame: JsonObject = json.loads(await asyncio.wait_for(socket.recv(), WAIT))
    return frame


async def say_hello(socket: ClientConnection, number: int = 1000) -> None:
    await socket.send(json.dumps({"t": "req", "id": number, "m": "hello", "p": hello_params()}))
    assert (await heard(socket))["ok"] is True


@pytest.mark.parametrize("name", sorted(set(VECTORS) - OUTWARD))
async def test_an_odd_frame_is_answered_or_ends_the_connection_as_core_does(world: World, name: str) -> None:
    vector = VECTORS[name]
    await world.pod.join()
    async with world.pod.socket() as socket:
        await say_hello(socket)
        await socket.send(json.dumps(vector["frame"]))
        if vector["closed"] is not None:
            await asyncio.wait_for(socket.wait_closed(), WAIT)
            assert socket.close_code == 1000
            assert (socket.close_reason or "").startswith("invalid frame: Invalid frame: ")
            return
        for expected in vector["answers"]:
            answer = await heard(socket)
            assert answer["id"] == expected["id"]
            if not expected["ok"]:
                assert answer["ok"] is False
                assert answer["e"]["code"] == expected["e"]["code"]
                assert answer["e"]["message"].startswith(expected["e"]["message"].split(":")[0])
        # The connection lives, and nothing else was answered.
        await socket.send('{"t":"req","id":1001,"m":"nope","p":{}}')
        assert (await heard(socket))["id"] == 1001


async def test_a_malformed_frame_ends_what_core_asked_the_host(world: World) -> None:
    session = await world.north.session()
    async with world.pod.connected() as channel:
        call = {"tool": "bash", "input": {"command": "x"}}
        asking = asyncio.create_task(world.north.http.post(f"/v1/sessions/{session}/sandbox/exec", json=call))
        await channel.request()
        await channel.send({"t": "bogus"})
        code, reason = await channel.closed()
        assert (code, reason.startswith("invalid frame: ")) == (1000, True)
        refused = await asking
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert refused.json()["error"]["message"].startswith("The Harness API connection closed: invalid frame: ")


async def test_a_known_run_is_needed_where_the_vectors_have_one(world: World) -> None:
    async with world.pod.connected() as channel:
        for method, params in (
            ("lease.renew", {"runId": "r1"}),
            ("lease.release", {"runId": "r1", "reason": "shutdown"}),
            ("turn.completed", {"runId": "r1", "status": "completed"}),
            ("transcript.read", {"runId": "r1"}),
        ):
            with pytest.raises(Refused) as refused:
                await channel.ask(method, params)
            assert refused.value.code == "run_not_held"


@pytest.mark.parametrize("sent", [b"{}", "not JSON", '{"t":', "[1,NaN]"])
async def test_what_is_not_json_text_closes_with_1007(world: World, sent: str | bytes) -> None:
    await world.pod.join()
    async with world.pod.socket() as socket:
        await socket.send(sent)
        await asyncio.wait_for(socket.wait_closed(), WAIT)
        assert (socket.close_code, socket.close_reason) == (1007, "Harness API frames are JSON text")


async def test_hello_must_come_first_and_once(world: World) -> None:
    await world.pod.join()
    async with world.pod.socket() as socket:
        await socket.send('{"t":"req","id":1,"m":"lease","p":{}}')
        refused = await heard(socket)
        assert refused["e"] == {"code": "invalid", "message": "hello must be the first request"}
        await say_hello(socket, 2)
        await socket.send(json.dumps({"t": "req", "id": 3, "m": "hello", "p": hello_params()}))
        assert (await heard(socket))["e"]["code"] == "invalid"


@pytest.mark.parametrize(
    "change",
    [{"api": 4}, {"api": "5"}, {"name": "nylorun"}, {"name": "Pod"}, {"features": None}, {"capabilities": {}}],
    ids=json.dumps,
)
async def test_hello_with_another_api_name_or_shape_is_invalid(world: World, change: dict[str, Any]) -> None:
    await world.pod.join()
    async with world.pod.socket() as socket:
        await socket.send(json.dumps({"t": "req", "id": 1, "m": "hello", "p": hello_params(**change)}))
        assert (await heard(socket))["e"]["code"] == "invalid"


async def test_hello_answers_a_third_of_the_lease(build: Build) -> None:
    world = await build(times=Times(lease=6))
    await world.pod.join()
    async with world.pod.socket() as socket:
        await socket.send(json.dumps({"t": "req", "id": 1, "m": "hello", "p": hello_params()}))
        tenant = world.runtime.status()["tenantId"]
        assert (await heard(socket))["r"] == {
            "api": 5,
            "tenantId": tenant,
            "sandbox": {"backend": None},
            "renewEveryMs": 2000,
        }


async def test_a_form_of_features_that_nobody_proposed_is_warned_of(world: World) -> None:
    async with world.pod.connected(features={"workspace": "yes", "more": 1}):
        warnings = (await world.north.get("/v1/warnings"))["warnings"]
    assert "features" in warnings[0]["text"]
    assert (await world.north.until("warning"))["text"] == warnings[0]["text"]


async def test_a_silent_host_is_dropped_without_a_handshake(build: Build) -> None:
    world = await build(times=Times(ping=0.1, silence=0.4))
    session = await world.north.session()
    await world.pod.join()
    async with world.pod.socket(pings=False) as socket:
        await say_hello(socket)
        socket.transport.pause_reading()  # so its library cannot answer pings, and what is sent to it piles up
        call = {"tool": "bash", "input": {"command": "x" * 16 * 1024 * 1024}}
        asking = asyncio.create_task(world.north.http.post(f"/v1/sessions/{session}/sandbox/exec", json=call))
        event = await world.north.until("host.disconnected")
        assert event["reason"] == "nothing heard for 0.4 s"
        assert (await asking).status_code == 503
        socket.transport.abort()


async def test_a_host_that_only_answers_pings_is_heard(build: Build) -> None:
    world = await build(times=Times(ping=0.05, silence=0.3))
    async with world.pod.connected() as channel:
        for _ in range(20):  # well beyond the silence, with no frame of ours
            await asyncio.sleep(0.05)
        with pytest.raises(Refused, match="run_not_held"):
            await channel.ask("lease.renew", {"runId": "none"})


async def test_a_frame_of_20_mib_is_taken_and_one_over_64_mib_ends_the_connection(world: World) -> None:
    await world.pod.join()
    async with world.pod.socket() as socket:
        await say_hello(socket)
        run_id = "r" * (20 * 1024 * 1024)
        await socket.send(json.dumps({"t": "req", "id": 1, "m": "lease.renew", "p": {"runId": run_id}}))
        assert (await heard(socket))["e"]["code"] == "invalid"  # over 512 characters: read, and refused for that
    async with world.pod.socket() as socket:
        await socket.send('{"t":"ping"}'.ljust(FRAME_BYTES))
        await say_hello(socket)
        with contextlib.suppress(ConnectionClosed):
            await socket.send("x" * (FRAME_BYTES + 1))
        await asyncio.wait_for(socket.wait_closed(), WAIT)
        assert socket.close_code == 1009


async def test_a_waiting_lease_that_is_given_up_takes_no_run(world: World) -> None:
    session = await world.north.session()
    async with world.pod.connected() as channel:
        number, given_up = await channel.start("lease", {})
        await channel.send({"t": "abort", "id": number})
        with pytest.raises(Refused):
            await asyncio.wait_for(given_up, WAIT)
        await world.north.say(session)
        run = await channel.lease()
        assert run.session_id == session
