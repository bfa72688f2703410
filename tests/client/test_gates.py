"""The gates against an HTTP server on loopback: one call, its re-sends, refusals, and the cancel route."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from pod_host import limits
from pod_host.client import Gates
from pod_host.client.retry import no_waiting
from pod_host.contract.base import JsonObject
from pod_host.errors import ContractViolation, GateRefusal, GateUnavailable
from tests.client.peers import Answering, Asked, Reply, Web, raw_listener, web

PATH = "/nylorun/v1/model-calls"
KEY = "turn_01:0:model:step-1"
BODY = b'{"effectId":"turn_01:0:model:step-1","invocationId":"i","call":{}}'
OUTCOME: JsonObject = {"outcome": {"output": []}}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    with no_waiting():
        yield


def token() -> str:
    return "run-token-0123456789"


def in_turn(*said: Reply | bytes | None) -> Answering:
    """One after another; the last again and again."""
    left = list(said)

    async def answering(asked: Asked) -> Reply | bytes | None:
        return left.pop(0) if len(left) > 1 else left[0]

    return answering


@asynccontextmanager
async def gates(answering: Answering, base: str = "") -> AsyncIterator[tuple[Gates, Web]]:
    async with web(answering) as runtime:
        ours = Gates(runtime.url + base, None)
        try:
            yield ours, runtime
        finally:
            await ours.close()


async def test_a_call_sends_its_bytes_under_its_key() -> None:
    async with gates(in_turn(Reply(body=OUTCOME)), base="/") as (ours, runtime):
        assert await ours.call(PATH, BODY, key=KEY, token=token, traceparent=TRACE) == OUTCOME
    [asked] = runtime.asked
    assert (asked.method, asked.target, asked.body) == ("POST", PATH, BODY)
    assert asked.headers["authorization"] == "Bearer run-token-0123456789"
    assert asked.headers["idempotency-key"] == KEY
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["traceparent"] == TRACE
    assert asked.headers["host"] == runtime.url.removeprefix("http://")


async def test_a_base_with_a_path_keeps_it_and_204_is_an_empty_answer() -> None:
    async with gates(in_turn(Reply(204)), base="/gates") as (ours, runtime):
        assert await ours.call("/nylorun/v1/mcp/close", b"{}", key="k", token=token) == {}
    assert runtime.asked[0].target == "/gates/nylorun/v1/mcp/close"
    assert "traceparent" not in runtime.asked[0].headers


@pytest.mark.parametrize(
    "lost",
    [
        None,
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        Reply(500, {"error": {"code": "internal", "message": "oops"}}),
        Reply(502, b"<html>Bad gateway</html>"),
        Reply(503),
        Reply(429),
        Reply(200, b"<html>a captive portal</html>"),
    ],
    ids=["cut", "cut in the body", "500", "502", "503", "429", "200 without JSON"],
)
async def test_a_lost_hop_is_sent_again_under_the_same_key_and_bytes(lost: Reply | bytes | None) -> None:
    async with gates(in_turn(lost, lost, Reply(body=OUTCOME))) as (ours, runtime):
        assert await ours.call(PATH, BODY, key=KEY, token=token) == OUTCOME
    assert [(asked.headers["idempotency-key"], asked.body) for asked in runtime.asked] == [(KEY, BODY)] * 3


async def test_a_gate_that_never_answers_is_unavailable_in_the_end() -> None:
    async with gates(in_turn(Reply(503, {"error": {"code": "overloaded", "message": "later"}}))) as (ours, runtime):
        with pytest.raises(GateUnavailable, match="503: overloaded: later"):
            await ours.call(PATH, BODY, key=KEY, token=token)
    assert len(runtime.asked) == 1 + limits.GATE_RESENDS


async def test_nobody_listening_is_unavailable() -> None:
    async with web(in_turn(None)) as runtime:
        url = runtime.url
    ours = Gates(url, None)
    with pytest.raises(GateUnavailable, match="ConnectError"):
        await ours.call(PATH, BODY, key=KEY, token=token)
    await ours.close()


async def test_silence_is_a_lost_hop() -> None:
    asked = 0

    async def first_silent(request: Asked) -> Reply:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.Event().wait()
        return Reply(body=OUTCOME)

    async with web(first_silent) as runtime:
        ours = Gates(runtime.url, None, silence_seconds=0.2)
        assert await ours.call(PATH, BODY, key=KEY, token=token) == OUTCOME
        await ours.close()
    assert len(runtime.asked) == 2


@pytest.mark.parametrize(
    ("said", "status", "code", "message"),
    [
        (
            Reply(409, {"error": {"code": "run_stale", "message": "The run is over"}}),
            409,
            "run_stale",
            "The run is over",
        ),
        (Reply(409, {"error": {"code": "effect_not_journaled"}}), 409, "effect_not_journaled", ""),
        (Reply(400, {"error": {"code": "key_required", "message": "m"}}), 400, "key_required", "m"),
        (Reply(400), 400, "invalid_request", "the answer holds no gate error"),
        (Reply(401, b"<html>"), 401, "gate_unauthorized", "the answer holds no gate error"),
        (Reply(403, {"error": "no object"}), 403, "gate_forbidden", "the answer holds no gate error"),
        (Reply(421, []), 421, "host_rejected", "the answer holds no gate error"),
        (Reply(413, b"too large"), 413, "http_413", "the answer holds no gate error"),
        (Reply(302, headers=(("Location", "http://127.0.0.1:1/"),)), 302, "http_302", "the answer holds no gate error"),
    ],
)
async def test_a_refusal_has_status_and_code_and_is_final(said: Reply, status: int, code: str, message: str) -> None:
    async with gates(in_turn(said)) as (ours, runtime):
        with pytest.raises(GateRefusal) as refusal:
            await ours.call(PATH, BODY, key=KEY, token=token)
    assert (refusal.value.status, refusal.value.code, refusal.value.message) == (status, code, message)
    assert len(runtime.asked) == 1


async def test_the_token_is_read_anew_for_each_attempt() -> None:
    held = iter(["first", "second", "third"])
    async with gates(in_turn(Reply(503), None, Reply(body=OUTCOME))) as (ours, runtime):
        await ours.call(PATH, BODY, key=KEY, token=lambda: next(held))
    assert [asked.headers["authorization"] for asked in runtime.asked] == [
        "Bearer first",
        "Bearer second",
        "Bearer third",
    ]


async def test_a_token_that_ended_while_it_was_on_the_way_is_replaced() -> None:
    held = "ended"

    async def answering(asked: Asked) -> Reply:
        nonlocal held
        if asked.headers["authorization"] == "Bearer ended":
            held = "renewed"
            return Reply(401, {"error": {"code": "gate_unauthorized", "message": "expired"}})
        return Reply(body=OUTCOME)

    async with gates(answering) as (ours, runtime):
        assert await ours.call(PATH, BODY, key=KEY, token=lambda: held) == OUTCOME
    assert len(runtime.asked) == 2


async def test_a_run_without_a_token_is_refused_here() -> None:
    async with gates(in_turn(Reply(body=OUTCOME))) as (ours, runtime):
        with pytest.raises(GateRefusal) as refusal:
            await ours.call(PATH, BODY, key=KEY, token=lambda: "")
    assert refusal.value.status == 401
    assert runtime.asked == []


@pytest.mark.parametrize("key", ["turn:0:tool:ü", "a\r\nX: 1", "a\0"])
async def test_a_key_that_no_header_can_hold_is_our_fault(key: str) -> None:
    async with gates(in_turn(Reply(body=OUTCOME))) as (ours, runtime):
        with pytest.raises(ContractViolation, match="Idempotency-Key"):
            await ours.call(PATH, BODY, key=key, token=token)
    assert runtime.asked == []


async def test_cancelling_the_caller_ends_the_request() -> None:
    gone = asyncio.Event()
    begun = asyncio.Event()

    async def answering(asked: Asked) -> Reply:
        begun.set()
        await gone.wait()
        return Reply()

    async with gates(answering) as (ours, _):
        call = asyncio.create_task(ours.call(PATH, BODY, key=KEY, token=token))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        gone.set()


async def test_many_calls_at_once_do_not_wait_for_one_another() -> None:
    """Several runs, each with a step of parallel tool calls: more than an HTTP client's usual 100 connections."""
    together = asyncio.Barrier(150)

    async def answering(asked: Asked) -> Reply:
        await together.wait()
        return Reply(body=json.loads(asked.body))

    async with gates(answering) as (ours, _):
        calls = [ours.call(PATH, b'{"n":%d}' % n, key=f"k{n}", token=token) for n in range(150)]
        assert [answer["n"] for answer in await asyncio.gather(*calls)] == list(range(150))


# --- Cancel --------------------------------------------------------------------------------------------------------------


async def test_a_cancel_names_the_key_as_one_path_segment() -> None:
    async with gates(in_turn(Reply(204))) as (ours, runtime):
        await ours.cancel(PATH, key="turn_01:0:tool:a/b%c?d#e f", token=token)
    [asked] = runtime.asked
    assert (asked.method, asked.body) == ("POST", b"")
    assert asked.target == f"{PATH}/turn_01%3A0%3Atool%3Aa%2Fb%25c%3Fd%23e%20f/cancel"
    assert asked.headers["authorization"] == "Bearer run-token-0123456789"


@pytest.mark.parametrize("said", [Reply(401), Reply(409), Reply(500), None, b"no HTTP\r\n\r\n"])
async def test_a_cancel_never_raises(said: Reply | bytes | None) -> None:
    async with gates(in_turn(said)) as (ours, runtime):
        await ours.cancel(PATH, key=KEY, token=token)
        await ours.cancel(PATH, key=KEY, token=lambda: "unfit\r\nfor a header")
    assert len(runtime.asked) == 1


async def test_a_cancel_does_not_wait_for_a_gate_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CANCEL_SECONDS", 0.1)

    async def stuck(asked: Asked) -> Reply:
        await asyncio.Event().wait()
        return Reply()

    async with gates(stuck) as (ours, _):
        await ours.cancel(PATH, key=KEY, token=token)


async def test_no_run_token_is_logged_or_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    echo = {"error": {"code": "gate_unauthorized", "message": f"bad {token()}"}}
    async with gates(in_turn(Reply(500, echo), Reply(401, echo))) as (ours, _):
        with pytest.raises(GateRefusal) as refusal:
            await ours.call(PATH, BODY, key=KEY, token=token)
        await ours.cancel(PATH, key=KEY, token=token)
    assert token() not in str(refusal.value)
    assert token() not in caplog.text


# --- Large answers ---------------------------------------------------------------------------------------------------

LARGE: JsonObject = {"ok": True, "result": {"content": [{"type": "text", "text": "x" * 300_000}]}}


async def test_large_answers_are_read_as_there_is_room_and_small_ones_need_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ANSWERS_BYTES", 700_000)
    asked = asyncio.Event()
    count = 0

    async def answering(request: Asked) -> Reply:
        nonlocal count
        count += request.json["large"]
        if count == 5:
            asked.set()
        return Reply(body=LARGE if request.json["large"] else OUTCOME)

    async with gates(answering) as (ours, _):
        read: asyncio.Queue[asyncio.Event] = asyncio.Queue()

        async def hold(number: int) -> None:
            async with ours.claim() as claim:
                body = json.dumps({"large": True}).encode()
                assert await ours.call(PATH, body, key=f"k{number}", token=token, claim=claim) == LARGE
                done = asyncio.Event()
                read.put_nowait(done)
                await done.wait()

        holding = [asyncio.create_task(hold(number)) for number in range(5)]
        first, second = await read.get(), await read.get()
        await asked.wait()  # all run beside one another, and three answers wait in their sockets
        async with ours.claim() as claim:
            small = await ours.call(PATH, b'{"large": false}', key="small", token=token, claim=claim)
        assert small == OUTCOME
        assert read.empty()
        assert ours.room.held > 600_000
        for done in (first, second):
            done.set()
            (await read.get()).set()
        (await read.get()).set()
        await asyncio.gather(*holding)
        assert ours.room.held == 0


@pytest.mark.parametrize("head", ["", "Content-Length: 5000000\r\n"])
async def test_a_large_answer_that_breaks_off_gives_its_room_back_and_is_asked_for_again(
    head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ANSWER_SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(limits, "ANSWERS_BYTES", 1_000_000)
    broken = f"HTTP/1.1 200 OK\r\n{head}\r\n".encode() + b'{"a":"' + b"x" * 200_000
    async with gates(in_turn(broken, Reply(body=LARGE))) as (ours, runtime), ours.claim() as claim:
        assert await ours.call(PATH, BODY, key=KEY, token=token, claim=claim) == LARGE
        assert 300_000 < ours.room.held < 400_000
    assert (len(runtime.asked), ours.room.held) == (2, 0)


async def test_a_large_answer_that_falls_silent_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ANSWER_SILENCE_SECONDS", 0.2)
    connections = 0

    async def behaviour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(BODY))
        body = json.dumps(LARGE).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body[:200_000] if connections == 1 else body)
        await reader.read()  # until the other end is gone

    async with raw_listener(behaviour) as url:
        ours = Gates(url, None)
        try:
            async with ours.claim() as claim:
                assert await ours.call(PATH, BODY, key=KEY, token=token, claim=claim) == LARGE
        finally:
            await ours.close()
    assert connections == 2
