"""Joining, renewing, and what a token's life is measured by. Against a scripted Runtime, through the real client."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pod_host.client import HostApi
from pod_host.client.retry import no_waiting
from pod_host.contract.hosting import HostJoinAnswer
from pod_host.host import clock
from pod_host.host.credentials import LIFE_SECONDS, Credentials, life_seconds
from pod_host.settings import Settings
from tests.host.conftest import pod_environment
from tests.host.core import Core

Begin = Callable[..., Credentials]


class Told:
    """What the credentials told the life."""

    def __init__(self) -> None:
        self.joins: list[HostJoinAnswer] = []
        self.answers: list[HostJoinAnswer] = []
        self.refused = 0

    async def joined(self, answer: HostJoinAnswer) -> None:
        self.joins.append(answer)

    def refuse(self) -> None:
        self.refused += 1


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def begin(core: Core, pod: Path, told: Told) -> AsyncIterator[Begin]:
    apis: list[HostApi] = []

    def make(**variables: str) -> Credentials:
        settings = Settings.read(pod_environment(pod, core.url, **variables))
        apis.append(HostApi(core.url, None))
        return Credentials(settings, apis[-1], joined=told.joined, answered=told.answers.append, refused=told.refuse)

    yield make
    for api in apis:
        await api.close()


@pytest.fixture
def at_once() -> Any:
    with no_waiting():
        yield


def jwt(**claims: Any) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'typ': 'nylorun-host+jwt'})}.{part(claims)}.signature"


async def test_the_first_need_joins_and_the_next_renews(begin: Begin, core: Core, told: Told) -> None:
    credentials = begin()
    assert credentials.egress_token is None
    assert await credentials.ready() == "host-1-1"
    assert credentials.egress_token == "egress-1-1"
    assert await credentials.ready() == "host-1-2"
    assert credentials.egress_token == "egress-1-2"
    assert (len(core.joins.all), len(core.renewals.all)) == (1, 1)
    assert (len(told.joins), len(told.answers)) == (1, 2)


async def test_a_refused_join_is_tried_for_good_with_the_file_read_afresh(
    begin: Begin, core: Core, pod: Path, at_once: None
) -> None:
    token = pod / "join" / "token"

    def refuse(body: dict[str, Any]) -> int | None:
        if body["joinToken"] == "join-token-40":
            return None
        token.write_text(f"join-token-{len(core.joins.all) + 1}\n")
        return 401

    core.on_join = refuse
    await begin().ready()
    assert core.joins.all[-1]["joinToken"] == "join-token-40"
    assert len({body["volumeId"] for body in core.joins.all}) == 1


async def test_an_unavailable_runtime_is_tried_for_good(begin: Begin, core: Core, at_once: None) -> None:
    core.on_join = lambda body: 503 if len(core.joins.all) < 10 else None
    await begin().ready()
    assert len(core.joins.all) == 11


async def test_a_join_file_that_is_swapped_by_its_link_is_followed(
    begin: Begin, core: Core, pod: Path, at_once: None
) -> None:
    """As the kubelet does it: token -> ..data/token, ..data -> a directory with a date."""
    join = pod / "join"
    (join / "token").unlink()
    for name in ("first", "second"):
        (join / name).mkdir()
        (join / name / "token").write_text(f" {name}\n")
    (join / "..data").symlink_to("first")
    (join / "token").symlink_to("..data/token")

    def swap(body: dict[str, Any]) -> int | None:
        if body["joinToken"] == "second":
            return None
        (join / "..new").symlink_to("second")
        os.replace(join / "..new", join / "..data")
        return 401

    core.on_join = swap
    await begin().ready()
    assert [body["joinToken"] for body in core.joins.all] == ["first", "second"]


@pytest.mark.parametrize("content", [None, "", "  \n", "x" * 600, "FIFO", "directory"])
async def test_a_join_file_without_a_token_is_waited_for(
    begin: Begin, core: Core, pod: Path, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    token = pod / "join" / "token"
    token.unlink()
    if content == "FIFO":
        os.mkfifo(token)
    elif content == "directory":
        token.mkdir()
    elif content is not None:
        token.write_text(content)
    caplog.set_level("WARNING", "pod_host")
    joining = asyncio.create_task(begin().ready())
    while not caplog.records:  # noqa: ASYNC110 - a log has no event to wait for
        await asyncio.sleep(0.01)
    assert core.joins.all == []
    token.rename(token.with_name("before")) if token.exists() else None
    token.write_text("join-token-2")
    with no_waiting():
        await joining
    assert core.joins.all[0]["joinToken"] == "join-token-2"


async def test_a_refused_renewal_drops_the_tokens_tells_of_it_and_joins(begin: Begin, core: Core, told: Told) -> None:
    credentials = begin()
    await credentials.ready()
    core.epoch += 1
    token = await credentials.ready()
    assert token == "host-3-2"
    assert told.refused == 1
    assert len(core.joins.all) == 2


async def test_a_renewal_without_an_answer_leaves_a_living_token_in_use(begin: Begin, core: Core, told: Told) -> None:
    credentials = begin()
    token = await credentials.ready()
    core.on_renew = lambda token: 503
    assert await credentials.ready() == token
    assert (len(core.joins.all), told.refused) == (1, 0)


async def test_a_token_that_is_dead_by_our_clock_is_joined_for_when_renewing_gets_no_answer(
    begin: Begin, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = begin()
    await credentials.ready()
    core.on_renew = lambda token: 503
    now = clock.boottime()
    monkeypatch.setattr(clock, "boottime", lambda: now + 3600)
    assert await credentials.ready() == "host-2-2"


async def test_renewals_come_by_themselves(begin: Begin, core: Core) -> None:
    credentials = begin(POD_HOST_RENEW_SECONDS="0.05")
    await credentials.ready()
    renewing = asyncio.create_task(credentials.keep_fresh())
    await core.renewals.count(3)
    renewing.cancel()
    assert len(core.joins.all) == 1


async def test_after_a_failed_renewal_the_next_come_sooner(
    begin: Begin, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pod_host.limits.RENEW_RETRY_SECONDS", (0.01, 0.02, 0.03))
    monkeypatch.setattr(clock, "LOOK_SECONDS", 0.01)
    credentials = begin()
    await credentials.ready()
    failures = 5
    core.on_renew = lambda token: 503 if len(core.renewals.all) < failures else None
    renewing = asyncio.create_task(credentials.keep_fresh())
    await credentials.ready()
    await core.renewals.count(failures + 1)
    renewing.cancel()
    assert [refusal for _, refusal in core.renewals.all] == [503] * failures + [None]


async def test_the_timer_of_a_host_that_holds_nothing_asks_nothing(begin: Begin, core: Core) -> None:
    credentials = begin(POD_HOST_RENEW_SECONDS="0.01")
    await credentials.ready()
    credentials.drop()
    renewing = asyncio.create_task(credentials.keep_fresh())
    await asyncio.wait({renewing}, timeout=0.1)  # ten periods; nothing tells of what must not come
    renewing.cancel()
    assert core.renewals.all == []


def test_a_life_is_what_the_tokens_own_claims_say_whatever_our_wall_clock_thinks() -> None:
    hours_ago = datetime.now(UTC) - timedelta(hours=2)
    issued = int(hours_ago.timestamp())
    assert life_seconds(jwt(iat=issued, exp=issued + 600), hours_ago + timedelta(minutes=10)) == 600


@pytest.mark.parametrize(
    "token", ["opaque", "a.b.c", jwt(iat=10), jwt(iat=10, exp=10), jwt(iat="x", exp="y"), "a.W10.c"]
)
def test_without_claims_the_expiry_and_our_clock_tell_if_they_make_sense(token: str) -> None:
    now = datetime.now(UTC)
    assert 590 < life_seconds(token, now + timedelta(minutes=10)) <= 600
    assert life_seconds(token, now - timedelta(hours=2)) == LIFE_SECONDS
    assert life_seconds(token, now + timedelta(hours=2)) == LIFE_SECONDS
    assert 590 < life_seconds(token, (now + timedelta(minutes=10)).replace(tzinfo=None)) <= 600
