"""The client of the embedded Runtime's own API."""

from __future__ import annotations

import socket

import pytest

from pod_host.dev.north_client import North, NorthError
from tests.dev.north_rig import fake_north


async def test_requests_go_to_their_routes() -> None:
    async with fake_north() as served, North(served.url) as north:
        served.turn_ids = ["turn_1"]
        assert await north.open_session() == "ses_1"
        assert [one["sessionId"] for one in await north.sessions()] == ["ses_1"]
        assert (await north.send("ses_1", "hi"))["turnId"] == "turn_1"
        await north.cancel("ses_1")
        await north.decide("ses_1", "turn_1:0:tool:step-1/0", True)
        assert (await north.session("ses_1"))["state"] == "idle"
    assert served.asked == [
        ("POST", "/v1/sessions", {}),
        ("GET", "/v1/sessions", None),
        ("POST", "/v1/sessions/ses_1/messages", {"input": "hi"}),
        ("POST", "/v1/sessions/ses_1/cancel", {"reason": "cancel"}),
        ("POST", "/v1/sessions/ses_1/interactions/turn_1:0:tool:step-1/0", {"approved": True}),
        ("GET", "/v1/sessions/ses_1", None),
    ]


async def test_events_come_in_order_from_where_they_are_asked_for() -> None:
    async with fake_north() as served, North(served.url) as north:
        for kind in ("turn.queued", "turn.started", "turn.completed"):
            served.tell(kind)
        assert [event["type"] async for event in north.events(1)] == ["turn.started", "turn.completed"]


async def test_a_followed_stream_goes_on_until_the_runtime_ends_it() -> None:
    async with fake_north() as served, North(served.url) as north:
        served.tell("turn.queued")
        seen = []
        async for event in north.events(follow=True):
            seen.append(event["type"])
            if len(seen) == 1:
                served.tell("turn.started")
            else:
                served.close()
        assert seen == ["turn.queued", "turn.started"]


async def test_a_refusal_keeps_its_code_and_words() -> None:
    async with fake_north() as served, North(served.url) as north:
        served.refusal = (409, {"code": "no_turn", "message": "no turn is under way"})
        with pytest.raises(NorthError, match="no turn is under way") as fault:
            await north.cancel("ses_1")
        assert (fault.value.status, fault.value.code) == (409, "no_turn")


async def test_a_runtime_that_is_not_there_is_told() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with North(url) as north:
        with pytest.raises(NorthError, match="does not answer"):
            await north.status()
        with pytest.raises(NorthError, match="does not answer"):
            _ = [event async for event in north.events()]
