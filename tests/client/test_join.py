"""host/join and host/renew against an HTTP server on loopback: bodies, refusals, everything that is no answer."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from pod_host.client import HostApi
from pod_host.contract.hosting import HostJoinAnswer, HostJoinRequest
from pod_host.errors import JoinRefused, JoinUnavailable, PodHostError
from tests.client.peers import Answering, Asked, Reply, Web, raw_listener, web

JOIN_TOKEN = "join-token-0123456789"
HOST_TOKEN = "host-token-0123456789"
JOIN = HostJoinRequest(sandbox_id="net/one", pod_uid="uid-1", join_token=JOIN_TOKEN, volume_id="vol-1")
ANSWER = {
    "hostToken": HOST_TOKEN,
    "egressToken": "egress%+/=@token",
    "sandboxId": "net/one",
    "epoch": 7,
    "expiresAt": "2026-11-30T12:00:00.000Z",
    "caCertificate": "-----BEGIN CERTIFICATE-----\n…\n-----END CERTIFICATE-----\n",
}


def always(said: Reply | bytes | None) -> Answering:
    async def answering(asked: Asked) -> Reply | bytes | None:
        return said

    return answering


@asynccontextmanager
async def api(answering: Answering) -> AsyncIterator[tuple[HostApi, Web]]:
    async with web(answering) as runtime:
        ours = HostApi(runtime.url + "/", None)
        try:
            yield ours, runtime
        finally:
            await ours.close()


async def test_a_join_sends_its_body_and_reads_the_answer() -> None:
    setup = {"commands": ["make"]}
    async with api(always(Reply(body={**ANSWER, "setup": setup, "seeded": True, "later": 1}))) as (ours, runtime):
        answer = await ours.join(JOIN)
    [asked] = runtime.asked
    assert (asked.method, asked.target) == ("POST", "/nylorun/harness/v1/host/join")
    assert asked.json == {"sandboxId": "net/one", "podUid": "uid-1", "joinToken": JOIN_TOKEN, "volumeId": "vol-1"}
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["host"] == runtime.url.removeprefix("http://")
    assert "authorization" not in asked.headers
    assert (answer.host_token, answer.egress_token, answer.epoch) == (HOST_TOKEN, "egress%+/=@token", 7)
    assert answer.expires_at == datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert (answer.setup, answer.seeded) == (setup, True)


async def test_an_absent_volume_id_is_left_out() -> None:
    async with api(always(Reply(body=ANSWER))) as (ours, runtime):
        await ours.join(HostJoinRequest(sandbox_id="s", pod_uid="u", join_token="t"))
    assert runtime.asked[0].json == {"sandboxId": "s", "podUid": "u", "joinToken": "t"}


async def test_a_renewal_has_the_bearer_and_no_body() -> None:
    async with api(always(Reply(body=ANSWER))) as (ours, runtime):
        assert (await ours.renew(HOST_TOKEN)).epoch == 7
    [asked] = runtime.asked
    assert (asked.method, asked.target) == ("POST", "/nylorun/harness/v1/host/renew")
    assert asked.headers["authorization"] == f"Bearer {HOST_TOKEN}"
    assert asked.body == b""
    assert "content-type" not in asked.headers
    assert "transfer-encoding" not in asked.headers


async def test_no_proxy_variable_and_no_netrc_turns_a_join_aside(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    netrc = tmp_path_factory.mktemp("home") / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with api(always(Reply(body=ANSWER))) as (ours, runtime):
        await ours.join(JOIN)
    assert "authorization" not in runtime.asked[0].headers


@pytest.mark.parametrize("status", [400, 401])
async def test_a_refusal_tells_its_status_and_words(status: int) -> None:
    body = {"error": {"code": "unauthorized", "message": "The join was refused"}}
    async with api(always(Reply(status, body))) as (ours, _):
        with pytest.raises(
            JoinRefused, match=f"host/join was answered {status}: unauthorized: The join was refused"
        ) as no:
            await ours.join(JOIN)
        assert no.value.status == status
        with pytest.raises(JoinRefused, match=f"host/renew was answered {status}"):
            await ours.renew(HOST_TOKEN)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (Reply(503, {"error": {"code": "unavailable", "message": "Try again"}}), "503: unavailable: Try again"),
        (Reply(421), "421"),
        (Reply(405, headers=(("Allow", "POST"),)), "405"),
        (Reply(500, b"<html><h1>Bad</h1></html>"), "500"),
        (Reply(502, b"\xff\xfe"), "502"),
        (Reply(302, headers=(("Location", "http://127.0.0.1:1/"),)), "302"),
        (Reply(204), "204"),
        (Reply(200, b"<html></html>"), "200, but: not JSON"),
        (Reply(200, b""), "200, but: not JSON"),
        (Reply(200, []), "200, but: Invalid HostJoinAnswer"),
        (Reply(200, {**ANSWER, "hostToken": "two words"}), "200, but: Invalid HostJoinAnswer: hostToken"),
        (Reply(200, {**ANSWER, "epoch": 0}), "200, but: Invalid HostJoinAnswer: epoch"),
        (Reply(200, {**ANSWER, "expiresAt": "soon"}), "200, but: Invalid HostJoinAnswer: expiresAt"),
        (None, "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", "RemoteProtocolError"),
        (b"220 mail.example ESMTP\r\n\r\n", "RemoteProtocolError"),
    ],
)
async def test_everything_else_means_try_again_and_says_what_it_was(said: Reply | bytes | None, told: str) -> None:
    async with api(always(said)) as (ours, _):
        for attempt in (ours.join(JOIN), ours.renew(HOST_TOKEN)):
            with pytest.raises(JoinUnavailable) as fault:
                await attempt
            assert told in str(fault.value)
            assert JOIN_TOKEN not in str(fault.value)
            assert HOST_TOKEN not in str(fault.value)


async def test_nobody_listening_means_try_again() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ours = HostApi(f"http://127.0.0.1:{unused.getsockname()[1]}", None)
        with pytest.raises(JoinUnavailable, match="host/join: ConnectError"):
            await ours.join(JOIN)
        await ours.close()


async def test_an_answer_that_trickles_is_given_up_as_a_whole() -> None:
    """Each byte comes in time for a timeout of one read; the exchange never ends."""

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.02)

    async with raw_listener(trickle) as url:
        ours = HostApi(url, None, timeout_seconds=0.3)
        with pytest.raises(JoinUnavailable, match=r"host/join: no whole answer within 0\.3 s"):
            await ours.join(JOIN)
        await ours.close()


async def test_an_answer_without_end_is_cut_off() -> None:
    async def flood(asked: Asked) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b" " * (65 * 1024 * 1024)

    async with api(flood) as (ours, _):
        with pytest.raises(JoinUnavailable, match="the answer is larger than 67108864 bytes"):
            await ours.join(JOIN)


@pytest.mark.parametrize("echo", ["in JSON", "in HTML", "in a refusal"])
async def test_a_token_that_the_peer_echoes_stays_out_of_our_words(echo: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tokens = f"{JOIN_TOKEN} {HOST_TOKEN}"
    said = {
        "in JSON": Reply(503, {"error": {"code": tokens, "message": tokens}}),
        "in HTML": Reply(502, f"<p>{tokens}</p>".encode()),
        "in a refusal": Reply(401, {"error": {"code": "unauthorized", "message": f"bad token {tokens}"}}),
    }[echo]
    async with api(always(said)) as (ours, _):
        with pytest.raises(PodHostError) as joined:
            await ours.join(JOIN)
        with pytest.raises(PodHostError) as renewed:
            await ours.renew(HOST_TOKEN)
    assert JOIN_TOKEN not in str(joined.value)
    assert HOST_TOKEN not in str(renewed.value)
    assert JOIN_TOKEN not in caplog.text
    assert HOST_TOKEN not in caplog.text


async def test_a_token_unfit_for_a_header_is_not_told_either() -> None:
    async with api(always(Reply(body=ANSWER))) as (ours, _):
        for unfit in ("secret\r\nX-Other: 1", "secret ", "secret\N{SNOWMAN}"):
            with pytest.raises(JoinUnavailable) as fault:
                await ours.renew(unfit)
            assert "secret" not in str(fault.value)


def test_no_token_stands_in_a_repr() -> None:
    assert JOIN_TOKEN not in repr(JOIN)
    answer = HostJoinAnswer.read(ANSWER)
    assert HOST_TOKEN not in repr(answer)
    assert "egress%" not in repr(answer)
